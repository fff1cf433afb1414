"""Flows that run: what a job gets from those before it, what a handle shows, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pollwise import Job, NewJob, Reject, Retry, Worker, from_context, group, results_before
from pollwise.codecs import AesGcm, Key, Keys
from pollwise.errors import CodecError, JobFailed, KeyMissing, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.flows.view import FLOW_SHOWN
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.views import JobFilter
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDead, JobGivenBack, JobLocked
from pollwise.runtime.executor.control.pruning import PRUNE_RESULTS_EVERY
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.worker.flows.taking import NO_ERROR, TAKES_HEADER
from tests.support.kit import Seen, make_queue, options, until, until_empty, virtually, working

STORES = ("memory", "sqlite")
both_stores = pytest.mark.parametrize("store", STORES)
ONCE = Retry.never()


@dataclass
class Page:
    url: str
    size: int


class Tasks:
    """A worker with tasks that flows are made of; `ran` has what they got."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.seen = Seen()
        self.worker = worker = Worker(queue, events=self.seen.events)
        self.ran: list[Any] = []

        @worker.task(retry=ONCE)
        async def fetch(url: str) -> Page:
            if url.startswith("bad"):
                raise ValueError(f"no such page: {url}")
            return Page(url, len(url))

        @worker.task
        async def size(page: Page) -> int:
            return page.size

        @worker.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        @worker.task
        async def note(value: Any) -> Any:
            self.ran.append(value)
            return value

        @worker.task
        async def look(job: Job, name: str, before: list[Any] = results_before) -> list[Any]:
            self.ran.append((name, before))
            return before

        @worker.handle("plain")
        async def plain(job: Job, results: list[Any] = results_before) -> None:
            self.ran.append((job.payload, results))

        self.fetch, self.size, self.total, self.note, self.look = fetch, size, total, note, look


def on(
    store: str, folder: Path, main: Callable[[Tasks, VirtualClock], Awaitable[None]], **given: Any
) -> None:
    async def run(clock: VirtualClock) -> None:
        queue = make_queue(store, folder, clock, **given)
        tasks = Tasks(queue)
        async with working(tasks.worker, options()):
            await main(tasks, clock)
        await queue.close()

    virtually(run)


