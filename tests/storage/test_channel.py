"""The hint channel: proven end to end, lost and healed, and no herd. On a line made of memory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import HintsLost, HintsProven
from pollwise.runtime.hints import Hint
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop
from pollwise.storage.channel import RIDE_EVERY, SEND_EVERY, TURN_AFTER, HintChannel, HintTransport
from pollwise.storage.wanted import ANNOUNCED_FOR, HEARD_AFTER
from tests.support.kit import Seen

T = TypeVar("T")

#: Long enough for everything that is about to happen to have happened, in virtual seconds.
SOON = 1.0


class Exchange:
    """Carries messages between lines; each fault is one switch."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[str], None]] = []
        self.sent: list[str] = []
        self.swallows = False  # as a pooler does: everything looks well, nothing arrives
        self.refuses = False  # nobody gets a connection
        self.cut = asyncio.Event()

    def carry(self, message: str) -> None:
        self.sent.append(message)
        if not self.swallows:
            for heard in list(self.listeners):
                asyncio.get_running_loop().call_soon(heard, message)

    def words(self) -> list[str]:
        return [json.loads(message)[0] for message in self.sent]

    def cut_all(self) -> None:
        self.cut.set()
        self.cut = asyncio.Event()


class MemoryTransport(HintTransport):
    advice = "look at the exchange"

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.closed = False

    async def listen(self, heard: Callable[[str], None], ready: Callable[[], None]) -> None:
        if self.exchange.refuses:
            raise ConnectionRefusedError("nobody is there")
        self.exchange.listeners.append(heard)
        ready()
        try:
            await self.exchange.cut.wait()
            raise ConnectionResetError("the line was cut")
        finally:
            self.exchange.listeners.remove(heard)

    async def send(self, message: str) -> None:
        if self.exchange.refuses:
            raise ConnectionRefusedError("nobody is there")
        self.exchange.carry(message)

    async def close(self) -> None:
        self.closed = True


