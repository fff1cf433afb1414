"""At least once and in order, whatever call to the store fails, and however."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from pollwise.core.retry import Retry
from pollwise.errors import SchemaError, StoreUnavailable
from pollwise.outbox import NewRecord, Outbox
from pollwise.outbox.other_relays import PROVEN_AFTER
from pollwise.outbox.progress import RecordProgress
from pollwise.outbox.records import KeySettlement, Record
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    ChoreFailed,
    HandlersDiffer,
    OutboxMeasured,
    PollFailed,
    RelayResumed,
    RelayStandsBy,
    RelayStarted,
)
from tests.outbox.relays import Bench

Fate = Literal["before", "after"]
KEYS, RECORDS = 3, 4


class Flaky(OutboxStore):
    """A store whose nth call fails: before it did anything, or after (its answer is lost)."""

    fail_at: int = 0
    fate: Fate = "before"
    calls: int = 0

    def _own(self, name: str) -> Callable[..., Any]:
        """The store's own method, behind the one here."""
        found: Callable[..., Any] = getattr(super(), name)
        return found

    async def _shaken(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        failing = self.calls == self.fail_at
        if failing and self.fate == "before":
            raise StoreUnavailable("the line is dead")
        answer = await self._own(name)(*arguments)
        if failing:
            raise StoreUnavailable("the answer is lost")
        return answer

    async def _claim(self, *arguments: Any) -> Any:
        return await self._shaken("_claim", *arguments)

    async def _settle(self, *arguments: Any) -> Any:
        return await self._shaken("_settle", *arguments)

    async def _renew(self, *arguments: Any) -> Any:
        return await self._shaken("_renew", *arguments)

    async def _announce_handlers(self, *arguments: Any) -> Any:
        return await self._shaken("_announce_handlers", *arguments)

    async def _records(self, *arguments: Any) -> Any:
        return await self._shaken("_records", *arguments)

    async def _prune(self, *arguments: Any) -> Any:
        return await self._shaken("_prune", *arguments)


class FlakyStore(Flaky, MemoryOutboxStore):
    """In memory."""


class FlakySqlite(Flaky, SqliteOutboxStore):
    """In a file."""


class Order:
    """Fails when a record comes for the first time before one that was put before it."""

    def __init__(self) -> None:
        self.seen: dict[str | None, list[int]] = {}

    def note(self, record: Record) -> None:
        numbers = self.seen.setdefault(record.key, [])
        if record.payload not in numbers:
            assert record.payload == len(numbers), f"{record.key}: {record.payload} after {numbers}"
            numbers.append(record.payload)

    def check_complete(self, keys: int, records: int) -> None:
        assert len(self.seen) == keys
        assert all(numbers == list(range(records)) for numbers in self.seen.values())


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_every_call_may_fail_once(where: str, fate: Fate, tmp_path: Path) -> None:
    # In a file, every third: what differs there is the kind of a call, of which each has many.
    for n in itertools.count(1, 3 if where == "sqlite" else 1):
        bench, order = Bench(), Order()
        store: Flaky
        if where == "memory":
            store = FlakyStore(clock=bench.clock, keep=1)
        else:
            store = FlakySqlite(tmp_path / f"{n}.db", clock=bench.clock, keep=1)
        store.fail_at, store.fate = n, fate
        bench.store = store

        async def main(bench: Bench = bench, order: Order = order) -> None:
            await bench.store.migrate()
            outbox = bench.outbox(lease="3s", records_per_key=2, grace="5s")

            @outbox.handle("*", retry=Retry.fixed("1s", attempts=None))
            async def publish(record: Record) -> None:
                order.note(record)
                await bench.clock.sleep(1.5)
                if record.payload == 2 and record.attempt < 3:
                    raise OSError("down")

            for number, key in itertools.product(range(RECORDS), range(KEYS)):
                await bench.store.put(NewRecord("k", number, f"key-{key}"))
            async with outbox.running():
                await bench.clock.advance(120)
            order.check_complete(KEYS, RECORDS)
            stats = await bench.store.stats()
            assert (stats.ready, stats.leased, stats.waiting, stats.dead) == (0, 0, 0, 0)
            await bench.store.close()

        bench.run(main())
        if store.calls < n:
            assert n > 30, f"only {n} calls were made"
            return
        told = bench.events(PollFailed) + bench.events(ChoreFailed)
        assert len(told) == 1, f"call {n} failed, and {len(told)} were told of"


@pytest.mark.parametrize("seed", range(30))
def test_random_failures_kills_and_stops(seed: int) -> None:
    """Relays come, fail, stop and are cancelled at random; nothing is lost nor out of order."""
    rng = random.Random(seed)
    bench, order = Bench(), Order()

    class Shaky(FlakyStore):
        async def _shaken(self, name: str, *arguments: Any) -> Any:
            if rng.random() < 0.05:
                raise StoreUnavailable("the line is dead")
            answer = await self._own(name)(*arguments)
            await self.clock.sleep(rng.random() * 0.02)
            if rng.random() < 0.05:
                raise StoreUnavailable("the answer is lost")
            return answer

    bench.store = Shaky(clock=bench.clock)

    def relay() -> Outbox:
        outbox = bench.outbox(
            lease="2s", records_per_key=rng.randint(1, 4), batch=rng.randint(1, 5),
            grace=rng.random(), concurrency=rng.randint(1, 4), seed=rng.randrange(1000),
        )  # fmt: skip

        @outbox.handle("*", retry=Retry.exponential("100ms", "1s", attempts=None))
        async def publish(record: Record) -> None:
            order.note(record)
            await bench.clock.sleep(rng.random() * 0.3)
            if rng.random() < 0.2:
                raise OSError("down")

        return outbox

    async def main() -> None:
        for number, key in itertools.product(range(20), range(5)):
            await bench.store.put(NewRecord("k", number, f"key-{key}"))
        for _ in range(30):
            outbox = relay()
            task = asyncio.ensure_future(outbox.run())
            await bench.clock.advance(rng.random() * 5)
            if rng.random() < 0.5:
                outbox.stop()
            else:
                task.cancel()
            await asyncio.wait([task])
        last = relay()
        task = asyncio.ensure_future(last.run())
        await bench.clock.advance(300)
        last.stop()
        await task
        order.check_complete(5, 20)
        stats = await bench.store.stats()
        assert (stats.ready, stats.leased, stats.waiting, stats.dead) == (0, 0, 0, 0), seed

    bench.run(main())


def test_an_outbox_that_is_not_migrated_is_an_error_at_the_start() -> None:
    bench = Bench()

    class Missing(MemoryOutboxStore):
        async def _announce_handlers(self, *_: Any) -> Any:
            raise SchemaError("run pollwise outbox migrate")

    async def main() -> None:
        outbox = bench.outbox(Missing(clock=bench.clock))
        outbox.handle("*")(bench.recorder("publish"))
        with pytest.raises(SchemaError, match="outbox migrate"):
            async with outbox.running():
                raise AssertionError("it began")

    bench.run(main())


def test_a_relay_that_lacks_handlers_of_a_newer_one_stands_by() -> None:
    bench = Bench()

    async def main() -> None:
        older = bench.outbox(relay="older")
        older.handle("*", name="audit")(bench.recorder("older audit"))
        newer = bench.outbox(relay="newer")
        newer.handle("*", name="audit")(bench.recorder("newer audit"))
        newer.handle("order.*", name="publish")(bench.recorder("newer publish"))
        async with older.running():
            await bench.put(1)
            await bench.clock.advance(10)
            assert bench.payloads("older audit") == [0]
            async with newer.running():
                await bench.clock.advance(46)
                (told,) = bench.events(RelayStandsBy)
                assert (told.relay, told.newer, told.missing) == ("older", "newer", ("publish",))
                for number in range(50):
                    await bench.store.put(NewRecord("order.placed", number, f"key-{number}"))
                    await bench.clock.advance(10)
                assert len(bench.payloads("newer publish")) == 50
                assert len(bench.payloads("newer audit")) == 50
                assert bench.payloads("older audit") == [0], "it completed none without publish"
                assert len(bench.events(RelayStandsBy)) == 1, "said once"
            await bench.clock.advance(31)
            assert len(bench.events(RelayResumed)) == 1
            await bench.put(1)
            await bench.clock.advance(10)
            assert bench.payloads("older audit") == [0, 0]

    bench.run(main())


def test_a_newer_relay_that_lacks_handlers_says_so_and_goes_on() -> None:
    bench = Bench()

    async def main() -> None:
        older = bench.outbox(relay="older")
        older.handle("*", name="audit")(bench.recorder("older audit"))
        older.handle("*", name="publish")(bench.recorder("older publish"))
        newer = bench.outbox(relay="newer")
        newer.handle("*", name="audit")(bench.recorder("newer audit"))
        async with older.running():
            await bench.clock.advance(1)
            async with newer.running():
                (told,) = bench.events(HandlersDiffer)
                assert (told.relay, told.older, told.missing) == ("newer", "older", ("publish",))
                await bench.clock.advance(200)
                assert len(bench.events(HandlersDiffer)) == 1
        assert not bench.events(RelayStandsBy)

    bench.run(main())


def test_two_relays_of_one_name_know_of_each_other() -> None:
    bench = Bench()

    async def main() -> None:
        older, newer = bench.outbox(relay="shop"), bench.outbox(relay="shop")
        older.handle("*", name="audit")(bench.recorder("older"))
        newer.handle("*", name="audit")(bench.recorder("newer"))
        newer.handle("*", name="publish")(bench.recorder("publish"))
        async with older.running():
            await bench.clock.advance(1)
            async with newer.running():
                await bench.clock.advance(40)
                (told,) = bench.events(RelayStandsBy)
                assert (told.relay, told.missing) == ("shop", ("publish",))
                assert told.newer.startswith("shop#"), "which of them"
                runs = [started.instance for started in bench.events(RelayStarted)]
                assert runs == [told.instance, told.newer], "and both are told as they start"
                assert told.instance != told.newer
                await bench.put(1)
                await bench.clock.advance(10)
        assert bench.payloads("publish") == bench.payloads("newer") == [0]
        assert not bench.payloads("older")

    bench.run(main())


def test_the_clocks_of_machines_do_not_say_which_relay_is_newer() -> None:
    bench = Bench()

    async def main() -> None:
        ahead = VirtualClock(bench.clock.epoch() + 3600)
        older = bench.outbox(relay="older", clock=ahead)
        newer = bench.outbox(relay="newer")
        older.handle("*", name="audit")(bench.recorder("older"))
        newer.handle("*", name="audit")(bench.recorder("newer"))
        newer.handle("*", name="publish")(bench.recorder("publish"))
        async with older.running():
            await bench.clock.advance(1)
            async with newer.running():
                await bench.clock.advance(40)
                (told,) = bench.events(RelayStandsBy)
                assert (told.relay, told.newer) == ("older", "newer")

    bench.run(main())


def test_a_relay_that_died_holds_an_older_one_back_for_a_minute_and_a_half_only() -> None:
    bench = Bench()

    async def main() -> None:
        older = bench.outbox(relay="older")
        older.handle("*", name="audit")(bench.recorder("audit"))
        async with older.running():
            await bench.clock.advance(1)
            for age in (0.0, PROVEN_AFTER):
                await bench.clock.advance(age)
                await bench.store.announce_handlers("dead", {"publish": ["*"]}, age)
            await bench.clock.advance(35)
            await bench.put(1)
            await bench.clock.advance(30)
            assert not bench.payloads("audit")
            await bench.clock.advance(60)
            assert bench.payloads("audit") == [0]

    bench.run(main())


def test_a_relay_that_stands_by_still_measures_the_outbox() -> None:
    bench = Bench()

    async def main() -> None:
        older, newer = bench.outbox(relay="older"), bench.outbox(relay="newer")
        older.handle("*", name="audit")(bench.recorder("audit"))
        newer.handle("*", name="audit")(bench.recorder("newer audit"))
        newer.handle("*", name="publish")(bench.recorder("publish"))
        async with older.running():
            await bench.clock.advance(1)
            async with newer.running():
                await bench.clock.advance(60)
                assert bench.events(RelayStandsBy)
                bench.told.clear()
                await bench.clock.advance(600)
                measured = [e for e in bench.events(OutboxMeasured) if e.relay == "older"]
                assert len(measured) >= 6
                assert {event.relays for event in measured} == {2}

    bench.run(main())


def test_a_release_that_crashes_at_its_start_does_not_stop_the_one_that_works() -> None:
    bench = Bench()

    async def main() -> None:
        older = bench.outbox(relay="older")
        older.handle("*", name="audit")(bench.recorder("audit"))
        async with older.running():
            await bench.clock.advance(1)
            for number in range(60):  # each new run dies without leaving, within its probation
                await bench.store.announce_handlers(f"new#{number}", {"publish": ["*"]}, 0.0)
                await bench.put(1)
                await bench.clock.advance(10)
            assert len(bench.payloads("audit")) == 60
        assert not bench.events(RelayStandsBy)

    bench.run(main())


def test_an_unknown_kind_is_left_to_a_newer_relay_that_has_just_come() -> None:
    """Within the time in which the older one does not stand by yet."""
    bench = Bench()

    async def main() -> None:
        older = bench.outbox(relay="older")
        older.handle("order.*", name="publish")(bench.recorder("older"))
        async with older.running():
            await bench.clock.advance(5)
            newer = bench.outbox(relay="newer", hints=False)
            newer.handle("order.*", name="publish")(bench.recorder("newer"))
            newer.handle("invoice.*", name="invoices")(bench.recorder("invoices"))
            async with newer.running():
                await bench.put(1, kind="invoice.sent")
                await bench.clock.advance(40)
                assert bench.events(RelayStandsBy)
                assert bench.payloads("invoices") == [0]

    bench.run(main())


def test_no_poll_is_made_for_others_while_a_relay_is_alone() -> None:
    """An idle relay whose hints are proven polls once in `long_interval`; nothing else."""
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(long_interval="1h")
        outbox.handle("*")(bench.recorder("publish"))
        hints = type(bench.store.hints())
        async with outbox.running():
            original = hints.proven_at
            try:
                hints.proven_at = property(lambda _: 0.0)  # type: ignore[assignment, method-assign]
                await bench.clock.advance(7200)
            finally:
                hints.proven_at = original  # type: ignore[method-assign]
        assert outbox.state() == {}
        assert len([e for e in bench.told if type(e).__name__ == "PollFinished"]) <= 4

    bench.run(main())


def test_a_stop_in_the_middle_of_a_run_does_not_go_on_to_its_end() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(grace="60s")
        outbox.handle("*")(bench.recorder("publish", delay=0.09))
        await bench.put(10)
        async with outbox.running():
            while len(bench.calls) < 2:
                await bench.clock.advance(0.01)
        assert len(bench.calls) == 3, "the one that ran was finished, the next not begun"
        assert (await bench.store.stats()).ready == 7

    bench.run(main())


def test_a_run_that_takes_long_is_settled_as_far_as_it_is() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()
        outbox.handle("*")(bench.recorder("publish", delay=0.4))
        await bench.put(20)
        async with outbox.running():
            await bench.clock.advance(5)
            left = (await bench.store.stats()).ready
            assert 20 - len(bench.calls) <= left + 1 <= 20 - len(bench.calls) + 3

    bench.run(main())


def test_after_a_lapse_records_are_settled_one_by_one() -> None:
    """So that it is known which of them kills its relays."""
    bench = Bench()
    ends: list[int] = []

    class Noting(MemoryOutboxStore):
        async def _settle(self, lane: str, batch: Any) -> Any:
            ends.extend(end.done for end in batch)
            return await super()._settle(lane, batch)

    bench.store = Noting(clock=bench.clock)

    async def main() -> None:
        await bench.put(3)
        assert await bench.store.claim("victim", 1, 10, 2)
        await bench.clock.advance(3)
        outbox = bench.outbox()
        outbox.handle("*")(bench.recorder("publish"))
        async with outbox.running():
            await bench.clock.advance(10)
        assert ends == [1, 2], "the first by itself; the lapses are over then"
        assert bench.payloads("publish") == [0, 1, 2]

    bench.run(main())


class Line(MemoryOutboxStore):
    """A relay's way to a store that others share; once it is cut, the relay is as good as dead."""

    def __init__(self, inner: MemoryOutboxStore) -> None:
        super().__init__(clock=inner.clock)
        self._inner, self._hints = inner, inner.hints()
        self.cut = False

    def _through(self) -> MemoryOutboxStore:
        if self.cut:
            raise StoreUnavailable("the relay is dead")
        return self._inner

    async def _claim(self, *arguments: Any) -> Any:
        return await self._through()._claim(*arguments)

    async def _settle(self, *arguments: Any) -> Any:
        return await self._through()._settle(*arguments)

    async def _renew(self, *arguments: Any) -> Any:
        return await self._through()._renew(*arguments)

    async def _announce_handlers(self, *arguments: Any) -> Any:
        return await self._through()._announce_handlers(*arguments)

    async def _records(self, *arguments: Any) -> Any:
        return await self._through()._records(*arguments)


@pytest.mark.parametrize("seed", range(5))
def test_a_record_that_kills_its_relays_is_dead_in_the_end_and_it_alone(seed: int) -> None:
    """Fifty keys are held beside it when its relays die; none of them is taken for the culprit."""
    bench = Bench()
    killed: list[float] = []
    inner = bench.store
    assert isinstance(inner, MemoryOutboxStore)

    async def life() -> None:
        """A relay, from its start to its death, or until there is nothing left to do."""
        line = Line(inner)
        outbox = bench.outbox(line, lease="3s", grace=0, seed=seed)
        died = asyncio.Event()

        @outbox.handle("*")
        async def publish(record: Record) -> None:
            if record.payload == "poison":
                line.cut = True
                died.set()
                await bench.clock.sleep(1e6)
            await bench.clock.sleep(0.05)
            bench.calls.append(("publish", record.payload))

        async with outbox.running():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(died.wait(), 60)
                killed.append(bench.clock.now())

    async def main() -> None:
        await inner.put(NewRecord("k", "poison", "bad"))
        await inner.put(NewRecord("k", "behind", "bad"))
        for number in range(50):
            await inner.put(NewRecord("k", number, f"key-{number}"))
        while (await inner.stats()).keys_blocked == 0 or (await inner.stats()).ready > 1:
            assert len(killed) < 20
            await life()
        (dead,) = await inner.records("dead")
        assert dead.record.payload == "poison"
        assert dead.error == "its relays died or lost their leases 5 times in a row"
        assert sorted(set(bench.payloads("publish"))) == list(range(50))
        assert len(killed) == 5
        stats = await inner.stats()
        assert (stats.ready, stats.behind, stats.dead) == (1, 1, 1)
        assert await inner.retry(keys=["bad"]) == 1, "attempts begin anew"
        (again,) = await inner.claim("r", 1, 1, 60)
        assert (
            "\\n"
            not in RecordProgress.read(again.records[0].progress, again.records[0].retried).text()
        )

    bench.run(main())


def test_a_relay_that_finds_its_own_lease_run_out_never_handles_a_key_twice_at_a_time() -> None:
    bench = Bench()
    at_work: list[int] = []
    overlaps: list[list[int]] = []

    class NoRenewal(MemoryOutboxStore):
        async def _renew(self, *_: Any) -> Any:
            raise StoreUnavailable("the line is dead")

    bench.store = NoRenewal(clock=bench.clock)

    async def main() -> None:
        outbox = bench.outbox(lease="3s")

        @outbox.handle("*")
        async def publish(record: Record) -> None:
            at_work.append(record.payload)
            overlaps.append(list(at_work))
            try:
                await bench.clock.sleep(10 if len(overlaps) < 3 else 0.1)
            finally:
                at_work.remove(record.payload)

        await bench.put(2)
        async with outbox.running():
            await bench.clock.advance(60)
        assert len(overlaps) >= 4
        assert all(len(each) == 1 for each in overlaps)
        assert (await bench.store.stats()).ready == 0

    bench.run(main())


def test_after_a_suspend_no_record_is_handled_under_a_lease_that_is_over() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle("*")
        async def publish(record: Record) -> None:
            bench.calls.append(("publish", record.payload))
            if record.payload == 0:
                bench.clock._epoch += 3600  # the wall clock goes on, that of the loop does not
                [claim] = await bench.store.claim("other", 1, 10, 30)
                assert await bench.store.settle([KeySettlement(claim, len(claim.records))]) == []

        await bench.put(3)
        async with outbox.running():
            await bench.clock.advance(60)
        assert bench.payloads("publish") == [0]

    bench.run(main())


def test_publishers_are_closed_with_the_relay() -> None:
    bench = Bench()
    closed: list[str] = []

    class Publisher:
        name = "broker"

        async def __call__(self, record: Record) -> None:
            bench.calls.append(("broker", record.payload))

        async def aclose(self) -> None:
            closed.append("closed")
            raise OSError("gone already")

    async def main() -> None:
        outbox = bench.outbox()
        outbox.handle("*")(Publisher())
        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(5)
            assert not closed
        assert closed == ["closed"]
        assert list(outbox.handlers) == ["broker"]
        assert bench.payloads("broker") == [0]

    bench.run(main())


def test_a_relay_that_dies_beside_an_application_says_so() -> None:
    bench = Bench()

    class Dropped(MemoryOutboxStore):
        async def _claim(self, *_: Any) -> Any:
            raise SchemaError("the table is gone")

    async def main() -> None:
        outbox = bench.outbox(Dropped(clock=bench.clock))
        outbox.handle("*")(bench.recorder("publish"))
        with pytest.raises(SchemaError, match="the table is gone"):
            async with outbox.running():
                await bench.clock.advance(10)
                (told,) = bench.events(ChoreFailed)
                assert (told.chore, told.error) == ("relay", "SchemaError: the table is gone")

    bench.run(main())