@both_stores
def test_results_go_down_a_chain_as_their_types(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        handle = await tasks.fetch.s("abc").then(tasks.size).then(tasks.note).put()
        assert await handle.result("1m") == 3
        assert tasks.ran == [3]

    on(store, tmp_path, main)


@both_stores
def test_a_group_gives_the_list_of_its_results_in_its_order(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        pages = [tasks.fetch.s("a" * n) for n in range(1, 21)]
        sizes = group([page.then(tasks.size) for page in pages])
        handle = await sizes.then(group([tasks.total, tasks.note])).put()
        assert await handle.result("1m") == [210, list(range(1, 21))]
        nested = group([group([tasks.note.s(1), tasks.note.s(2)]), tasks.note.s(3)])
        handle = await nested.then(tasks.note).put()
        assert await handle.result("1m") == [[1, 2], 3]
        ends = await group([tasks.note.s(1), group([tasks.note.s(2)])]).put()
        assert await ends.result("1m") == [1, [2]]

    on(store, tmp_path, main)


@both_stores
def test_handlers_ask_for_results_by_a_default(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        two = group([tasks.note.s("a"), tasks.note.s(None)])
        handle = await two.then(tasks.look.s("after two")).put()
        assert await handle.result("1m") == ["a", None]
        first = await tasks.look.s("first").then(tasks.note).put()
        assert await first.result("1m") == []
        alone = await tasks.look.put("alone")
        assert await alone.result("1m") == []
        before = NewJob("note", {"value": "by hand"})
        await tasks.queue.put([before, NewJob("plain", "p", after=[before])])
        await until_empty(tasks.queue)
        assert tasks.ran[-1] == ("p", ["by hand"])
        assert await tasks.look(None, "direct", [7]) == [7]

    on(store, tmp_path, main)


@both_stores
def test_a_failure_starts_on_failure_with_the_error(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        pages = group([tasks.fetch.s(url).then(tasks.size) for url in ("good", "bad")])
        handle = await pages.then(tasks.total, on_failure=tasks.note).put()
        with pytest.raises(JobFailed, match="no such page: bad") as failed:
            await handle.result("1m")
        assert failed.value.state == "dead"
        assert failed.value.job_id == handle.ids[2]
        await until(lambda: bool(tasks.ran))
        assert tasks.ran == ["ValueError: no such page: bad"]
        view = await handle.view()
        assert view is not None
        assert [each.info.state for each in view.jobs][-2] == "blocked", "it waits for a retry"

    on(store, tmp_path, main)


@both_stores
def test_without_a_failure_on_failure_is_cancelled(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        flow = tasks.fetch.s("good").then(tasks.size, on_failure=tasks.note)
        handle = await flow.then(on_failure=tasks.note.s("clean up")).put()
        assert await handle.result("1m") == 4
        view = await handle.view()
        assert view is not None
        assert [(e.info.job.kind, e.info.state) for e in view.jobs] == [
            ("fetch", "done"),
            ("size", "done"),
            ("note", "cancelled"),
            ("note", "cancelled"),
        ]
        assert tasks.ran == []

    on(store, tmp_path, main)


@both_stores
def test_a_retried_job_lets_its_flow_go_on(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        broken = True

        @tasks.worker.task(retry=ONCE)
        async def flaky() -> str:
            if broken:
                raise OSError("down")
            return "up"

        async with working(tasks.worker, options()):
            handle = await flaky.s().then(tasks.note).put()
            with pytest.raises(JobFailed, match="OSError: down"):
                await handle.result("1m")
            broken = False
            assert await tasks.queue.retry([handle.id]) == 1
            assert await handle.result("1m") == "up"

    async def run(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        await main(Tasks(queue), clock)
        await queue.close()

    virtually(run)


@both_stores
def test_a_cancelled_flow_ends_and_its_result_says_so(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        flow = tasks.fetch.options(delay="1h").s("late").then(tasks.size, on_failure=tasks.note)
        handle = await flow.then(tasks.note).put()
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(1)
        assert set((await handle.cancel()).values()) == {"cancelled"}
        with pytest.raises(JobFailed, match="is cancelled"):
            await waiting
        assert not tasks.ran

    on(store, tmp_path, main)


@both_stores
def test_waiting_ends_with_its_timeout(store: str, tmp_path: Path) -> None:
    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        late = tasks.fetch.options(delay="1h").s("late")
        handle = await group([late, tasks.fetch.s("soon")]).then(tasks.note).put()
        with pytest.raises(TimeoutError, match="has not ended within 10s: 1 of its 3 jobs are do"):
            await handle.result("10s")
        assert len(await handle.result("2h")) == 2

    on(store, tmp_path, main)


def test_waiting_ends_at_the_first_failure_though_others_go_on() -> None:
    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(MemoryQueue(clock=clock))
        async with working(tasks.worker, options()):
            slow = tasks.fetch.options(delay="10h").s("slow")
            handle = await group([slow, tasks.fetch.s("bad")]).put()
            began = clock.now()
            with pytest.raises(JobFailed, match="no such page"):
                await handle.result()
            assert clock.now() - began < 60

    virtually(main)


@both_stores
def test_members_are_deleted_after_the_end_of_the_flow(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        worker = Worker(queue, events=Seen().events)
        got: list[Any] = []

        @worker.handle("step")
        async def step(job: Job, before: list[Any] = results_before) -> str:
            got.append(before)
            return "not kept"

        first = NewJob("step")
        async with working(worker, options()):
            await queue.put([first, NewJob("step", after=[first], delay="5h")])
            await asyncio.sleep(4 * 3600)
            assert (await queue.stats()).done == 1, "a job of a flow that goes on stays"
            await asyncio.sleep(3600 + FLOW_SHOWN + 2 * PRUNE_RESULTS_EVERY)
            assert (await queue.stats()).done == 0
        assert got == [[], [None]], "a handler without result_ttl keeps no result"
        await queue.close()

    virtually(main)


@both_stores
def test_results_are_opened_for_those_after_them(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        queue.use_codec(AesGcm(Keys((Key("k1", bytes(32)),))))
        tasks = Tasks(queue)
        async with working(tasks.worker, options()):
            handle = await tasks.fetch.s("secret").then(tasks.size).then(tasks.note).put()
            assert await handle.result("1m") == 6
        await queue.close()

    virtually(main)


def test_a_result_that_cannot_be_decoded_here_waits_or_is_dead() -> None:
    class Locked(MemoryQueue):
        error: Exception | None = KeyMissing("the key k2 is missing")

        async def predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
            if self.error is not None:
                raise self.error
            return await super().predecessors(job_id)

    async def main(clock: VirtualClock) -> None:
        queue = Locked(clock=clock)
        tasks = Tasks(queue)
        async with working(tasks.worker, options()):
            handle = await tasks.fetch.s("abc").then(tasks.size).put()
            await until(lambda: bool(tasks.seen.of(JobLocked)))
            assert "the key k2 is missing" in tasks.seen.of(JobLocked)[0].reason
            queue.error = None
            assert await handle.result("1h") == 3
            info = await queue.get(handle.ids[1])
            assert info is not None
            assert info.job.attempt == 1
            queue.error = CodecError("it was changed")
            changed = await tasks.fetch.s("abc").then(tasks.size).put()
            with pytest.raises(JobFailed, match="a result before it cannot be decoded: it was ch"):
                await changed.result("1h")

    virtually(main)


def test_results_that_cannot_be_read_cost_no_attempt() -> None:
    class Silent(MemoryQueue):
        silent = 3

        async def _predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
            self.silent -= 1
            if self.silent >= 0:
                raise StoreUnavailable("on purpose")
            return await super()._predecessors(job_id)

    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(Silent(clock=clock))
        async with working(tasks.worker, options()):
            handle = await tasks.fetch.s("abc").then(tasks.size).put()
            assert await handle.result("1m") == 3
        info = await tasks.queue.get(handle.ids[1])
        assert info is not None
        assert info.job.attempt == 1
        given_back = tasks.seen.of(JobGivenBack)
        assert len(given_back) == 3
        assert "the results before it cannot be read: StoreUnavailable" in given_back[0].reason

    virtually(main)


def test_a_result_that_does_not_fit_makes_the_job_dead() -> None:
    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(MemoryQueue(clock=clock))
        async with working(tasks.worker, options()):
            handle = await tasks.note.s("no page").then(tasks.size).put()
            with pytest.raises(JobFailed, match="the argument from the jobs before it, or the pay"):
                await handle.result("1h")

    virtually(main)


def test_a_header_that_asks_for_too_much_makes_the_job_dead() -> None:
    """Anybody who may put jobs can write it, and a list of any size would stop the worker."""

    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(MemoryQueue(clock=clock))
        first = NewJob("note", {"value": 1})
        much = {TAKES_HEADER: "(9(9(9(9(9(9(9(9(9(9(.)))))))))))"}
        async with working(tasks.worker, options()):
            await tasks.queue.put([first, NewJob("note", {}, headers=much, after=[first])])
            await until(lambda: "JobDead" in tasks.seen.names())
        [dead] = tasks.seen.of(JobDead)
        assert "does not fit the 1 jobs right before it" in dead.error
        assert tasks.ran == [1]

    virtually(main)


def test_headers_of_a_job_that_took_a_result_can_be_put_again() -> None:
    """A copy is in no flow, or in another, so it gets its own arguments."""

    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(MemoryQueue(clock=clock))
        note = tasks.note.options(headers={TAKES_HEADER: ".", FLOW_HEADER: "another", "a": "b"})
        async with working(tasks.worker, options()):
            await (await note.put("alone")).result()
            await (await note.s("first").then(tasks.note).put()).result()
        assert tasks.ran == ["alone", "first", "first"]

    virtually(main)


@both_stores
def test_a_result_that_is_gone_makes_the_job_dead(store: str, tmp_path: Path) -> None:
    """A task that takes anything would go on with None, as if that were the result."""

    async def main(tasks: Tasks, clock: VirtualClock) -> None:
        first, slow = tasks.note.s("first"), tasks.note.options(delay="1m").s("slow")
        await group([first, slow]).then(tasks.note).put()
        await until(lambda: tasks.ran == ["first"])
        assert (await tasks.queue.drop(JobFilter(state="done"))).count == 1
        await until(lambda: "JobDead" in tasks.seen.names())
        [dead] = tasks.seen.of(JobDead)
        assert dead.error.startswith("the results of 1 of the 2 jobs right before it are gone")
        assert tasks.ran == ["first", "slow"]

    on(store, tmp_path, main)


def test_an_error_that_is_gone_is_said() -> None:
    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(MemoryQueue(clock=clock))
        flow = tasks.fetch.s("bad").then(tasks.size, on_failure=tasks.note.options(delay="1h"))
        async with working(tasks.worker, options()):
            handle = await flow.put()
            with pytest.raises(JobFailed):
                await handle.result()
            assert await tasks.queue.drop([handle.id]) == 1
            await asyncio.sleep(2 * 3600)
        # A drop cancels all that wait for the job, a released one no more.
        assert tasks.ran == [NO_ERROR]

    virtually(main)


def test_put_again_and_again_with_the_same_tasks() -> None:
    async def main(clock: VirtualClock) -> None:
        tasks = Tasks(MemoryQueue(clock=clock))

        @tasks.worker.context
        async def app() -> AsyncIterator[None]:
            yield

        @tasks.worker.task
        async def spread(n: int, app: Any = from_context) -> list[int]:
            handle = await group([tasks.note.s(each) for each in range(n)]).then(tasks.total).put()
            tasks.ran.append(handle.id)
            return [1, n]

        @tasks.worker.task(retry=Retry.fixed("1s", attempts=5))
        async def refuse() -> None:
            raise Reject("not wanted")

        async with working(tasks.worker, options()):
            first, second = await spread.s(2).put(), await spread.s(3).then(tasks.total).put()
            assert await first.result("1m") == [1, 2]
            assert await second.result("1m") == 4
            with pytest.raises(JobFailed, match="not wanted"):
                await (await refuse.s().put()).result("1m")
            await until_empty(tasks.queue)

    virtually(main)
