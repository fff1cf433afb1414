from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from pathlib import Path

import pytest

import pollwise.runtime.clock
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VIRTUAL_EPOCH, Clock, VirtualClock
from pollwise.runtime.events import Event, JobDone, PollFinished
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker
from tests.support.kit import Seen, make_queue, options, until_empty, virtually, working

DAY = 86_400.0


# Time that jumps.


def test_virtual_time_passes_only_by_sleeping_and_then_at_once() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        seen = [clock.now()]
        await clock.sleep(0.25)
        seen.append(clock.now())
        await clock.advance(DAY * 365)
        seen.append(clock.now())
        return seen

    began = time.monotonic()
    assert virtually(main) == [0.0, 0.25, DAY * 365 + 0.25]
    assert time.monotonic() - began < 30


def test_virtual_time_begins_on_a_fixed_date() -> None:
    async def main(clock: VirtualClock) -> tuple[float, float]:
        first = clock.epoch()
        await clock.advance(10)
        return first, clock.epoch()

    assert virtually(main) == (VIRTUAL_EPOCH, VIRTUAL_EPOCH + 10)


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def main(clock: VirtualClock) -> list[tuple[float, float]]:
        woken = []

        async def sleeper(delay: float) -> None:
            await clock.sleep(delay)
            woken.append((delay, clock.now()))

        await asyncio.gather(*(sleeper(delay) for delay in (3.0, 1.0, 7200.0, 2.0)))
        return woken

    assert virtually(main) == [(delay, delay) for delay in (1.0, 2.0, 3.0, 7200.0)]


def test_a_timer_further_off_than_the_loop_can_wait_for_still_rings_on_time() -> None:
    async def main(clock: VirtualClock) -> float:
        await clock.sleep(40 * DAY)  # asyncio waits for a day at the most
        return clock.now()

    assert virtually(main) == pytest.approx(40 * DAY)


def test_a_hint_ends_a_sleep() -> None:
    async def main(clock: VirtualClock) -> tuple[bool, float, bool, float]:
        hint = Hint()
        asyncio.get_running_loop().call_later(3, hint.give)
        woken = await clock.sleep(DAY, hint)
        at = clock.now()
        slept_out = await clock.sleep(DAY, hint)
        return woken, at, slept_out, clock.now()

    assert virtually(main) == (True, 3.0, False, DAY + 3.0)


def test_the_system_clock_tells_the_loops_time_and_the_date() -> None:
    async def main() -> None:
        clock = Clock()
        assert clock.now() == pytest.approx(asyncio.get_running_loop().time(), abs=1)
        assert clock.epoch() == pytest.approx(time.time(), abs=1)
        assert await clock.sleep(0) is False
        assert await clock.sleep(0, Hint()) is False

    asyncio.run(main())


# Threads.


def test_virtual_time_stands_still_while_a_thread_works() -> None:
    gate = threading.Event()

    async def main(clock: VirtualClock) -> tuple[float, list[str]]:
        order: list[str] = []

        async def sleeper() -> None:
            await clock.sleep(0.001)
            order.append("sleeper")

        def work() -> None:
            assert gate.wait(10)
            order.append("thread")

        task = asyncio.create_task(sleeper())
        threading.Timer(0.05, gate.set).start()
        await asyncio.to_thread(work)
        after = clock.now()
        await task
        return after, order

    assert virtually(main) == (0.0, ["thread", "sleeper"])


def test_an_await_that_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollwise.runtime.clock, "STUCK_AFTER", 0.01)

    async def main(_: VirtualClock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="an await that never ends"):
        virtually(main)


def test_a_thread_that_waits_for_virtual_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollwise.runtime.clock, "STUCK_AFTER", 0.01)
    gate = threading.Event()

    async def main(clock: VirtualClock) -> None:
        async def opener() -> None:
            await clock.sleep(5)
            gate.set()  # never: time stands still for the thread that waits for it

        task = asyncio.create_task(opener())
        try:
            await asyncio.to_thread(gate.wait, 10)
        finally:
            task.cancel()

    threading.Timer(0.2, gate.set).start()  # so that the loop can be closed
    with pytest.raises(RuntimeError, match="a plain function that waits for virtual time"):
        virtually(main)


