"""Hours that recur on some days, and maintenance windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.alerts.quiet import DAYS, Quiet
from pollwise.alerts.windows import (
    NAMES_MAX,
    NOTE_MAX,
    MaintenanceWindow,
    MaintenanceWindows,
    moment_of,
    read_window,
)
from pollwise.errors import ConfigError


def at(text: str) -> float:
    return moment_of(text, "at")


# Days

WEEKEND = "Sat,Sun 22:00-04:00 Europe/Zurich"


@pytest.mark.parametrize(
    ("hours", "when", "ends"),
    [
        (WEEKEND, "2026-11-13 23:00 Europe/Zurich", None),  # Friday
        (WEEKEND, "2026-11-14 03:00 Europe/Zurich", None),  # began on Friday
        (WEEKEND, "2026-11-14 22:00 Europe/Zurich", "2026-11-15 04:00 Europe/Zurich"),
        (WEEKEND, "2026-11-16 03:59 Europe/Zurich", "2026-11-16 04:00 Europe/Zurich"),  # of Sunday
        (WEEKEND, "2026-11-16 22:00 Europe/Zurich", None),
        ("mon-fri 08:00-18:00", "2026-11-16 08:00 UTC", "2026-11-16 18:00 UTC"),
        ("Mon–Fri 08:00-18:00", "2026-11-15 08:00 UTC", None),
        ("Sat-Mon 08:00-18:00", "2026-11-16 08:00 UTC", "2026-11-16 18:00 UTC"),
        ("Sunday 00:00-24:00", "2026-11-15 00:00 UTC", "2026-11-16 00:00 UTC"),
        ("Sunday 00:00-24:00", "2026-11-16 00:00 UTC", None),
        # Clocks are set back at 03:00 and forward at 02:00.
        ("Sun 02:00-04:00 Europe/Zurich", "2026-10-25T02:30+02:00", "2026-10-25T04:00+01:00"),
        ("Sun 02:00-04:00 Europe/Zurich", "2026-03-29T03:30+02:00", "2026-03-29T04:00+02:00"),
    ],
)
def test_hours_of_some_days_begin_on_these_days(hours: str, when: str, ends: str | None) -> None:
    found = Quiet.parsed(hours)
    assert found.ends(at(when)) == (None if ends is None else at(ends))
    assert Quiet.parsed(str(found)) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Sut 02:00-04:00", "'Sut' is not a day; did you mean 'Sun'"),
        ("Sat, 02:00-04:00", "'' is not a day"),
        ("Sat,Sun", "must have the form"),
        ("00:00-24:00", "begins when it ends"),
        ("Sat 02:00-02:00", "begins when it ends"),
        ("Sat 02:00-24:30", "invalid hour"),
        ("Sat 02:00-04:00 Mars/Olympus", "every: 'Mars/Olympus' is not a known time zone"),
        (3, "every = 3 must have the form"),
    ],
)
def test_hours_that_cannot_be_meant_are_refused(text: Any, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Quiet.parsed(text, "every")
    assert error in str(refused.value)


@given(
    st.integers(1_600_000_000, 1_900_000_000),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.times(),
    st.integers(1, 23 * 60),
    st.sampled_from(["UTC", "Europe/Zurich", "America/St_Johns", "Australia/Lord_Howe"]),
)
def test_hours_begin_where_they_say(
    when: int, days: set[str], start: Any, minutes: int, zone: str
) -> None:
    first = start.replace(second=0, microsecond=0, tzinfo=None)
    end = (
        datetime.combine(datetime(2000, 1, 1, tzinfo=UTC), first) + timedelta(0, minutes * 60)
    ).time()
    hours = Quiet.parsed(f"{','.join(days)} {first:%H:%M}-{end:%H:%M} {zone}")
    begin = hours.begins(when)
    assert begin >= when
    ends = hours.ends(begin)
    # Where a clock change skips them, they do not take place.
    assert ends is None or ends > begin


# Windows


def window(**table: Any) -> MaintenanceWindow:
    wrong: list[str] = []
    found = read_window(table, NOW, wrong.append, targets={"front", "back"}, groups={"shop"})
    assert found is not None, wrong
    return found


NOW = at("2026-11-16 12:00 UTC")
HOUR = 3600.0


def test_a_window_covers_its_targets_its_groups_or_all() -> None:
    windows = MaintenanceWindows()
    assert windows.covers("front", "shop", NOW) is None
    named = window(targets=["front"], **{"for": "1h"})
    grouped = window(groups="shop", **{"for": "2h"})
    windows.set_file([named])
    assert windows.set_stored([grouped])
    assert not windows.set_stored([grouped])
    assert windows.covers("front", None, NOW) == NOW + HOUR
    assert windows.covers("front", "shop", NOW) == NOW + 2 * HOUR
    assert windows.covers("back", None, NOW) is None
    assert windows.covers("back", "shop", NOW + 2 * HOUR) is None
    assert windows.set_stored([window(all=True, end="2026-11-16 15:00 UTC")])
    assert windows.covers("anything", "else", NOW) == NOW + 3 * HOUR
    assert [each.whom for each in windows] == ["front", "all targets"]
    assert len(windows.of("front", "shop")) == 2


def test_a_window_recurs_within_its_first_and_last_time() -> None:
    found = window(
        all=True, every="12:00-13:00", start="2026-11-17 12:30 UTC", end="2026-11-18 12:30 UTC"
    )
    day = 24 * HOUR
    assert found.until(NOW) is None
    assert found.next(NOW) == NOW + day + HOUR / 2
    assert found.until(NOW + day) is None
    assert found.until(NOW + day + HOUR / 2) == NOW + day + HOUR
    assert found.next(NOW + day + HOUR / 2) is None  # under way
    assert found.until(NOW + 2 * day) == NOW + 2 * day + HOUR / 2
    assert found.next(NOW + 2 * day + HOUR) is None
    said = found.as_dict(NOW)
    assert (said["every"], said["active_until"]) == ("12:00-13:00 UTC", None)


def test_a_window_can_be_ended_early() -> None:
    once = window(targets="front", **{"for": "1h"})
    assert once.ended(NOW + 60).until(NOW + 60) is None
    recurring = window(targets="front", every="11:00-13:00")
    ended = recurring.ended(NOW)
    assert ended.until(NOW) is None
    assert ended.until(NOW + 24 * HOUR) == NOW + 25 * HOUR
    for over in (once.ended(NOW + 60), window(all=True, every="14:00-15:00")):
        with pytest.raises(ConfigError, match="not under way"):
            over.ended(NOW + 120)


@pytest.mark.parametrize(
    ("table", "errors"),
    [
        (3, ["must be a table"]),
        ({}, ["give targets, groups, or all", "give every, or end, or for"]),
        ({"all": True, "targets": ["front"], "for": "1h"}, ["give targets, groups, or all"]),
        ({"all": 1, "for": "1h"}, ["all = 1 must be true or false"]),
        (
            {"targets": ["frnt"], "groups": ["shp"], "evry": 1, "for": "1h"},
            ["did you mean 'every'", "did you mean 'front'", "did you mean 'shop'"],
        ),
        ({"targets": [3], "for": "1h"}, ["list of names"]),
        ({"targets": ["x"] * (NAMES_MAX + 1), "for": "1h"}, ["more than the 1000"]),
        ({"all": True, "for": "soon", "note": "x" * (NOTE_MAX + 1)}, ["note", "for = 'soon'"]),
        ({"all": True, "for": "1h", "every": "12:00-13:00"}, ["leave out end and every"]),
        ({"all": True, "for": "400d"}, ["at most 366 days"]),
        ({"all": True, "end": "2026-11-16 11:00 UTC"}, ["must be after the start"]),
        ({"all": True, "start": "2026-11-15 10:00 UTC", "for": "1h"}, ["in the past"]),
        ({"all": True, "start": "today", "end": 3}, ["start = 'today'", "end = 3"]),
        ({"all": True, "end": "2026-11-17 10:00"}, ["no time zone"]),
        ({"all": True, "end": datetime(2026, 11, 17)}, ["no time zone"]),  # noqa: DTZ001
        ({"all": True, "end": "2026-11-17 10:00 Mars/Olympus"}, ["must be a time such as"]),
        ({"all": True, "every": "Sut 12:00-13:00"}, ["every = 'Sut 12:00-13:00': 'Sut'"]),
    ],
)
def test_everything_that_is_wrong_with_a_window_is_told(table: Any, errors: list[str]) -> None:
    wrong: list[str] = []
    known: dict[str, Any] = {"targets": {"front", "x"}, "groups": {"shop"}}
    assert read_window(table, NOW, wrong.append, **known) is None
    assert len(wrong) == len(errors), wrong
    for said, error in zip(wrong, errors, strict=True):
        assert error in said


def test_a_window_of_a_file_needs_a_start_and_may_be_over() -> None:
    wrong: list[str] = []
    assert read_window({"all": True, "for": "1h"}, NOW, wrong.append, from_file=True) is None
    assert wrong == ["for needs a start"]
    over = {"all": True, "start": datetime(2020, 1, 1, tzinfo=UTC), "for": "1h"}
    assert read_window(over, NOW, wrong.append, from_file=True) is not None
