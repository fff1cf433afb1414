"""The relay: keys claimed, records handled in order, each handler with its own progress."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pollwise.core.retry import Retry
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, HandlerError, Reject, Snooze
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.records import KeyClaim, KeySettlement, Record
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.runtime.events import (
    KeyBlocked,
    KeyGivenBack,
    PatternUnmatched,
    PollFinished,
    RecordDead,
    RecordFellBack,
    RecordHandled,
    RecordRetried,
    RecordUnhandled,
    RelayStarted,
)
from tests.outbox.relays import Bench


def test_records_of_a_key_are_handled_in_order_and_completed() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()
        outbox.handle("order.*")(bench.recorder("publish"))
        await bench.put(50, key="a")
        await bench.put(50, key="b")
        async with outbox.running():
            await bench.clock.advance(5)
        assert bench.payloads("publish").count(49) == 2
        stats = await bench.store.stats()
        assert (stats.ready, stats.leased, stats.done, stats.oldest_age) == (0, 0, 0, None)
        assert len(bench.events(RecordHandled)) == 100

    bench.run(main())


def test_order_within_each_key() -> None:
    bench = Bench()
    seen: dict[str | None, list[int]] = {}

    async def main() -> None:
        outbox = bench.outbox(records_per_key=3, batch=2, concurrency=3)

        @outbox.handle("*")
        async def note(record: Record) -> None:
            await bench.clock.sleep(0.01 * (record.payload % 3))
            seen.setdefault(record.key, []).append(record.payload)

        for number in range(40):
            await bench.store.put(NewRecord("k", number, f"key-{number % 4}"))
        async with outbox.running():
            await bench.clock.advance(30)
        assert sum(map(len, seen.values())) == 40
        assert all(numbers == sorted(numbers) for numbers in seen.values())

    bench.run(main())


def test_what_is_claimed_together_and_handled_at_once_is_settled_by_one_call() -> None:
    """Though only a quarter of it is handled at a time."""
    settled: list[int] = []

    class Counting(MemoryOutboxStore):
        async def _settle(self, lane: str, ends: list[KeySettlement]) -> list[KeyClaim]:
            settled.append(len(ends))
            return await super()._settle(lane, ends)

    bench = Bench()
    bench.store = Counting(clock=bench.clock)

    async def main() -> None:
        outbox = bench.outbox(batch=100, concurrency=25)
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.put(1)
            await bench.clock.advance(5)  # so that it knows how long a handler takes
            await bench.store.put([NewRecord("k", n, f"key-{n}") for n in range(100)])
            await bench.clock.advance(5)
        assert settled == [1, 100]

    bench.run(main())


def test_a_slow_key_holds_nobody_else_up() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*")
        async def note(record: Record) -> None:
            if record.key == "slow":
                await bench.clock.sleep(600)
            bench.calls.append((record.key or "", record.payload))

        await bench.put(3, key="slow")
        await bench.put(100, key="quick")
        await bench.put(100, key=None)
        async with outbox.running():
            await bench.clock.advance(10)
            assert len(bench.payloads("quick")) == 100
            assert sorted(bench.payloads("")) == list(range(100))
            assert not bench.payloads("slow")

    bench.run(main())


def test_each_handler_has_its_own_progress_and_attempts() -> None:
    bench = Bench()
    attempts: list[tuple[int, float]] = []

    async def main() -> None:
        outbox = bench.outbox()
        outbox.handle("order.*")(bench.recorder("first"))

        @outbox.handle("order.*", retry=Retry.fixed("10s", attempts=3))
        async def second(record: Record) -> None:
            attempts.append((record.attempt, bench.clock.now()))
            if len(attempts) < 3:
                raise OSError("down")

        outbox.handle("*")(bench.recorder("third"))
        await bench.put(2)
        async with outbox.running():
            await bench.clock.advance(100)
        assert bench.payloads("first") == [0, 1]
        assert bench.payloads("third") == [0, 1], "tried though the second had failed"
        assert [number for number, _ in attempts] == [1, 2, 3, 1]
        waits = [after[1] - before[1] for before, after in pairwise(attempts[:3])]
        assert waits == pytest.approx([10, 10], abs=0.1)
        assert [e.attempt for e in bench.events(RecordRetried)] == [1, 2]
        for event in bench.events(RecordRetried):  # where in the handler, and nothing of ours
            assert event.traceback.count("File ") == 1, event.traceback

    bench.run(main())


def test_two_handlers_with_delays_of_their_own_wait_for_the_soonest() -> None:
    bench = Bench()
    at: dict[str, list[float]] = {"quick": [], "slow": []}

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*", retry=Retry.fixed("2s", attempts=10))
        async def quick(record: Record) -> None:
            at["quick"].append(bench.clock.now())
            if len(at["quick"]) < 5:
                raise OSError("no")

        @outbox.handle("*", retry=Retry.fixed("30s", attempts=10))
        async def slow(record: Record) -> None:
            at["slow"].append(bench.clock.now())
            if len(at["slow"]) < 2:
                raise OSError("no")

        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(60)
        assert len(at["quick"]) == 5
        assert at["slow"][1] - at["slow"][0] == pytest.approx(30, abs=0.1)
        assert (await bench.store.stats()).ready == 0

    bench.run(main())


@pytest.mark.parametrize("on_dead", ["block", "continue"])
def test_a_dead_record_blocks_its_key_or_lets_it_pass(on_dead: str) -> None:
    bench = Bench(on_dead=on_dead)

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=2))
        async def publish(record: Record) -> None:
            if record.payload == 1:
                raise OSError("broker down")
            bench.calls.append(("publish", record.payload))

        await bench.put(4)
        await bench.put(1, key="other")
        async with outbox.running():
            await bench.clock.advance(60)
        stats = await bench.store.stats()
        (dead,) = await bench.store.records("dead")
        assert dead.record.payload == 1
        assert dead.error == "publish: OSError: broker down"
        (event,) = bench.events(RecordDead)
        assert (event.error, event.handlers, event.gave_up) == (dead.error, (), ("publish",))
        if on_dead == "block":
            assert sorted(bench.payloads("publish")) == [0, 0]
            assert (stats.keys_blocked, stats.behind, stats.dead) == (1, 2, 1)
            (blocked,) = await bench.store.blocked()
            assert (blocked.key, blocked.record_id, blocked.behind) == ("k", dead.record.id, 2)
            assert [e.key for e in bench.events(KeyBlocked)] == ["k"]
        else:
            assert sorted(bench.payloads("publish")) == [0, 0, 2, 3]
            assert (stats.keys_blocked, stats.behind, stats.dead) == (0, 0, 1)
            assert not bench.events(KeyBlocked)

    bench.run(main())


@pytest.mark.parametrize("act", ["retry", "drop"])
def test_retry_and_skip_unblock_a_key(act: str) -> None:
    bench = Bench()
    fixed = False

    async def main() -> None:
        nonlocal fixed
        outbox = bench.outbox()
        outbox.handle("*")(bench.recorder("audit"))

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=2))
        async def publish(record: Record) -> None:
            if record.payload == 0 and not fixed:
                raise OSError("broker down")
            bench.calls.append(("publish", (record.payload, record.attempt)))

        await bench.put(3)
        async with outbox.running():
            await bench.clock.advance(60)
            assert not bench.payloads("publish")
            fixed = True
            done = bench.store.retry if act == "retry" else bench.store.drop
            assert await done(keys=["k"]) == 1
            await bench.clock.advance(10)
        wanted = [(1, 1), (2, 1)]
        assert bench.payloads("publish") == ([(0, 1), *wanted] if act == "retry" else wanted)
        assert bench.payloads("audit") == [0, 1, 2], "what was done is not done again"
        assert (await bench.store.stats()).keys_blocked == 0

    bench.run(main())


def test_a_record_that_was_retried_by_hand_has_fresh_attempts() -> None:
    bench = Bench()
    attempts = []

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=2))
        async def publish(record: Record) -> None:
            attempts.append(record.attempt)
            raise OSError("down")

        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(20)
            assert await bench.store.retry() == 1
            await bench.clock.advance(20)
        assert attempts == [1, 2, 1, 2]
        assert (await bench.store.stats()).dead == 1

    bench.run(main())


def test_a_fallback_completes_the_record() -> None:
    bench = Bench()
    fell: list[tuple[int, str]] = []

    async def main() -> None:
        outbox = bench.outbox()

        def park(record: Record, error: str) -> None:
            fell.append((record.payload, error))

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=2), fallback=park)
        async def publish(record: Record) -> None:
            raise OSError("down")

        await bench.put(2)
        async with outbox.running():
            await bench.clock.advance(20)
        assert fell == [(0, "OSError: down"), (1, "OSError: down")]
        assert [e.attempt for e in bench.events(RecordFellBack)] == [2, 2]
        assert (await bench.store.stats()).dead == 0

    bench.run(main())


def test_a_fallback_that_fails_leaves_the_record_dead_with_both_reasons() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()

        async def park(record: Record) -> None:
            raise ValueError("no shelf")

        @outbox.handle("*", fallback=park)
        async def publish(record: Record) -> None:
            raise Reject("not ours")

        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(20)
        (dead,) = await bench.store.records("dead")
        assert dead.error == "publish: not ours; its fallback: ValueError: no shelf"

    bench.run(main())


def test_reject_and_what_is_excluded_are_dead_at_once_snooze_uses_no_attempt() -> None:
    bench = Bench()
    snoozed: list[int] = []

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=3, exclude=KeyError))
        async def publish(record: Record) -> None:
            if record.kind == "rejected":
                raise Reject("no such customer")
            if record.kind == "excluded":
                raise KeyError("x")
            snoozed.append(record.attempt)
            if len(snoozed) < 6:
                raise Snooze("5s")

        for kind in ("rejected", "excluded", "snoozed"):
            await bench.store.put(NewRecord(kind))
        async with outbox.running():
            await bench.clock.advance(60)
        dead = await bench.store.records("dead")
        assert [(info.record.kind, info.error) for info in dead] == [
            ("rejected", "publish: no such customer"),
            ("excluded", "publish: KeyError: 'x'"),
        ]
        assert snoozed == [1] * 6

    bench.run(main())


def test_a_record_that_nobody_handles_waits_and_then_is_dead_with_the_reason() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()
        outbox.handle("order.*")(bench.recorder("publish"))
        await bench.put(2, kind="invoice.sent")
        async with outbox.running():
            await bench.clock.advance(120)
            assert (await bench.store.stats()).waiting == 1
            await bench.clock.advance(1200)
        (dead,) = await bench.store.records("dead")
        assert "no handler matches the kind 'invoice.sent'" in (dead.error or "")
        assert len(bench.events(RecordUnhandled)) == 1, "told once a kind"
        (told,) = bench.events(PatternUnmatched)
        assert (told.handler, told.pattern, told.kinds) == ("publish", "order.*", ("invoice.sent",))

    bench.run(main())


@pytest.mark.parametrize("records", [0, 2])
def test_nothing_is_said_of_patterns_over_an_empty_outbox_or_if_not_asked(records: int) -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(check_patterns=not records)
        outbox.handle("order.*")(bench.recorder("publish"))
        if records:
            await bench.put(records, kind="invoice.sent")
        async with outbox.running():
            await bench.clock.advance(1)
        assert not bench.events(PatternUnmatched)

    bench.run(main())


@pytest.mark.parametrize("drain", [None, False, True])
def test_what_it_left_itself_does_not_end_a_fixed_pause(drain: bool | None) -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(batch=10, records_per_key=2, polling=Fixed("2s"), drain=drain)
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.clock.advance(3)
            for key in range(10):
                await bench.put(20, key=f"key-{key}")
            await bench.clock.advance(6.5)
            polls = [each for each in bench.events(PollFinished) if each.found]
            expected = 200 if drain else 20 * len(polls)
            assert len(bench.payloads("publish")) == expected
            assert drain or len(polls) in (4, 5), "one that a put hinted, then every two seconds"

    bench.run(main())


def test_a_stop_before_the_run_counts_once() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()
        outbox.handle("*")(bench.recorder("publish"))
        await bench.put(3)
        outbox.stop()
        await outbox.run()
        assert bench.payloads("publish") == []
        assert (await bench.store.stats()).ready == 3
        async with outbox.running():
            await bench.clock.advance(5)
        assert len(bench.payloads("publish")) == 3

    bench.run(main())


def test_a_stop_finishes_what_runs_and_gives_the_rest_back() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(concurrency=1, grace="10s")
        outbox.handle("*")(bench.recorder("publish", delay=2))
        await bench.put(5)
        await bench.put(5, key="other")
        async with outbox.running():
            await bench.clock.advance(2.5)
        done = len(bench.payloads("publish"))
        assert 1 <= done <= 2
        stats = await bench.store.stats()
        assert (stats.ready, stats.leased) == (10 - done, 0)

    bench.run(main())


def test_a_stop_without_grace_keeps_what_the_first_handlers_did() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(grace=0)
        outbox.handle("*")(bench.recorder("first"))
        outbox.handle("*")(bench.recorder("second", delay=100))
        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(5)
        assert bench.events(KeyGivenBack)[0].reason == "the relay stops"
        again = bench.outbox()
        again.handle("*")(bench.recorder("first"))
        again.handle("*")(bench.recorder("second"))
        async with again.running():
            await bench.clock.advance(5)
        assert bench.calls == [("first", 0), ("second", 0)]

    bench.run(main())


def test_a_lost_lease_cancels_the_handler_and_settles_nothing() -> None:
    bench = Bench()
    cancelled: list[bool] = []

    async def main() -> None:
        outbox = bench.outbox(lease="3s")

        @outbox.handle("*")
        async def publish(record: Record) -> None:
            if not cancelled:
                try:
                    await bench.clock.sleep(100)
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise
            bench.calls.append(("publish", record.payload))

        await bench.put(2)
        async with outbox.running():
            await bench.clock.advance(1.5)
            line = bench.store._lines["=k"]  # type: ignore[attr-defined]
            line.token, line.due = 99, bench.clock.epoch() + 4  # another relay has it
            await bench.clock.advance(20)
        assert cancelled == [True]
        assert bench.payloads("publish") == [0, 1]
        assert [type(e).__name__ for e in bench.told].count("KeyLost") == 1

    bench.run(main())


def test_leases_are_renewed_while_a_handler_runs() -> None:
    bench = Bench()

    async def main() -> None:
        one, other = bench.outbox(lease="3s"), bench.outbox(lease="3s")
        one.handle("*")(bench.recorder("publish", delay=30))
        other.handle("*")(bench.recorder("publish", delay=30))
        await bench.put(1)
        async with one.running(), other.running():
            await bench.clock.advance(60)
        assert bench.payloads("publish") == [0]

    bench.run(main())


def test_plain_handlers_run_in_threads_and_a_timeout_counts_as_a_failure() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*")
        def plain(record: Record) -> None:
            bench.calls.append(("plain", record.payload))

        @outbox.handle("*", timeout="1s", retry=Retry.never())
        async def hangs(record: Record) -> None:
            await bench.clock.sleep(100)

        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(10)
        (dead,) = await bench.store.records("dead")
        assert bench.payloads("plain") == [0]
        assert "HandlerTimeout" in (dead.error or "")

    bench.run(main())


def test_a_receiver_that_asks_to_be_left_alone_is() -> None:
    bench = Bench()
    at: list[float] = []

    class Busy(Exception):
        retry_after = 45.0

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*", retry=Retry.fixed("1s", attempts=3))
        async def publish(record: Record) -> None:
            at.append(bench.clock.now())
            if len(at) == 1:
                raise Busy

        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(100)
        assert at[1] - at[0] == pytest.approx(45, abs=0.1)

    bench.run(main())


def polls(bench: Bench) -> list[tuple[float, int | None, int]]:
    return [(e.interval, e.capacity, e.found) for e in bench.events(PollFinished)]


def test_batch_fill_paces_the_polls_by_keys_as_its_page_says() -> None:
    """Batch 10: below 25 % the interval doubles, up to 8 s; at 100 % it halves; else it stays."""
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(polling=BatchFill("1s", "8s"), batch=10, hints=False)
        outbox.handle("*")(bench.recorder("publish"))

        async def keys(count: int) -> None:
            await bench.store.put([NewRecord("k", 0, f"key-{n}") for n in range(count)])

        async with outbox.running():
            await bench.clock.advance(40)
            assert [round(interval) for interval, _, _ in polls(bench)][:5] == [2, 4, 8, 8, 8]
            bench.told.clear()
            for count in (3, 2, 10, 0):
                await keys(count)
                await bench.clock.advance(9)
        found = {found: round(interval) for interval, _, found in polls(bench) if found}
        assert found == {3: 8, 2: 8, 10: 4}
        assert {capacity for _, capacity, _ in polls(bench)} == {10}
        after_full = [n for _, _, n in polls(bench)].index(10) + 1
        assert polls(bench)[after_full][2] == 0, "a full batch is followed by a poll at once"

    bench.run(main())


def test_a_relay_says_by_which_batch_it_is_paced() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(batch=25)
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.clock.advance(1)
        (told,) = bench.events(RelayStarted)
        assert told.strategy == repr(BatchFill(batch_size=25))

    bench.run(main())


def test_fixed_polling_of_two_seconds() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(polling=Fixed("2s"), hints=False)
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.clock.advance(3600)
        assert 1795 <= len(polls(bench)) <= 1802

    bench.run(main())


def test_hints_wake_the_relay_and_drain_runs_through_a_backlog() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(batch=10, records_per_key=1)
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.clock.advance(30)
            began = bench.clock.now()
            await bench.put(500, key=None)
            while len(bench.calls) < 500:
                await bench.clock.advance(0.001)
            assert bench.clock.now() - began < 0.1

    bench.run(main())


def test_eager_needs_a_relay_in_this_process() -> None:
    outbox = Outbox(MemoryOutboxStore())
    with pytest.raises(ConfigError, match="no relay of this outbox runs"):
        outbox.put(object(), "kind", eager=True)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch = 0 must be a whole number from 1 to 1000"),
        ({"records_per_key": 5000}, "records_per_key = 5000"),
        ({"concurrency": 1.5}, "concurrency = 1.5"),
        ({"lease": "1ms"}, "lease = '1ms'"),
        ({"polling": "fast"}, "is not a strategy"),
        ({"polling": BatchFill(hold="5s")}, "an outbox cannot"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OutboxRunOptions(**options)


def test_handlers_are_checked_when_they_are_registered() -> None:
    outbox = Outbox(MemoryOutboxStore())

    def publish(record: Record) -> None: ...

    outbox.handle("order.*")(publish)
    with pytest.raises(HandlerError, match="a handler named 'publish' already exists"):
        outbox.handle("invoice.*")(publish)
    with pytest.raises(HandlerError, match="give a pattern"):
        outbox.handle()(publish)
    with pytest.raises(HandlerError, match="give a pattern"):

        @outbox.handle  # type: ignore[arg-type]
        def forgotten(record: Record) -> None: ...

    with pytest.raises(HandlerError, match="with one argument, the record"):
        outbox.handle("*", name="none")(lambda: None)
    with pytest.raises(HandlerError, match="pattern = ''"):
        outbox.handle("", name="empty")(publish)
    with pytest.raises(ConfigError, match="is not a Retry"):
        outbox.handle("*", name="retry", retry=3)(publish)  # type: ignore[arg-type]


def test_an_outbox_without_handlers_does_not_run() -> None:
    bench = Bench()

    async def main() -> None:
        with pytest.raises(HandlerError, match="has no handler"):
            await bench.outbox().run()

    bench.run(main())