# The real worker under it.


def idle(seed: int, span: float = DAY) -> tuple[int, list[Event]]:
    seen = Seen()

    async def main(clock: VirtualClock) -> int:
        worker = Worker(MemoryQueue(clock=clock), name="w", events=seen.events)
        worker.handle("x")(print)
        async with working(worker, options(seed=seed)):
            await clock.advance(span)
            polls: int = worker.state()["polls"]
        return polls

    return virtually(main), list(seen)


def test_a_day_of_idling_polls_at_the_max_interval() -> None:
    polls, _ = idle(seed=1)
    # The max_interval is 5 s and jitter takes off up to a tenth of it: 4.75 s on the average.
    assert DAY / 5 < polls < DAY / 4.5
    assert polls == pytest.approx(DAY / 4.75, rel=0.01)


def test_the_same_seed_gives_the_same_hours_and_another_seed_others() -> None:
    (_, one), (_, same), (_, other) = (idle(seed, DAY / 10) for seed in (1, 1, 2))
    assert one == same
    assert [e for e in one if isinstance(e, PollFinished)] != [
        e for e in other if isinstance(e, PollFinished)
    ]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_an_hour_of_work_repeats_exactly(store: str, tmp_path: Path) -> None:
    def hour(folder: Path) -> list[Event]:
        folder.mkdir()
        seen = Seen()

        async def main(clock: VirtualClock) -> None:
            async with make_queue(store, folder, clock) as queue:
                worker = Worker(queue, name="w", events=seen.events)

                @worker.handle("x")
                async def handler(job: object) -> None:
                    await asyncio.sleep(1.5)

                async with working(worker, options(concurrency=2)):
                    for _ in range(12):
                        await queue.put([NewJob("x"), NewJob("x", delay="7s"), NewJob("x")])
                        await clock.advance(300)
                    await until_empty(queue)

        virtually(main)
        return list(seen)

    one, two = hour(tmp_path / "1"), hour(tmp_path / "2")
    assert one == two
    assert sum(isinstance(event, JobDone) for event in one) == 36


def test_the_system_clock_imposes_nothing_on_a_store() -> None:
    clock = Clock()
    assert clock.imposed() is None
    with clock.outside():
        pass


def test_a_store_goes_by_virtual_time() -> None:
    async def main(clock: VirtualClock) -> tuple[float | None, float]:
        await clock.advance(90)
        return clock.imposed(), clock.epoch()

    imposed, epoch = virtually(main)
    assert imposed == epoch == VIRTUAL_EPOCH + 90


def test_virtual_time_stands_still_for_what_is_outside() -> None:
    """A socket answers in real time, and no timer fires before it did."""

    async def main(clock: VirtualClock) -> list[str]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        order: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, order.append, "timer")
        answering = threading.Timer(0.05, theirs.send, [b"answer"])
        answering.start()
        with clock.outside():
            await loop.sock_recv(ours, 10)
        order.append("answer")
        assert clock.now() == 0.0
        await clock.advance(1)
        answering.join()
        ours.close()
        theirs.close()
        return order

    assert virtually(main) == ["answer", "timer"]


@pytest.mark.parametrize("start", [0.0, 0.3, 1e9])
def test_virtual_time_passes_however_short_a_sleep_is(start: float) -> None:
    """Else a loop that sleeps until a moment less than a nanosecond away would never end."""
    clock = VirtualClock()

    async def main() -> tuple[float, float]:
        await clock.sleep(start)
        moment = math.nextafter(clock.now(), math.inf)
        for _ in range(3):
            if clock.now() < moment:
                await clock.sleep(moment - clock.now())
        return clock.now(), moment

    now, moment = clock.run(main())
    assert now == moment
