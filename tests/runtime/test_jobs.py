from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import ConfigError, JobError, PayloadError
from pollwise.runtime.decoding import same_payload
from pollwise.runtime.jobs import (
    ERROR_LENGTH_MAX,
    NAME_LENGTH_MAX,
    PRIORITY_MAX,
    Claim,
    Job,
    NewJob,
    Settlement,
)
from pollwise.runtime.payloads.depth import DEPTH_MAX

NOW = 1_767_225_600.0

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    plain | text, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=20
)


def a_claim() -> Claim:
    job = Job("1", "default", "job", None, None, 0, 1, NOW, NOW, None)
    return Claim(job, 1, "worker", NOW + 60)


# Payloads


@given(values)
def test_any_json_value_is_a_payload(payload: Any) -> None:
    job = NewJob("job", payload)
    assert json.loads(job.encoded) == payload
    assert job.size == len(job.encoded.encode())
    assert same_payload(job.encoded, NewJob("job", json.loads(job.encoded)).encoded)


def cycle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def nested(levels: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(levels - 1):
        inner = [inner]
    return inner


NOT_JSON: dict[str, Any] = {
    "a set": {1, 2},
    "bytes": b"bytes",
    "an object": object(),
    "a complex number": 1j,
    "nan": float("nan"),
    "infinity": [float("inf")],
    "minus infinity": {"a": -float("inf")},
    "a tuple as key": {("a", "b"): 1},
    "half a character": "\ud800",
    "half a character as key": {"\udcff": 1},
    "a cycle": cycle(),
    "far too deep": nested(10**5),
    "one too deep": nested(DEPTH_MAX + 1),
    "one too deep in dicts": {"a": {"b": nested(DEPTH_MAX - 1)}},
    "an iterator": iter([]),
    "a function": print,
}


@pytest.mark.parametrize("what", NOT_JSON)
def test_what_is_not_json_is_refused(what: str) -> None:
    payload = NOT_JSON[what]
    with pytest.raises(PayloadError) as caught:
        NewJob("resize", payload)
    assert "'resize' is not JSON" in str(caught.value)
    assert "Use only dict, list, str" in str(caught.value)


def test_a_payload_may_nest_up_to_the_limit() -> None:
    deepest = nested(DEPTH_MAX)
    assert json.loads(NewJob("job", deepest).encoded) == deepest
    assert NewJob("job", {"a": nested(DEPTH_MAX - 1)}).size == 2 * DEPTH_MAX + 4
    wide = [[[n] for n in range(100)] for _ in range(100)]
    assert json.loads(NewJob("job", wide).encoded) == wide, "wide is not deep"
    brackets = "[{" * 1000
    assert json.loads(NewJob("job", brackets).encoded) == brackets, "text is not deep"


def test_a_payload_is_encoded_when_the_job_is_made() -> None:
    payload = {"n": 1}
    job = NewJob("job", payload)
    payload["n"] = 2
    assert json.loads(job.encoded) == {"n": 1}


def test_size_is_in_bytes() -> None:
    assert NewJob("job", "é").size == 4
    assert NewJob("job").size == len("null")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ([1, 2], [2, 1], False),
        (1, True, False),
        ({"a": 0}, {"a": False}, False),
        (1, 1.0, False),
        (None, 0, False),
        ("1", 1, False),
        ({}, [], False),
    ],
)
def test_same_payload(one: Any, other: Any, same: bool) -> None:
    assert same_payload(NewJob("a", one).encoded, NewJob("b", other).encoded) is same


# Names


@pytest.mark.parametrize("name", ["kind", "key", "unique"])
@pytest.mark.parametrize(
    "value",
    ["", "a\nb", "\0", "\ud800", "tab\t", 5, b"bytes", ["a"], True, "x" * (NAME_LENGTH_MAX + 1)],
    ids=lambda value: repr(value)[:12],
)
def test_bad_names_are_refused(name: str, value: Any) -> None:
    arguments = {"kind": "job", name: value}
    with pytest.raises(JobError) as caught:
        NewJob(**arguments)
    assert str(caught.value).startswith(f"{name} = ")


def test_names_may_be_any_printable_text() -> None:
    name = "ñ ☃ 😀" + "x" * (NAME_LENGTH_MAX - 5)
    job = NewJob(name, key=name, unique=name)
    assert (job.kind, job.key, job.unique) == (name, name, name)


def test_a_kind_is_needed() -> None:
    with pytest.raises(JobError, match="kind = None"):
        NewJob(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [PRIORITY_MAX + 1, -PRIORITY_MAX - 1, 1.0, "1", True, None])
