"""Files and logs are there as long as their job, and no longer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller import retention
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import StoreUnavailable
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob, Settlement
from tests.controller.farm import Agent, Farm, farm_on, virtually_on_farm

KEEP = "1h"


def files_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "artefacts").rglob("*") if path.is_file()]


async def put_files(farm: Farm, status: int = 201, text: bytes = b"int main;", **job: Any) -> Any:
    """Put a job with one input."""
    files = [
        ("job", (None, json.dumps({"kind": "build", **job}))),
        ("source", ("main.c", text)),
    ]
    return await farm.call("POST", "/api/jobs", status, files=files)


async def input_of(farm: Farm, job_id: str) -> bytes:
    path = f"/api/jobs/{job_id}/inputs/main.c"
    return (await farm.http.get(path, headers=farm.admin)).content


async def leave_files(farm: Farm, agent: Agent, text: str) -> str:
    """Run a job that leaves a log and an artefact; its id."""
    job: str = (await agent.job())["id"]
    path = f"/api/jobs/{job}"
    sent = await farm.http.put(f"{path}/artefacts/a", content=text, headers=agent.headers)
    assert sent.status_code == 201, sent.text
    sent = await farm.http.post(f"{path}/logs?offset=0", content=text, headers=agent.headers)
    assert sent.status_code == 200, sent.text
    await agent.finish(job)
    return job


async def files_of(farm: Farm, job_id: str) -> tuple[str, str]:
    """The artefact and the log that `leave_files` left."""
    path = f"/api/jobs/{job_id}"
    artefact = await farm.http.get(f"{path}/artefacts/a", headers=farm.admin)
    log = await farm.http.get(f"{path}/logs", headers=farm.admin)
    assert (artefact.status_code, log.status_code) == (200, 200)
    return artefact.text, log.text


async def pass_time(farm: Farm, hours: int) -> None:
    """Let time pass, with a request now and then, so that the controller does its chores."""
    for _ in range(hours * 6):
        await asyncio.sleep(600)
        await farm.call("GET", "/api/jobs")
    await asyncio.sleep(601)


async def folders(farm: Farm) -> list[tuple[str, str]]:
    await asyncio.sleep(1)
    return await farm.controller.storage.folders_before(0, 100)


@contextmanager
def failing_puts(farm: Farm, *, after: bool = False) -> Iterator[None]:
    """The queue does not answer a put. after: it puts the job all the same."""
    put = farm.queue.put_counted

    async def failing(job: NewJob) -> Any:
        if after:
            await put(job)
        raise StoreUnavailable("on purpose")

    farm.queue.put_counted = failing
    try:
        yield
    finally:
        farm.queue.put_counted = put


# Inputs of puts that fail


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_inputs_of_a_put_that_is_refused_are_deleted(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        first = await put_files(farm, payload=1, unique="u")
        kept = files_in(tmp_path)
        refused = await put_files(farm, 409, b"other", payload=2, unique="u")
        assert refused["error"]["code"] == "unique_conflict"
        again = await put_files(farm, 200, b"other", payload=1, unique="u")
        assert (again["id"], again["inputs"]) == (first["id"], ["main.c"])
        assert files_in(tmp_path) == kept
        assert await input_of(farm, first["id"]) == b"int main;"
        assert len(await folders(farm)) == 1

    virtually_on_farm(main, tmp_path, store)


@pytest.mark.parametrize("headers", [{"a": 1}, {"a": "x" * 9000}])
def test_no_file_is_stored_for_a_job_that_is_invalid(tmp_path: Path, headers: Any) -> None:
    async def main(farm: Farm) -> None:
        refused = await put_files(farm, 422, headers=headers)
        assert "header" in refused["error"]["message"]
        assert files_in(tmp_path) == []
        assert await folders(farm) == []

    virtually_on_farm(main, tmp_path)


def test_inputs_of_a_put_without_an_answer_stay_for_the_put_that_is_repeated(
    tmp_path: Path,
) -> None:
    async def main(farm: Farm) -> None:
        with failing_puts(farm, after=True):
            await put_files(farm, 503, unique="u")
        job = await put_files(farm, 200, unique="u")
        await pass_time(farm, 3)
        assert await input_of(farm, job["id"]) == b"int main;"
        assert len(files_in(tmp_path)) == 1

    virtually_on_farm(main, tmp_path, keep=KEEP)


# Retention


def test_uploads_whose_job_was_never_put_are_deleted(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        with failing_puts(farm):
            await put_files(farm, 503)
        assert len(files_in(tmp_path)) == 1, "the job may have been put all the same"
        await asyncio.sleep(1800)
        await pass_time(farm, 0)
        assert len(files_in(tmp_path)) == 1
        await pass_time(farm, 1)
        assert files_in(tmp_path) == []
        assert await folders(farm) == []

    virtually_on_farm(main, tmp_path, keep=KEEP)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_files_and_logs_go_with_their_job_and_not_before(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        waits = await put_files(farm, kind="other", requires={"platform": "ios"})
        await put_files(farm)
        ended = await leave_files(farm, agent, "made")
        dropped = await put_files(farm, delay_s=86400)
        assert await files_of(farm, ended) == ("made", "made")
        assert len(await folders(farm)) == 4
        await farm.queue.cancel([dropped["id"]])
        await pass_time(farm, 3)
        for gone in (ended, dropped["id"]):
            await farm.call("GET", f"/api/jobs/{gone}", 404)
        [(_, owner)] = await folders(farm)
        assert owner == farm.controller.jobs.folder_of(waits["id"])
        assert await input_of(farm, waits["id"]) == b"int main;"
        assert len(files_in(tmp_path)) == 1

    virtually_on_farm(main, tmp_path, store, keep=KEEP)


def test_files_of_a_job_that_runs_long_stay(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await put_files(farm)
        await agent.job()
        sent = await farm.http.post(
            f"/api/jobs/{job['id']}/logs?offset=0", content=b"begun", headers=agent.headers
        )
        assert sent.status_code == 200
        for _ in range(3 * 60):
            await asyncio.sleep(60)
            await agent.poll(max=0, running=job["id"])
        assert await input_of(farm, job["id"]) == b"int main;"
        log = await farm.http.get(f"/api/jobs/{job['id']}/logs", headers=farm.admin)
        assert log.text == "begun"

    virtually_on_farm(main, tmp_path, keep=KEEP)


# Two queues on one state


@asynccontextmanager
async def two_farms(folder: Path, clock: VirtualClock, store: str) -> AsyncIterator[list[Farm]]:
    """Controllers of the queues `a` and `b`, whose state and folder for files are the same."""
    names = ("a", "b")
    state: SqliteState | None = None
    if store == "memory":  # ids that both have
        queues: list[Any] = [MemoryQueue(name, clock=clock, keep=KEEP) for name in names]
        state = SqliteState(folder / "state.db", synchronous="off", clock=clock)
    else:
        file = folder / "jobs.db"
        queues = [SqliteQueue(file, name, clock=clock, watch=0, keep=KEEP) for name in names]
    async with farm_on(queues[0], clock, folder, state=state) as a:
        async with farm_on(queues[1], clock, folder, admin=False, state=state) as b:
            b.admin = a.admin
            yield [a, b]
    for each in (*queues, *([] if state is None else [state])):
        await each.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_controllers_of_two_queues_on_one_state_do_not_mix_files(
    tmp_path: Path, store: str
) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with two_farms(tmp_path, clock, store) as farms:
            jobs = []
            for farm in farms:
                text = farm.controller.source
                put = await put_files(farm, text=text.encode(), unique="u")
                assert await leave_files(farm, await farm.register(), text) == put["id"]
                jobs.append(put["id"])
            for farm, job in zip(farms, jobs, strict=True):
                text = farm.controller.source
                assert await files_of(farm, job) == (text, text)
                assert await input_of(farm, job) == text.encode()
                listed = await farm.call("GET", f"/api/jobs/{job}/artefacts")
                assert len(listed["artefacts"]) == 1
            if store == "memory":
                assert jobs == ["1", "1"]

    clock.run(main())


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("which", [0, 1], ids=["a", "b"])
def test_retention_leaves_the_files_of_another_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, which: int
) -> None:
    monkeypatch.setattr(retention, "RETENTION_LIMIT", 2)  # what stays must not hide what goes
    clock = VirtualClock()

    async def main() -> None:
        async with two_farms(tmp_path, clock, store) as farms:
            for farm in farms:
                agent = await farm.register()
                for _ in range(3):
                    await farm.put()
                    await leave_files(farm, agent, farm.controller.source)
            assert len(await folders(farms[0])) == 6
            await asyncio.sleep(7200)
            for _ in range(3):
                await farms[which].controller._retain()
            other = farms[1 - which]
            left = await folders(other)
            assert len(left) == 3
            assert all(other.controller.jobs.job_of(owner) for _, owner in left)
            assert len(files_in(tmp_path)) == 3

    clock.run(main())


@pytest.mark.parametrize("dead", [False, True], ids=["done", "dead"])
def test_a_turn_goes_on_until_all_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    monkeypatch.setattr(retention, "RETENTION_LIMIT", 10)

    async def main(farm: Farm) -> None:
        for _ in range(25):
            await put_files(farm)
        ids = [info.job.id for info in await farm.queue.jobs(limit=100)]
        ids += await farm.queue.put([NewJob("bulk") for _ in range(2500)])
        if dead:
            claims = await farm.queue.claim("w", 10_000, 60)
            await farm.queue.settle([Settlement.dead(claim, "broken") for claim in claims])
        else:
            await farm.queue.cancel(ids)
        await asyncio.sleep(7200 if dead else 3601)
        await farm.call("GET", "/api/jobs")  # a controller without requests rests
        await asyncio.sleep(retention.RETENTION_EVERY + 60)
        assert len(await farm.queue.jobs(limit=1000)) == 0
        assert await folders(farm) == []
        assert files_in(tmp_path) == []

    virtually_on_farm(main, tmp_path, keep=KEEP)
