"""The queues that a controller has open for calls over HTTP, and what the `keep` of a call does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from pollwise import NewJob
from pollwise.controller.http.answers import HttpError
from pollwise.controller.http.queues import opened
from pollwise.controller.http.queues.opened import OpenQueues
from pollwise.controller.http.queues.routes import QueueApi
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.jobs import Settlement
from tests.queues.http.stub import authorise, inside, make_app

HEADERS = {"Authorization": "Bearer worker"}


class Store:
    """A store of SQLite queues that counts those that are open."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or Clock()
        self.made: list[str] = []
        self.open: set[Queue] = set()

    def __call__(self, name: str, keep: float | None) -> Queue:
        queue = SqliteQueue(self._folder / "jobs.db", name, clock=self._clock, keep=keep)
        self.made.append(name)
        self.open.add(queue)
        close = queue.close

        async def closed() -> None:
            self.open.discard(queue)
            await close()

        queue.close = closed  # type: ignore[method-assign]
        return queue


def test_values_of_keep_take_no_places(tmp_path: Path) -> None:
    store = Store(tmp_path)

    async def main() -> None:
        api = QueueApi(store, authorise)
        transport = httpx.ASGITransport(make_app(api))
        async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
            for n in range(1, opened.QUEUES_MAX + 20):
                answer = await client.get(f"/api/queue/a/stats?keep={n}", headers=HEADERS)
                assert answer.status_code == 200, answer.text
            answer = await client.get("/api/queue/b/stats", headers=HEADERS)
            assert answer.status_code == 200, answer.text
            assert store.made == ["a", "b"]
        await api.close()
        assert not store.open

    asyncio.run(main())


def test_the_queue_that_was_unused_for_longest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "QUEUES_MAX", 4)
    monkeypatch.setattr(opened, "QUEUES_EACH", 3)
    store = Store(tmp_path)

    async def main() -> None:
        queues = OpenQueues(store)

        def use(name: str, who: str) -> None:
            with queues.using(name, who, keeps=False):
                pass

        for name in ("a", "b", "c", "a", "d"):  # of b and c, b was unused for longer than a
            use(name, "one")
        use("a", "one")
        use("c", "one")
        assert store.made == ["a", "b", "c", "d"]
        use("x", "two")
        use("y", "two")  # all places are taken: the token with most queues loses one
        assert len(queues) == 4
        use("x", "two")
        use("c", "one")
        assert store.made == ["a", "b", "c", "d", "x", "y"]
        use("d", "one")
        assert store.made == ["a", "b", "c", "d", "x", "y", "d"]
        await queues.close()
        assert not store.open

    asyncio.run(main())


def test_a_queue_in_use_stays_open_and_only_its_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "QUEUES_MAX", 4)
    monkeypatch.setattr(opened, "QUEUES_EACH", 2)
    store = Store(tmp_path)

    async def main() -> None:
        queues = OpenQueues(store)
        with (
            queues.using("a", "one", keeps=False) as a,
            queues.using("b", "one", keeps=False),
        ):
            with (
                pytest.raises(
                    HttpError, match="2 queues are in use by calls of your token"
                ) as full,
                queues.using("c", "one", keeps=False),
            ):
                pass
            assert full.value.status == 429
            with queues.using("c", "two", keeps=False) as c:
                await c.put(NewJob("k"))
            await a.put(NewJob("k"))  # it is open
        with queues.using("c", "one", keeps=False):
            pass
        with queues.using("d", "one", keeps=False):
            pass
        await queues.close()

    asyncio.run(main())


def test_a_call_that_outlives_its_request_keeps_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "QUEUES_EACH", 1)
    store = Store(tmp_path)

    async def main() -> None:
        queues = OpenQueues(store)
        using = queues.using("a", "one", keeps=False)
        queue = using.__enter__()
        with queues.still_using(queue):
            using.__exit__(None, None, None)
            with pytest.raises(HttpError), queues.using("b", "one", keeps=False):
                pass
        with queues.using("b", "one", keeps=False):
            pass
        await queues.close()

    asyncio.run(main())


def test_many_queues_leave_nothing_behind(tmp_path: Path) -> None:
    """Messages to queues that nobody listens to are not kept, either."""
    store = Store(tmp_path)

    async def main() -> None:
        api = QueueApi(store, authorise)
        transport = httpx.ASGITransport(make_app(api))
        async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
            for n in range(opened.QUEUES_EACH + 10):
                said = {"message": "{}"}
                answer = await client.post(f"/api/queue/q{n}/hint", json=said, headers=HEADERS)
                assert answer.status_code == 200, answer.text
        while len(store.open) > opened.QUEUES_EACH:
            await asyncio.sleep(0)
        assert not api._exchanges
        await api.close()

    asyncio.run(main())


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("worker")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("memory", [False, True])
def test_a_workers_keep_prunes_no_job_of_others(tmp_path: Path, token: Path, memory: bool) -> None:
    clock = VirtualClock()
    shared: dict[str, Queue] = {}

    def open_queue(name: str, keep: float | None) -> Queue:
        if memory:
            return shared.setdefault(name, MemoryQueue(name, clock=clock, keep="30d"))
        return SqliteQueue(tmp_path / "jobs.db", name, clock=clock, keep=keep)

    async def finish(queue: Queue) -> str:
        [job_id] = await owner.put(NewJob("k"))
        await queue.settle([Settlement.done(each) for each in await queue.claim("w", 1, 60)])
        return job_id

    async def states(*ids: str) -> list[str | None]:
        found = [await owner.get(each) for each in ids]
        return [None if info is None else info.state for info in found]

    owner: Queue
    if memory:
        owner = open_queue("default", None)
    else:
        owner = SqliteQueue(tmp_path / "jobs.db", clock=clock, keep="30d")

    async def main() -> None:
        api = QueueApi(open_queue, authorise, clock, keep=7 * 86400.0)
        theirs = await finish(owner)
        async with inside(api, token, clock, keep="1ms") as greedy:
            await clock.sleep(60)
            assert await greedy.prune() == 0
            assert await states(theirs) == ["done"]
            if not memory:  # there, the queue of the owner is the one of the controller
                own = await finish(greedy)
                await clock.sleep(1)
                assert await greedy.prune() == 1, "the settlement said how long it is kept"
                assert await states(theirs, own) == ["done", None]
            await clock.sleep(7 * 86400.0)
            assert await greedy.prune() == 1, "the controller keeps jobs no longer than that"
        await api.close()
        if not memory:
            await owner.close()

    clock.run(main())


def test_a_settlement_keeps_a_job_as_long_as_its_call_says(tmp_path: Path, token: Path) -> None:
    clock = VirtualClock()
    store = Store(tmp_path, clock)

    async def main() -> None:
        api = QueueApi(store, authorise, clock)
        queue = inside(api, token, clock, keep="1d")
        [job_id] = await store("default", None).put(NewJob("k"))
        await queue.settle([Settlement.done(each) for each in await queue.claim("w", 1, 60)])
        for hours, there in ((23, True), (2, False)):
            await clock.sleep(hours * 3600)
            await queue.prune()
            assert (await store("default", None).get(job_id) is not None) is there
        await queue.close()
        await api.close()
        for each in list(store.open):
            await each.close()

    clock.run(main())