def test_bad_priorities_are_refused(priority: Any) -> None:
    with pytest.raises(JobError, match=r"priority = .* whole number from -1000 to 1000"):
        NewJob("job", priority=priority)


@pytest.mark.parametrize("priority", [PRIORITY_MAX, -PRIORITY_MAX, 0])
def test_priorities(priority: int) -> None:
    assert NewJob("job", priority=priority).priority == priority


# Time


@pytest.mark.parametrize(
    ("delay", "seconds"), [(0, 0), (1.5, 1.5), ("2m", 120), (timedelta(hours=1), 3600)]
)
def test_delays(delay: Any, seconds: float) -> None:
    assert NewJob("job", delay=delay).due_at(NOW) == NOW + seconds


@pytest.mark.parametrize(
    "delay", [-1, "soon", float("nan"), float("inf"), "-1s", None, True, "11y"]
)
def test_bad_delays_are_refused(delay: Any) -> None:
    with pytest.raises(JobError, match="delay = "):
        NewJob("job", delay=delay)


def test_a_delay_has_a_limit() -> None:
    NewJob("job", delay="3650d")
    with pytest.raises(JobError, match="ten years"):
        NewJob("job", delay="3651d")


@pytest.mark.parametrize(
    "moment",
    [
        NOW + 60,
        int(NOW) + 60,
        datetime.fromtimestamp(NOW + 60, UTC),
        datetime.fromtimestamp(NOW + 60, timezone(timedelta(hours=5, minutes=30))),
    ],
)
def test_run_at(moment: Any) -> None:
    assert NewJob("job", run_at=moment).due_at(NOW) == NOW + 60


@pytest.mark.parametrize("moment", [0, NOW - 1, datetime(1969, 1, 1, tzinfo=UTC)])
def test_run_at_in_the_past_means_now(moment: Any) -> None:
    assert NewJob("job", run_at=moment).due_at(NOW) == NOW


@pytest.mark.parametrize("moment", [-1, 1e12, float("nan"), "tomorrow", True, timedelta(1)])
def test_bad_moments_are_refused(moment: Any) -> None:
    with pytest.raises(JobError, match="must be an aware datetime or seconds since 1970"):
        NewJob("job", run_at=moment)


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(JobError, match=r"no time zone; use datetime\.now\(timezone\.utc\)"):
        NewJob("job", run_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_delay_and_run_at_together_are_refused() -> None:
    with pytest.raises(JobError, match=r"delay = '5s' or run_at = 9\.0, not both"):
        NewJob("job", delay="5s", run_at=9.0)


def test_repr_shows_what_it_is() -> None:
    assert repr(NewJob("resize", {"w": 1})) == "NewJob('resize', {'w': 1})"


# Settlements


def test_settlements() -> None:
    claim = a_claim()
    assert Settlement.done(claim) == Settlement(claim, "done")
    assert Settlement.retry(claim, "2s", "why") == Settlement(claim, "retry", 2.0, "why")
    assert Settlement.give_back(claim, 3) == Settlement(claim, "give_back", 3.0)
    assert Settlement.dead(claim, "why") == Settlement(claim, "dead", error="why")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settlement.done(claim).action = "dead"  # type: ignore[misc]


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ConfigError, match="action = 'lost' must be one of done, retry, dead"):
        Settlement(a_claim(), "lost")  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), "soon"])
def test_a_bad_delay_of_a_settlement_is_refused(delay: Any) -> None:
    for make in (Settlement.retry, Settlement.give_back):
        with pytest.raises(ConfigError, match="delay = "):
            make(a_claim(), delay)
    with pytest.raises(ConfigError, match="delay = "):
        Settlement(a_claim(), "retry", delay)


@given(st.text())
def test_any_text_may_be_an_error(error: str) -> None:
    kept = Settlement.dead(a_claim(), error).error
    assert kept is not None
    kept.encode()
    assert "\0" not in kept
    assert len(kept) <= ERROR_LENGTH_MAX
    if error.isprintable() and len(error) <= ERROR_LENGTH_MAX:
        assert kept == error


def test_long_errors_are_cut() -> None:
    assert len(Settlement.dead(a_claim(), "\udcff" * 9999).error or "") == ERROR_LENGTH_MAX
    for settlement in (
        Settlement.dead(a_claim(), "x" * 9999),
        Settlement.retry(a_claim(), error="x" * 9999),
        Settlement(a_claim(), "dead", error="x" * 9999),
    ):
        assert settlement.error == "x" * ERROR_LENGTH_MAX