class Process:
    """A process with one poller, whose polls carry checks as a queue's claims do."""

    def __init__(
        self,
        exchange: Exchange,
        wants: frozenset[str] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.exchange = exchange
        self.seen = Seen()
        self.polls: list[float] = []
        self.checks = 0
        self.waiting: list[str] = []
        self.busy = asyncio.Event()
        self.busy.set()
        # The system's clock in a virtual loop: virtual time need not stand still for a check.
        self.channel = HintChannel(MemoryTransport(exchange), Clock())
        options = LoopOptions(
            events=self.seen.events,
            hints=self.channel,
            wants=wants,
            random=random.Random(1),
            spread=False,
        )
        self.loop = PollLoop(self._poll, strategy or Adaptive("100ms", "5s"), "jobs", options)
        self.task = asyncio.create_task(self._work())

    async def _poll(self, hold: float) -> Batch[str]:
        self.polls.append(asyncio.get_running_loop().time())
        check = self.channel.check()
        if check is not None:
            self.checks += 1
            self.exchange.carry(check)
        found, self.waiting = self.waiting, []
        return Batch(found, 10)

    async def _work(self) -> None:
        async for _ in self.loop:
            await self.busy.wait()

    def polls_since(self, when: float) -> int:
        return sum(at >= when for at in self.polls)

    async def end(self) -> None:
        self.loop.stop()
        await self.task
        await self.channel.aclose()


@asynccontextmanager
async def processes(
    count: int = 1, wants: frozenset[str] | None = None, strategy: Strategy | None = None
) -> AsyncIterator[tuple[Exchange, list[Process]]]:
    exchange = Exchange()
    started = [Process(exchange, wants, strategy) for _ in range(count)]
    try:
        yield exchange, started
    finally:
        exchange.refuses = exchange.swallows = False
        for process in started:
            process.busy.set()
            await process.end()


def under(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return VirtualClock().run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_proven_channel_makes_pauses_long_and_the_polls_carry_the_probe() -> None:
    async def main() -> None:
        async with processes() as (exchange, [process]):
            await asyncio.sleep(60)
            began, sent, checks = now(), len(exchange.sent), process.checks
            await asyncio.sleep(3600)
            polls = process.polls_since(began)
            assert 60 <= polls <= 67, "polls an hour: one in 54 to 60 s"
            assert len(exchange.sent) - sent == process.checks - checks == polls, (
                "each poll carries a check, and nothing else is sent"
            )
            assert len(process.seen.of(HintsProven)) == 1
            assert not process.seen.of(HintsLost)

    under(main)


def test_a_fixed_interval_stays_fixed() -> None:
    async def main() -> None:
        async with processes(strategy=Fixed("10s")) as (_, [process]):
            await asyncio.sleep(3605)
            assert process.seen.of(HintsProven)
            assert process.polls_since(5) == 360

    under(main)


def test_a_pooler_that_swallows_messages_is_reported_once_and_max_interval_holds() -> None:
    async def main() -> None:
        async with processes() as (exchange, [process]):
            exchange.swallows = True
            await asyncio.sleep(6)
            [lost] = process.seen.of(HintsLost)
            assert "did not come back within 5 s" in lost.reason
            assert lost.advice == "look at the exchange"
            began = now()
            await asyncio.sleep(600)
            assert process.polls_since(began) >= 600 / 5.1, "a poll every 4.5 to 5 s"
            assert len(process.seen.of(HintsLost)) == 1, "told once, however long it lasts"
            exchange.swallows = False
            await asyncio.sleep(60)
            assert process.seen.names().count("HintsProven") == 1, "it heals by itself"
            began = now()
            await asyncio.sleep(600)
            assert process.polls_since(began) <= 12

    under(main)


def test_a_cut_line_wakes_the_sleepers_at_once_and_heals() -> None:
    async def main() -> None:
        async with processes() as (exchange, [process]):
            await asyncio.sleep(90)
            exchange.refuses = True
            cut = now()
            exchange.cut_all()
            await asyncio.sleep(SOON)
            [lost] = process.seen.of(HintsLost)
            assert "the line was cut" in lost.reason
            assert process.polls_since(cut) >= 1, "what was put meanwhile is found"
            await asyncio.sleep(120)
            exchange.refuses = False
            await asyncio.sleep(31)
            assert len(process.seen.of(HintsProven)) == 2
            assert len(process.seen.of(HintsLost)) == 1

    under(main)


def test_a_line_that_falls_silent_is_noticed_within_one_probe_interval() -> None:
    async def main() -> None:
        async with processes() as (exchange, [process]):
            await asyncio.sleep(61)
            exchange.swallows = True
            await asyncio.sleep(60 + 5)
            assert len(process.seen.of(HintsLost)) == 1

    under(main)


def test_a_poll_that_began_before_the_proof_is_not_trusted() -> None:
    async def main() -> None:  # what it missed may have been put before anybody listened
        async with processes() as (exchange, [process]):
            exchange.swallows = True
            await asyncio.sleep(30)
            exchange.swallows = False
            while not process.seen.of(HintsProven):
                await asyncio.sleep(0.01)
            proven = now()
            await asyncio.sleep(10)
            assert process.polls_since(proven) >= 1, "one more poll by the short max_interval"

    under(main)


@pytest.mark.parametrize("others", [1, 2, 7, 49])
def test_one_job_does_not_wake_a_herd(others: int) -> None:
    async def main() -> None:
        async with processes(others) as (exchange, started):
            putter = HintChannel(MemoryTransport(exchange), Clock())
            await asyncio.sleep(120)  # each has heard the others' checks
            chosen = set()
            for _ in range(20):
                before = [process.loop.counts.hinted for process in started]
                message = putter.ride(1, {"job"})
                assert message is not None
                exchange.carry(message)
                await asyncio.sleep(TURN_AFTER / 2)
                [first] = woken_since(before, started)
                chosen.add(first)
                await asyncio.sleep(TURN_AFTER)
                looked = woken_since(before, started)
                assert len(looked) == min(others, 2), "one more, should the chosen one be dead"
                await asyncio.sleep(5)
                assert woken_since(before, started) == looked, "it said so, and that was all"
            assert len(chosen) >= min(others, 4), "not always the same"

    under(main)


def woken_since(before: list[int], started: list[Process]) -> list[int]:
    """The places of those whose pauses hints ended."""
    after = [process.loop.counts.hinted for process in started]
    return [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]


def test_a_hint_of_many_jobs_wakes_as_many() -> None:
    async def main() -> None:
        async with processes(10) as (exchange, started):
            putter = HintChannel(MemoryTransport(exchange), Clock())
            await asyncio.sleep(120)
            before = [process.loop.counts.hinted for process in started]
            exchange.carry(putter.message(4, {"job"}))
            await asyncio.sleep(TURN_AFTER / 2)
            assert len(woken_since(before, started)) == 4

    under(main)


def test_a_busy_process_passes_the_hint_on() -> None:
    async def main() -> None:
        async with processes(12) as (exchange, started):
            putter = HintChannel(MemoryTransport(exchange), Clock())
            await asyncio.sleep(120)
            *busy, free = started
            for process in busy:
                process.busy.clear()
                process.waiting = ["work"]
                process.channel.send(1)
            await asyncio.sleep(SOON)
            for _ in range(10):
                began = now()
                exchange.carry(putter.message(1, {"job"}))
                await asyncio.sleep(TURN_AFTER / 2)
                assert free.polls_since(began), "eleven are busy, and the one who sleeps is found"
                await asyncio.sleep(5)
            passed = [json.loads(m) for m in exchange.sent if json.loads(m)[0] == "hint"]
            assert len(passed) <= 10 * 4, "one message, and at most three to pass it on"

    under(main)


def test_dead_processes_that_were_chosen_are_made_up_for() -> None:
    async def main() -> None:
        async with processes(7) as (exchange, started):
            putter = HintChannel(MemoryTransport(exchange), Clock())
            await asyncio.sleep(120)
            for process in started[:6]:  # killed: without a word
                process.task.cancel()
                process.channel.close()
                await asyncio.wait([process.task])
            del started[:6]
            [alive] = started
            waits = []
            for _ in range(30):
                before, began = alive.loop.counts.hinted, now()
                exchange.carry(putter.message(1, {"job"}))
                while alive.loop.counts.hinted == before:
                    await asyncio.sleep(0.01)
                    assert now() < began + TURN_AFTER * 6.5, (
                        "each has its turn, and this is the last"
                    )
                waits.append(now() - began)
                await asyncio.sleep(6)
            assert max(waits) > TURN_AFTER / 2, "somebody dead was chosen now and then"
            await asyncio.sleep(180)
            for _ in range(10):
                before = alive.loop.counts.hinted
                exchange.carry(putter.message(1, {"job"}))
                await asyncio.sleep(TURN_AFTER / 2)
                assert alive.loop.counts.hinted > before, "they count as gone"
                await asyncio.sleep(3)

    under(main)


def test_a_process_that_leaves_says_goodbye() -> None:
    async def main() -> None:
        async with processes(2) as (exchange, started):
            putter = HintChannel(MemoryTransport(exchange), Clock())
            await asyncio.sleep(120)
            await started.pop().end()
            assert exchange.words()[-1] == "bye"
            for _ in range(10):
                began = now()
                exchange.carry(putter.message(1, {"job"}))
                await asyncio.sleep(TURN_AFTER / 2)
                assert started[0].polls_since(began)
                await asyncio.sleep(3)

    under(main)


def test_a_line_that_is_ready_only_when_the_channel_closes_is_not_checked() -> None:
    class LateLine(MemoryTransport):
        async def listen(self, heard: Callable[[str], None], ready: Callable[[], None]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ready()  # the answer was there already when the cancellation came

    async def main() -> None:
        exchange = Exchange()
        channel = HintChannel(LateLine(exchange), Clock())
        hint = Hint()
        channel.join(hint)
        channel.asleep(hint)
        await asyncio.sleep(SOON)
        await channel.aclose()
        await asyncio.sleep(SOON)
        assert exchange.sent == []

    VirtualClock().run(main())


def test_hints_go_to_those_who_want_the_kind() -> None:
    async def main() -> None:
        exchange = Exchange()
        mail = [Process(exchange, frozenset({"mail"})) for _ in range(3)]
        pdf = Process(exchange, frozenset({"pdf"}))
        putter = HintChannel(MemoryTransport(exchange), Clock())
        await asyncio.sleep(120)
        for _ in range(10):
            began = now()
            exchange.carry(putter.message(1, {"pdf"}))
            await asyncio.sleep(TURN_AFTER / 2)
            assert pdf.polls_since(began), "the only one who wants it"
            await asyncio.sleep(3)
        for process in (*mail, pdf):
            await process.end()

    under(main)


def test_a_sleeper_here_takes_the_job_and_no_hint_is_sent() -> None:
    async def main() -> None:
        async with processes(3) as (exchange, [here, *_]):
            await asyncio.sleep(90)
            sent = len(exchange.sent)
            assert here.channel.ride(1, {"job"}) is None
            here.channel.send_to_others(1, {"job"})
            began = now()
            here.channel.send(1, {"job"})
            await asyncio.sleep(SEND_EVERY)
            assert here.polls_since(began) == 1
            assert exchange.words()[sent:].count("hint") == 0
            assert here.channel.ride(2, {"job"}) is not None, "two jobs, and one who sleeps here"

    under(main)


def test_hints_are_coalesced() -> None:
    async def main() -> None:
        exchange = Exchange()
        putter = HintChannel(MemoryTransport(exchange), Clock())
        rode = 0
        for _ in range(1000):  # for a second
            if putter.ride(1, {"job"}) is None:
                putter.send_to_others(1, {"job"})
            else:
                rode += 1
            await asyncio.sleep(0.001)
        await putter.aclose()
        told = [json.loads(message) for message in exchange.sent]
        assert rode <= 1 / RIDE_EVERY + 1
        assert len(told) <= 1 / SEND_EVERY + 1
        assert rode + sum(message[3] for message in told) == 1000, "no job is left untold"

    under(main)


def test_a_broadcast_reaches_every_listener_once_and_wakes_nobody() -> None:
    async def main() -> None:
        async with processes(5) as (exchange, started):
            heard: list[tuple[int, str]] = []
            for n, process in enumerate(started):
                process.channel.listen(lambda kind, n=n: heard.append((n, kind)), ["#cancel"])  # type: ignore[misc]
            await asyncio.sleep(60)
            heard.clear()
            began, sent = now(), len(exchange.sent)
            for _ in range(3):  # at once: one message
                started[0].channel.broadcast("#cancel")
                started[1].channel.broadcast("#other")
            await asyncio.sleep(SEND_EVERY)
            assert sorted(set(heard)) == [(n, "#cancel") for n in range(5)]
            assert len(heard) == 4 + 3, "once from another process, each time from the own one"
            assert [json.loads(text)[0] for text in exchange.sent[sent:]] == ["broadcast"] * 2
            assert not any(process.polls_since(began) for process in started)

    under(main)


def test_broadcasts_that_may_have_been_missed_are_made_up_for() -> None:
    async def main() -> None:
        async with processes() as (exchange, [process]):
            heard: list[str] = []
            process.channel.listen(heard.append, ["#cancel"])
            process.channel.listen(heard.append)  # of all kinds: it cannot be told which
            await asyncio.sleep(90)
            assert heard == []
            exchange.cut_all()
            await asyncio.sleep(31)
            assert len(process.seen.of(HintsProven)) == 2
            assert heard == ["#cancel"]

    under(main)


def test_a_process_that_only_puts_does_not_listen() -> None:
    async def main() -> None:
        exchange = Exchange()
        putter = HintChannel(MemoryTransport(exchange), Clock())
        putter.send_to_others(1, {"job"})
        await asyncio.sleep(SOON)
        assert exchange.words() == ["hint"]
        assert not exchange.listeners
        await putter.aclose()
        assert exchange.words() == ["hint"], "it was never counted on, so it says no goodbye"

    under(main)


def test_very_many_kinds_become_any() -> None:
    async def main() -> None:
        channel = HintChannel(MemoryTransport(Exchange()), Clock())
        message = channel.message(1, [f"kind-{n}" for n in range(1000)])
        assert len(message) < 4000
        assert json.loads(message)[4] is None

    under(main)


ANYTHING: list[Any] = [
    *("hint", "check", "polled", "bye", "x", "\ud800"),
    *(1, -1, True, 3 * 10**8, 10**400),
    *(None, [], ["k"], [[]], [1], ["\ud800"]),
]


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=50),
        st.lists(
            st.sampled_from(ANYTHING),
            max_size=6,
        ).map(json.dumps),
    )
)
@example('["check","x","n",[[]]]')
@example('["check","\\ud800","n",null]')
@example('["hint","x","s",1,[1],0]')
@example('["broadcast","x",7]')
@example('["hint","x","s",1,null,300000000]')
@example("[" * 100_000)
def test_foreign_messages_change_nothing(text: str) -> None:
    async def main() -> None:
        async with processes() as (exchange, [process]):
            await asyncio.sleep(SOON)
            exchange.carry(text)
            exchange.carry(HintChannel(MemoryTransport(exchange), Clock()).message(1, ["job"]))
            await asyncio.sleep(120)
            assert not process.task.done()
            assert not process.seen.of(HintsLost)

    under(main)


