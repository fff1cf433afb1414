"""What a job requires against what a worker has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.controller.workers.matching import (
    checked_capabilities,
    checked_kind,
    checked_requires,
    hash_of,
    queue_kind,
    satisfies,
    waiting_for,
)
from pollwise.errors import JobError
from pollwise.runtime.jobs import NAME_LENGTH_MAX


@pytest.mark.parametrize(
    ("has", "wanted", "met"),
    [
        ("ios", "ios", True),
        ("ios", "macos", False),
        (["ios", "macos"], "macos", True),
        ("ios", ["macos", "ios"], True),
        (["a", "b"], ["c", "b"], True),
        ("ios", [], False),
        (8, 8, True),
        (8, 8.0, True),
        (8, "8", True),
        ("8", 8, True),
        (True, True, True),
        (True, "true", True),
        (True, 1, False),
        (1, True, False),
        (False, False, True),
        (16, ">=8", True),
        (8, ">=8", True),
        (7.5, ">=8", False),
        ("16", ">=8", True),
        ("lots", ">=8", False),
        (True, ">=1", False),
        (8, "> 7", True),
        (8, "<8", False),
        (8, "<=8", True),
        (-1, "<0", True),
        ("3.11", ">=3.9", True),
        ("3.9", ">=3.11", False),
        ("16.2.1", ">=16.2", True),
        ("16", ">=16.0.0", True),
        (3.11, ">=3.9.1", False),
        ([4, 16], ">=8", True),
        ("windows", "!=windows", False),
        ("ios", "!=windows", True),
        (["ios", "windows"], "!=windows", False),
        ("ios", "==ios", True),
        (8, "==8", True),
        ("<b>", "==<b>", True),
        (16, ["<4", ">8"], True),
    ],
)
def test_one_requirement(has: Any, wanted: Any, met: bool) -> None:
    assert satisfies({"x": has}, "build", {"x": wanted}) is met


def test_what_is_not_stated_is_not_there() -> None:
    assert not satisfies({}, "build", {"x": "!=1"})
    assert satisfies({}, "build", {})


def test_kinds_restrict() -> None:
    assert satisfies({"kinds": ["build"]}, "build", {})
    assert not satisfies({"kinds": ["build"]}, "test", {})
    assert satisfies({"kinds": "test"}, "test", {})


def test_why_nobody_can_take_it() -> None:
    live: list[Any] = [{"platform": "ios", "gb": 4}, {"platform": "linux", "gb": 16}]
    assert waiting_for("build", {"gb": ">=8"}, live) is None
    assert waiting_for("build", {"gb": ">=32"}, live) == "no live worker has gb >= 32"
    assert waiting_for("build", {"platform": "macos"}, live) == (
        "no live worker has platform = macos"
    )
    both = waiting_for("build", {"platform": "ios", "gb": ">=8"}, live)
    assert both == "no live worker of kind 'build' has all of platform = ios and gb >= 8"
    assert waiting_for("build", {}, []) == "no live worker"
    assert waiting_for("build", {"os": ["a", "b"]}, live) == ('no live worker has os in ["a", "b"]')
    assert waiting_for("build", {"fast": True}, live) == "no live worker has fast = true"


def test_the_kind_in_the_queue() -> None:
    assert queue_kind("build", {}) == "build"
    one = queue_kind("build", {"a": 1, "b": 2})
    assert one == queue_kind("build", {"b": 2, "a": 1})
    assert one != queue_kind("build", {"a": 1, "b": 3})
    assert one.startswith("build#")
    longest = checked_kind("x" * 183)
    assert len(queue_kind(longest, {"a": 1})) == NAME_LENGTH_MAX


@pytest.mark.parametrize("wrong", [[], "x", {"a": None}, {"a": {}}, {"a": []}, {1: 2}, {"a\n": 1}])
def test_bad_ones_are_refused(wrong: Any) -> None:
    with pytest.raises(JobError):
        checked_requires(wrong)
    with pytest.raises(JobError):
        checked_capabilities(wrong)


def test_bounds() -> None:
    checked_requires({f"x{n}": "y" * 100 for n in range(20)})
    with pytest.raises(JobError, match="at most 20"):
        checked_requires({f"x{n}": 1 for n in range(21)})
    with pytest.raises(JobError, match="1 to 20"):
        checked_requires({"x": list(range(21))})
    with pytest.raises(JobError, match="at most 50"):
        checked_capabilities({f"x{n}": 1 for n in range(51)})
    for number in (float("nan"), float("inf"), 1e300):
        with pytest.raises(JobError):
            checked_requires({"x": number})


plain = st.one_of(
    st.booleans(),
    st.integers(-1000, 1000),
    st.floats(-1e6, 1e6),
    st.text("abcxyz0189.<>=! ", min_size=1, max_size=10),
)


@given(
    st.dictionaries(st.sampled_from("abc"), st.one_of(plain, st.lists(plain, min_size=1))),
    st.dictionaries(st.sampled_from("abc"), st.one_of(plain, st.lists(plain, min_size=1))),
)
def test_matching_never_fails_on_what_was_checked(has: Any, wanted: Any) -> None:
    try:
        checked_capabilities(has)
        checked_requires(wanted)
    except JobError:
        return
    met = satisfies(has, "build", wanted)
    reason = waiting_for("build", wanted, [has])
    assert met is (reason is None)
    assert hash_of(wanted) == hash_of(dict(reversed(wanted.items())))
