"""Targets, readings and quiet hours: what is refused, and what is kept."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.alerts.quiet import Quiet
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError
from pollwise.fleet import Fleet, FleetRunOptions, Reading, Target
from pollwise.fleet.targets import VALUE_MAX


async def probe(target: Target, context: object) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, "name = ''"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 300}, "longer than 255"),
        ({"name": "x/../y"}, "between slashes"),
        ({"name": ".."}, "between slashes"),
        ({"name": "a/."}, "between slashes"),
        ({"probe": 7}, "probe = 7"),
        ({"interval": "0s"}, "'t': interval"),
        ({"interval": "soon"}, "is not a duration"),
        ({"interval": "5s", "min_interval": "1s"}, "contradict"),
        (
            {"min_interval": "10s", "max_interval": "5s"},
            "'t': min_interval = 10.0 is above max_interval = 5.0",
        ),
        ({"base_interval": "1h"}, "'t': base"),
        ({"weight": 0}, "weight = 0"),
        ({"priority": 1.5}, "priority = 1.5"),
        ({"timeout": "2h"}, "above the limit"),
        ({"dead_after": 0}, "'t': dead_after = 0 must be a whole number from 1 to 1000000"),
        ({"dead_after": True}, "dead_after = True"),
        ({"quiet": "ten to six"}, "'t': quiet"),
        ({"quiet": "25:00-06:00"}, "hour or minute"),
        ({"quiet": "06:00-06:00"}, "begins when it ends"),
        ({"quiet": "22:00-06:00 Mars/Olympus"}, "not a known time zone"),
    ],
)
def test_errors_name_the_target_and_the_value(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Target(**{"name": "t", "probe": probe, **wrong})


def test_a_duration_is_a_fixed_interval() -> None:
    fleets = Freshness("20s", "10s", "10m")
    assert Target("t", probe, "90s").strategy(fleets) == Fixed("90s")
    assert Target("t", probe).strategy(fleets) is fleets
    assert Target("t", probe, max_interval="1m").strategy(fleets) == Freshness("20s", "10s", "1m")
    assert Target("t", probe, max_interval="8s").strategy(fleets) == Freshness("8s", "8s", "8s")
    assert Target("t", probe, min_interval="20m").strategy(fleets) == Freshness("20m", "20m", "20m")


def test_a_target_does_not_print_its_options() -> None:
    target = Target("t", "http", options={"url": "https://me:secret@example.org/"})
    assert "secret" not in repr(target)
    assert target.type == "http"


def test_a_probe_without_a_name_is_refused_at_once() -> None:
    fleet: Any = Fleet()
    with pytest.raises(ConfigError, match=r"give the target's name: @fleet.probe\('orders'\)"):
        fleet.probe(probe)
    assert len(fleet) == 0


def test_names_are_unique_and_nothing_is_added_when_one_is_wrong() -> None:
    fleet = Fleet()
    fleet.add(Target("a", probe))
    with pytest.raises(ConfigError, match="target 'a' already exists"):
        fleet.add(Target("b", probe), Target("a", probe))
    with pytest.raises(ConfigError, match="target 'c' already exists"):
        fleet.add(Target("c", probe), Target("c", probe))
    assert len(fleet) == 1
    fleet.remove("a")
    fleet.add(Target("a", probe))
    assert "a" in fleet


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": 0}, {"per_host": 0}, {"budget": 0}, {"budget": float("inf")},
     {"strategy": "freshness"}, {"strategy": Fixed("0s", hold="5s")}, {"lease": 0}],
)  # fmt: skip
def test_invalid_run_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FleetRunOptions(**wrong)


@given(st.none() | st.text() | st.binary(), st.dictionaries(st.text(), st.text()))
def test_a_reading_survives_being_kept(value: str | bytes | None, tags: dict[str, str]) -> None:
    reading = Reading(value, 12.5, dict(tags), "well", dict(tags))
    assert Reading.restored(reading.kept()) == reading
    assert reading.value is None or len(reading.value) <= VALUE_MAX


def test_a_large_value_is_compared_by_its_digest() -> None:
    assert Reading("x" * 10_000) == Reading("x" * 10_000)
    assert Reading("x" * 10_000) != Reading("x" * 10_001)
    assert Reading.of({"b": 1, "a": 2}) == Reading.of({"a": 2, "b": 1})
    assert Reading.of(b"1").value == b"1"


# Quiet hours


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("when", "ends"),
    [
        ("2026-06-01T21:59:59", None),
        ("2026-06-01T22:00:00", "2026-06-02T06:00:00"),
        ("2026-06-02T00:00:00", "2026-06-02T06:00:00"),
        ("2026-06-02T05:59:59", "2026-06-02T06:00:00"),
        ("2026-06-02T06:00:00", None),
        ("2026-03-28T23:00:00", "2026-03-29T06:00:00"),  # an hour shorter that night
        ("2026-10-24T23:00:00", "2026-10-25T06:00:00"),  # an hour longer
    ],
)
def test_quiet_hours_go_by_the_clock_on_the_wall(when: str, ends: str | None) -> None:
    quiet = Quiet.parsed("22:00-06:00 Europe/Berlin")
    assert quiet.ends(at(when)) == (None if ends is None else at(ends))


@given(
    st.integers(0, 2_000_000_000),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "UTC"]),
    st.times(),
    st.times(),
)
def test_quiet_hours_end(when: int, zone: str, start: Any, end: Any) -> None:
    start, end = start.replace(microsecond=0), end.replace(microsecond=0)
    if start == end:
        return
    ends = Quiet(start, end, zone).ends(when)
    if ends is not None:
        assert when < ends <= when + 26 * 3600


def test_a_reading_has_nothing_that_a_store_or_a_channel_cannot_take() -> None:
    half = "\ud800"  # json.loads('"\\ud800"'), which a hostile page can send
    facts: dict[str, Any] = {"text": half, "nan": float("nan"), "list": [1], "fine": 1.5, "ü": "ü"}
    reading = Reading(half, None, facts, f"v = {half}", content=half, diff=half)
    assert reading.value == reading.content == reading.diff == "\\ud800"
    assert reading.summary == "v = \\ud800"
    assert reading.facts == {
        "text": "\\ud800", "nan": None, "list": "[1]", "fine": 1.5, "ü": "ü",
    }  # fmt: skip
    json.dumps(reading.kept(), allow_nan=False, ensure_ascii=False).encode()
    assert Reading("ü", None, {}, "grün").summary == "grün"
