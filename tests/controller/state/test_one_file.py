"""Queue and state in one SQLite file: one transaction for what belongs together, all or nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.state.sqlite.one_file import OneFile
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import StoreError
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import HintPushed, JobDelivered
from tests.controller.farm import Farm, soon, virtually_on_farm
from tests.support.kit import CountedSqlite

Main = Callable[[Farm], Coroutine[Any, Any, None]]


@pytest.fixture
def on(tmp_path: Path) -> Callable[[Main], None]:
    return lambda main: virtually_on_farm(main, tmp_path, "one file")


def file_of(farm: Farm) -> Any:
    """The state's side of the file, in whose thread all is done."""
    return farm.controller.storage._store  # type: ignore[attr-defined]


class Begun:
    """Counts the transactions that are begun on the connection of the state."""

    def __init__(self, farm: Farm) -> None:
        self.count = 0
        file_of(farm).connect().set_trace_callback(self._trace)

    def _trace(self, statement: str) -> None:
        self.count += statement.startswith("BEGIN")

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


def test_only_what_is_in_one_file_and_written_alike_is_one(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "a.db"
    queue = SqliteQueue(path, "agents", clock=clock)
    assert OneFile.of(queue, SqliteState(path, clock=clock)) is not None
    for state in (
        SqliteState(tmp_path / "b.db", clock=clock),
        SqliteState(path, clock=clock, synchronous="off"),
        SqliteState(path, clock=Clock()),
    ):
        assert OneFile.of(queue, state) is None
    for other in (MemoryQueue("agents", clock=clock), CountedSqlite(path, "agents", clock=clock)):
        assert OneFile.of(other, SqliteState(path, clock=clock)) is None


def test_each_step_of_a_job_is_one_transaction(on: Callable[[Main], None]) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await agent.finish(await _one_job(farm, agent))  # the tables are made
        begun = Begun(farm)
        first = await farm.put()
        assert begun.since() == 1
        second = await farm.put()
        begun.since()
        assert (await agent.job())["id"] == first["id"]
        assert begun.since() == 1
        said = await agent.post(finished=[{"job_id": first["id"], "state": "done"}])
        assert said.json()["job"]["id"] == second["id"]
        assert begun.since() == 1  # the report, and the next job
        await agent.finish(second)
        assert begun.since() == 1
        assert (await agent.poll())["job"] is None
        assert begun.since() == 0  # who finds nothing takes no lock

    on(main)


def test_a_submission_is_in_the_audit_log(on: Callable[[Main], None]) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put(unique="once")
        await farm.call("POST", "/api/jobs", 200, json={"kind": "build", "unique": "once"})
        entries = await farm.controller.storage.list_audit(action="job.put")
        assert [(each.what, each.detail) for each in entries] == [(job["id"], "build")]
        assert entries[0].who.startswith("token:")
        assert entries[0].address

    on(main)


def test_a_submission_that_fails_leaves_nothing(
    on: Callable[[Main], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(file_of(farm), "audit", full)
        answer = await farm.http.post("/api/jobs", json={"kind": "build"}, headers=farm.admin)
        assert answer.status_code == 503 or answer.status_code == 500
        monkeypatch.undo()
        assert (await farm.call("GET", "/api/jobs"))["jobs"] == []
        assert (await farm.queue.stats()).ready == 0
        job = await farm.put()
        assert (await agent.job())["id"] == job["id"]

    on(main)


def test_a_job_that_cannot_be_delivered_stays_in_the_queue(
    on: Callable[[Main], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()

        def broken(*_: object) -> None:
            raise StoreError("the state is broken; mend it")

        monkeypatch.setattr(file_of(farm), "deliver", broken)
        assert (await agent.get()).status_code >= 500
        monkeypatch.undo()
        stats = await farm.queue.stats()
        assert (stats.ready, stats.leased) == (1, 0)
        taken = await agent.job()
        assert (taken["id"], taken["attempt"]) == (job["id"], 1)

    on(main)


def test_a_worker_is_told_while_the_disk_is_waited_for(
    on: Callable[[Main], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await agent.finish(await _one_job(farm, agent))
        told: list[Any] = []
        known = await farm.controller.registry.get(agent.id)
        assert known is not None

        async def send(message: Any) -> None:
            told.append(message)

        farm.controller.sockets.connect(known, send)
        await soon(lambda: bool(told))
        await asyncio.sleep(10)
        assert (await agent.poll())["job"] is None
        told.clear()
        disk = threading.Event()
        audit = file_of(farm).audit

        def slow(*given: Any) -> None:
            disk.wait(20)
            audit(*given)

        monkeypatch.setattr(file_of(farm), "audit", slow)
        try:
            putting = asyncio.ensure_future(farm.put())
            await soon(lambda: bool(told))
            taking = asyncio.ensure_future(agent.job())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not putting.done()
            assert not taking.done()
        finally:
            disk.set()
        assert (await taking)["id"] == (await putting)["id"]

    on(main)


def test_what_was_put_before_is_no_hint(on: Callable[[Main], None]) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        held = asyncio.ensure_future(agent.job(wait=60))
        await asyncio.sleep(1)
        job = await farm.put(unique="once")
        assert (await held)["id"] == job["id"]
        await agent.finish(job)
        await asyncio.sleep(10)
        known = await farm.controller.registry.get(agent.id)
        assert known is not None
        await agent.poll()
        before = known.group.puts
        await farm.call("POST", "/api/jobs", 200, json={"kind": "build", "unique": "once"})
        assert known.group.puts == before

    on(main)


async def _one_job(farm: Farm, agent: Any) -> Any:
    await farm.put()
    return await agent.job()


def test_a_poll_that_is_cancelled_is_as_an_answer_that_was_lost(
    on: Callable[[Main], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        known = await farm.controller.registry.get(agent.id)
        assert known is not None
        await farm.controller.runs.read(known, afresh=True)
        claimed, go_on = threading.Event(), threading.Event()
        deliver = file_of(farm).deliver

        def slow(*given: Any) -> Any:
            claimed.set()
            go_on.wait(20)
            return deliver(*given)

        monkeypatch.setattr(file_of(farm), "deliver", slow)
        taking = asyncio.ensure_future(farm.controller.runs.claim(known, 1))
        try:
            await soon(claimed.is_set)
            taking.cancel()
            await asyncio.wait([taking])
        finally:
            go_on.set()
        again = await agent.job()
        assert (again["id"], again["attempt"]) == (job["id"], 1)
        assert farm.seen.of(JobDelivered)[-1].again

    on(main)


def test_what_falls_due_behind_a_full_claim_is_not_forgotten(on: Callable[[Main], None]) -> None:
    async def main(farm: Farm) -> None:
        one, two = await farm.register("one"), await farm.register("two")
        soon_, later = [await farm.put(delay_s=delay) for delay in (20, 40)]
        held = [asyncio.ensure_future(each.job(wait=60)) for each in (one, two)]
        got = await asyncio.gather(*held)
        assert {each["id"] for each in got} == {soon_["id"], later["id"]}
        assert farm.clock.now() == pytest.approx(40, abs=0.5)

    on(main)


@pytest.mark.parametrize("alike", [True, False], ids=["one group", "each its own"])
def test_of_a_thousand_who_listen_few_are_told(on: Callable[[Main], None], alike: bool) -> None:
    async def main(farm: Farm) -> None:
        controller = farm.controller
        count = 1000 if alike else 100
        told: list[str] = []
        taken: list[str] = []
        await farm.put()
        if not alike:  # jobs for each of them alone make each a group of its own
            for number in range(count):
                await farm.put("own", requires={"host": f"h{number}"}, delay_s=3600)

        def sender(worker_id: str) -> Any:
            async def send(message: Any) -> None:
                if message.get("hint"):
                    told.append(worker_id)

            return send

        for number in range(count):
            row = await controller.registry.register(
                f"w{number}", {"host": f"h{number}"}, 1,
                token_hash=f"{number:064x}", expires_at=None, who="test", address="",
            )  # fmt: skip
            known = await controller.registry.get(row.id)
            assert known is not None
            push = controller.sockets.connect(known, sender(row.id))
            found = await controller.runs.claim(known, 1)  # the first of them takes the first job
            push.polled(idle=not found)
            controller.registry.found(known, len(found), 1, farm.clock.now())
        await asyncio.sleep(1)
        told.clear()
        assert len(controller.sockets) == count
        await farm.put()
        await soon(lambda: bool(told))
        while len(taken) < len(told):  # whoever is told polls
            worker_id = told[len(taken)]
            taken.append(worker_id)
            known = await controller.registry.get(worker_id)
            assert known is not None
            found = await controller.runs.claim(known, 1)
            controller.registry.found(known, len(found), 1, farm.clock.now())
        await asyncio.sleep(5)
        assert len(told) == 1
        told.clear()
        await farm.put()
        await asyncio.sleep(1.2)
        assert len(set(told)) == len(told) == 3  # who does not poll is followed by the next
        assert len(farm.seen.of(HintPushed)) <= count + 5

    on(main)
