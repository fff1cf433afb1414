"""What is decided at a tick, and what is kept of a schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.schedules.record import (
    Schedule,
    checked_schedule,
    note_of,
    schedule_from,
)
from pollwise.queues.schedules.ticking import CATCH_UP_MAX, MISSED_AFTER, plan_tick
from pollwise.queues.schedules.when import When
from pollwise.runtime.jobs import NewJob
from pollwise.testing import VirtualClock

NOON = 1_767_268_800.0


def schedule(**given_: Any) -> Schedule:
    made = checked_schedule("s", NewJob("mail", {"a": 1}), When.checked(every="1h"))
    return replace(made, next_at=NOON, **given_)


def test_nothing_is_planned_before_the_tick_in_a_pause_or_at_the_end() -> None:
    assert plan_tick(schedule(), NOON - 0.001, busy=False) is None
    assert plan_tick(schedule(paused=True), NOON, busy=False) is None
    assert plan_tick(replace(schedule(), next_at=None), NOON, busy=False) is None


def test_missed_ticks() -> None:
    now = NOON + 3 * 3600 + 10
    one = plan_tick(schedule(), now, busy=False)
    assert one is not None
    assert (one.tick, one.missed) == (NOON + 3 * 3600, (NOON, NOON + 2 * 3600))
    assert one.schedule.next_at == NOON + 4 * 3600
    every = plan_tick(schedule(catch_up="all"), now, busy=False)
    assert every is not None
    assert (every.tick, every.missed) == (NOON, None)
    assert every.schedule.next_at == NOON + 3600
    none = plan_tick(schedule(catch_up="none"), now, busy=False)
    assert none is not None
    assert (none.tick, none.missed) == (NOON + 3 * 3600, (NOON, NOON + 2 * 3600))
    late = plan_tick(schedule(catch_up="none"), now + MISSED_AFTER, busy=False)
    assert late is not None
    assert (late.tick, late.missed) == (None, (NOON, NOON + 3 * 3600))


def test_no_more_than_a_hundred_are_caught_up() -> None:
    plan, count, now = plan_tick(schedule(catch_up="all"), NOON + 1e7, busy=False), 0, NOON + 1e7
    assert plan is not None
    assert plan.missed is not None
    while plan is not None:
        count += 1
        plan = plan_tick(plan.schedule, now, busy=False)
    assert count == CATCH_UP_MAX


def test_overlap() -> None:
    skipped = plan_tick(schedule(), NOON, busy=True)
    assert skipped is not None
    assert (skipped.tick, skipped.skipped, skipped.schedule.last_put) == (None, True, None)
    queued = plan_tick(schedule(overlap="queue"), NOON, busy=True)
    assert queued is not None
    assert (queued.tick, queued.skipped) == (NOON, False)


def test_jitter_is_the_same_for_all_workers_and_differs_from_tick_to_tick() -> None:
    made = schedule(jitter=10.0)
    times = [made.job(NOON + n).run_at or 0.0 for n in range(200)]
    assert times == [made.job(NOON + n).run_at for n in range(200)]
    shares = [time - NOON - n for n, time in enumerate(times)]
    assert all(0 <= share < 10 for share in shares)
    assert max(shares) > 9
    assert min(shares) < 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(payload=values, paused=st.booleans(), last=st.none() | st.text("0123456789", min_size=1))
def test_a_note_holds_all_of_a_schedule(payload: Any, paused: bool, last: str | None) -> None:
    job = NewJob("mail", payload, key="k", priority=-3, headers={"h": "☃"})
    when = When.checked("0 3 * * *", tz="Europe/Zurich")
    made = checked_schedule("s", job, when, catch_up="all", overlap="queue", jitter=3)
    made = replace(made, paused=paused, next_at=NOON, last_tick=1.5, last_put=2.5, by="ann",
                   set_at=3.5, origin="code", last_job=last)  # fmt: skip
    assert schedule_from("s", note_of(made).with_job(last)) == made


@given(st.text(max_size=40) | values.map(repr))
def test_any_other_note_is_not_a_schedule(text: str) -> None:
    assert schedule_from("s", text) is None


def test_a_clock_that_is_set_back_puts_nothing_twice() -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        await queue.schedules.set("s", NewJob("mail"), every="1h", overlap="queue")
        await clock.advance(3601)
        before = (await queue.schedules.read()).notes["s"]
        assert (await queue.schedules.put_tick("s", before)).outcome == "put"
        after = (await queue.schedules.read()).notes["s"]
        tick = schedule_from("s", after)
        assert tick is not None
        assert tick.last_tick is not None
        # To a clock that was set back by half an hour the next tick is an hour and a half away.
        assert plan_tick(tick, tick.last_tick - 1800, busy=False) is None
        assert (await queue.schedules.put_tick("s", after)).outcome == "early"
        # A clock that had been a year ahead moved the next tick; setting it again brings it back.
        far = replace(tick, next_at=tick.last_tick + 365 * 86400)
        await queue.schedules.remove("s")
        await queue.schedules.swap_given("s", None, note_of(far).with_job(None))
        again = await queue.schedules.set("s", NewJob("mail"), every="1h", overlap="queue")
        assert again.next_at == tick.next_at

    clock.run(main())


def test_a_queue_has_room_for_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        for n in range(1000):
            await queue._swap_schedule(swap_of(f"s{n}"))
        with pytest.raises(ConfigError, match="1000 schedules, which is the limit"):
            await queue.schedules.set("one more", NewJob("mail"), every="1h")
        await queue.schedules.set("s5", NewJob("mail"), every="1h")

    def swap_of(name: str) -> Any:
        from pollwise.queues.notes import ScheduleSwap

        return ScheduleSwap(name, None, note_of(schedule()).with_job(None))

    clock.run(main())