def test_the_channel_moves_to_another_event_loop() -> None:
    exchange, seen = Exchange(), Seen()
    channel = HintChannel(MemoryTransport(exchange), Clock())
    channel.report_to("jobs", seen.events)

    async def main() -> None:
        exchange.cut = asyncio.Event()  # an event belongs to one loop
        hint = Hint()
        channel.join(hint)
        channel.asleep(hint)
        await asyncio.sleep(SOON)
        channel.leave(hint)

    under(main)
    under(main)
    assert len(seen.of(HintsProven)) == 2


def test_a_broadcast_is_sent_only_while_somebody_wants_it() -> None:
    async def main() -> None:
        exchange = Exchange()
        sender, waiter = (HintChannel(MemoryTransport(exchange), Clock()) for _ in range(2))
        heard: list[str] = []
        sender.broadcast_if_wanted("#news")
        await asyncio.sleep(SOON)
        assert "broadcast" in exchange.words(), "who does not know sends it"
        await asyncio.sleep(2 * HEARD_AFTER)
        exchange.sent.clear()
        for _ in range(100):
            sender.broadcast_if_wanted("#news")
            await asyncio.sleep(SEND_EVERY)
        assert exchange.words().count("broadcast") == 0, "nobody wants it"

        assert waiter.known_at("#news") is None
        listening = waiter.listen(heard.append, ("#news",))
        waiter.announce("#news")
        await asyncio.sleep(SOON)
        known = waiter.known_at("#news")
        assert known is not None
        assert known <= asyncio.get_running_loop().time()
        sender.broadcast_if_wanted("#news")
        await asyncio.sleep(SOON)
        assert heard == ["#news"]

        late = HintChannel(MemoryTransport(exchange), Clock())  # a process that comes later
        late.broadcast_if_wanted("#news")
        await asyncio.sleep(3 * HEARD_AFTER)
        heard.clear()
        late.broadcast_if_wanted("#news")
        await asyncio.sleep(SOON)
        assert heard == ["#news"]

        listening.close()
        await asyncio.sleep(2 * ANNOUNCED_FOR)
        exchange.sent.clear()
        sender.broadcast_if_wanted("#news")
        await asyncio.sleep(SOON)
        assert exchange.words().count("broadcast") == 0, "nobody wants it any more"
        assert waiter.known_at("#news") is None
        for channel in (sender, waiter, late):
            await channel.aclose()

    under(main)
