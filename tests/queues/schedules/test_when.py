"""The ticks of a schedule: daylight saving, grids, missed ticks, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.queues.schedules.when import When

ZURICH, SYDNEY = "Europe/Zurich", "Australia/Sydney"


def local(tz: str, *moment: int) -> float:
    return datetime(*moment, tzinfo=ZoneInfo(tz)).timestamp()  # type: ignore[misc,arg-type]


def ticks(when: When, after: float, count: int) -> list[str]:
    found, moment = [], after
    for _ in range(count):
        tick = when.after(moment)
        assert tick is not None
        assert tick > moment
        moment = tick
        found.append(datetime.fromtimestamp(tick, ZoneInfo(when.tz)).strftime("%d %H:%M%z"))
    return found


@pytest.mark.parametrize(
    ("tz", "cron", "after", "wanted"),
    [
        # The hour that is missing: in Zurich on 29 March, in Sydney on 4 October.
        (ZURICH, "30 2 * * *", (2026, 3, 28, 12), ["29 03:00+0200", "30 02:30+0200"]),
        (ZURICH, "0,30 2 * * *", (2026, 3, 28, 12), ["29 03:00+0200", "30 02:00+0200"]),
        (ZURICH, "0 * * * *", (2026, 3, 29, 0), ["29 01:00+0100", "29 03:00+0200"]),
        (ZURICH, "*/30 2 * * *", (2026, 3, 28, 12), ["30 02:00+0200", "30 02:30+0200"]),
        (SYDNEY, "30 2 * * *", (2026, 10, 3, 12), ["04 03:00+1100", "05 02:30+1100"]),
        (SYDNEY, "0 * * * *", (2026, 10, 4, 0), ["04 01:00+1000", "04 03:00+1100"]),
        # The hour that is there twice: in Zurich on 25 October, in Sydney on 5 April.
        (ZURICH, "30 2 * * *", (2026, 10, 24, 12), ["25 02:30+0200", "26 02:30+0100"]),
        (
            ZURICH, "0 * * * *", (2026, 10, 25, 1),
            ["25 02:00+0200", "25 02:00+0100", "25 03:00+0100"],
        ),
        (SYDNEY, "30 2 * * *", (2026, 4, 4, 12), ["05 02:30+1100", "06 02:30+1000"]),
        (
            SYDNEY, "*/30 2 * * *", (2026, 4, 4, 12),
            ["05 02:00+1100", "05 02:30+1100", "05 02:00+1000", "05 02:30+1000", "06 02:00+1000"],
        ),
    ],
)  # fmt: skip
def test_daylight_saving(tz: str, cron: str, after: tuple[int, ...], wanted: list[str]) -> None:
    when = When.checked(cron, tz=tz)
    assert ticks(when, local(tz, *after), len(wanted)) == wanted


def test_a_start_within_the_second_of_two_equal_hours_goes_forward() -> None:
    when = When.checked("30 2 * * *", tz=ZURICH)
    second = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo(ZURICH)).timestamp()
    assert ticks(when, second, 1) == ["26 02:30+0100"]


def test_steps_are_counted_from_1970() -> None:
    when = When.checked(every="10m")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    assert when.after(noon) == noon + 600
    assert when.after(noon + 1) == noon + 600
    assert When.checked(every=timedelta(hours=2)).after(noon + 1) == noon + 7200


def test_one_moment() -> None:
    at = local(ZURICH, 2026, 12, 24, 8)
    for given_ in ("2026-12-24 08:00", "2026-12-24T08:00:00", datetime(2026, 12, 24, 8)):  # noqa: DTZ001
        assert When.checked(at=given_, tz=ZURICH).at == at
    assert When.checked(at="2026-12-24T08:00:00+01:00").at == at
    when = When.checked(at=at)
    assert (when.after(at - 1), when.after(at)) == (at, None)
    assert (when.due(at, at), when.due(at, at - 1)) == ([at], [])


crons = st.sampled_from(
    [
        "*/5 * * * *", "30 2 * * *", "0 */7 * * *", "15,45 1-3 * * *", "0 0 1 * *", "0 12 * * MON",
        "*/20 2 * * *", "0 0 L * *", "10 3 29 2 *", "*/30 0 3 * * *",
    ]
)  # fmt: skip
zones = st.sampled_from(["UTC", ZURICH, SYDNEY, "America/St_Johns", "Asia/Kathmandu"])
moments = st.floats(1.76e9, 1.80e9)


@settings(max_examples=40, deadline=None)
@given(cron=crons, tz=zones, start=moments, days=st.floats(0, 12), most=st.integers(1, 20))
def test_due_ticks_are_those_that_steps_forward_find(
    cron: str, tz: str, start: float, days: float, most: int
) -> None:
    when = When.checked(cron, tz=tz)
    first = when.after(start)
    assert first is not None
    now = first + days * 86400
    chain = [first]
    while (tick := when.after(chain[-1])) is not None and tick <= now:
        chain.append(tick)
    assert all(one < two for one, two in pairwise(chain))
    assert when.due(first, now, most) == chain[-most:]
    assert when.after(now) == when.after(chain[-1])


@settings(max_examples=60, deadline=None)
@example(every=1.4481369741261005, start=1760896446.0, share=50.0, most=1)  # rounded upwards
@given(every=st.floats(1, 1e6), start=moments, share=st.floats(0, 50), most=st.integers(1, 20))
def test_due_steps(every: float, start: float, share: float, most: int) -> None:
    when = When.checked(every=every)
    first = when.after(start)
    assert first is not None
    now = first + share * every
    chain = [first]
    while (tick := when.after(chain[-1])) is not None and tick <= now:
        chain.append(tick)
    assert when.due(first, now, most) == chain[-most:]


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"cron": "* 25 * * *"}, "the hour '25'"),
        ({"cron": "* * * 13 *"}, "the month '13'"),
        ({"cron": "x * * * *"}, "the minute 'x'"),
        ({"cron": "* * 0 * *"}, "the day of the month '0'"),
        ({"cron": "* * * * 8"}, "the day of the week '8'"),
        ({"cron": "60 * * * * *"}, "the second '60'"),
        ({"cron": "0 0 30 2 *"}, "the day of the month '30'"),
        ({"cron": "* * * *"}, "must have five fields"),
        ({"cron": "@daily"}, "must have five fields"),
        ({"cron": "*" * 300}, "at most"),
        ({"cron": 5}, "must be text"),
        (
            {"cron": "* * * * *", "tz": "Zurich"},
            "'Zurich' is not a time zone of this machine; give a name",
        ),
        ({"cron": "* * * * *", "tz": "europe/zurich"}, "did you mean 'Europe/Zurich'"),
        ({"cron": "* * * * *", "tz": "../../etc/passwd"}, "time zone"),
        ({"every": "1h", "tz": ZURICH}, "has no effect"),
        ({"every": "0.5s"}, "from 1s"),
        ({"every": "-1s"}, "every"),
        ({"at": "24.12.2026"}, "'2026-12-24 08:00'"),
        ({"at": True}, "at = True"),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "before the year 2200"),
        ({"at": -5}, "at = -5"),
        ({}, "one of"),
        ({"cron": "* * * * *", "at": 5}, "only one"),
    ],
)
def test_what_cannot_be_read_is_refused(given_: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        When.checked(**given_)
    assert told in str(raised.value)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789*/,-LW#?MONJAN @", max_size=40))
def test_any_text_is_a_cron_expression_or_refused(text: str) -> None:
    try:
        when = When.checked(text)
    except ConfigError:
        return
    assert when.after(1.76e9) is not None


def test_how_it_is_shown() -> None:
    assert str(When.checked("*/5  * * * *", tz=ZURICH)) == "*/5 * * * * Europe/Zurich"
    assert str(When.checked("0 3 * * *")) == "0 3 * * *"
    assert str(When.checked(every=90)) == "every 1m30s"
    assert str(When.checked(at="2026-12-24 08:00", tz=ZURICH)) == (
        "at 2026-12-24 08:00:00 Europe/Zurich"
    )
