"""The attempts of a job: who ran each, how it ended, and its part of the log; deaths; names."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.state.values import WorkerSeen
from pollwise.runtime.events import JobDied, WorkerSilent, log
from tests.controller.farm import Agent, Farm, virtually_on_farm


async def run(farm: Farm, agent: Agent, text: bytes, state: str = "failed", **given: Any) -> str:
    """Take a job, write to its log, and report it."""
    job = await agent.job()
    path = f"/api/jobs/{job['id']}/logs?offset=0"
    assert (await farm.http.post(path, content=text, headers=agent.headers)).status_code == 200
    await agent.finish(job, state, **given)
    job_id: str = job["id"]
    return job_id


async def log_of(farm: Farm, job_id: str, attempt: int) -> str:
    path = f"/api/jobs/{job_id}/logs?attempt={attempt}"
    answer = await farm.http.get(path, headers=farm.admin)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_each_attempt_has_its_worker_its_error_and_its_log(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        one, two = await farm.register("mini-1"), await farm.register("mini-2")
        job_id = (await farm.put(attempts=4))["id"]
        path = f"/api/jobs/{job_id}/attempts"
        assert (await farm.call("GET", path))["attempts"] == []
        await run(farm, one, b"first\n", error="no disk")
        await asyncio.sleep(30)
        await two.job()  # writes nothing, and falls silent
        await asyncio.sleep(65)
        assert (await one.poll())["job"] is None
        await asyncio.sleep(65)
        await run(farm, one, b"third\n", error="no net")
        await asyncio.sleep(60)
        await run(farm, two, b"fourth\n", "done")
        found = (await farm.call("GET", path))["attempts"]
        assert [(each["attempt"], each["state"], each["worker_name"]) for each in found] == [
            (1, "failed", "mini-1"), (2, "failed", "mini-2"), (3, "failed", "mini-1"),
            (4, "done", "mini-2"),
        ]  # fmt: skip
        assert [each["error"] for each in found] == [
            "no disk", f"the lease of mini-2 ({two.id}) ran out", "no net", None,
        ]  # fmt: skip
        logs = [await log_of(farm, job_id, n) for n in (1, 3, 4)]
        assert logs == [
            "first\n",
            "[pollwise: attempt 3]\nthird\n",
            "[pollwise: attempt 4]\nfourth\n",
        ]
        whole = await farm.http.get(f"/api/jobs/{job_id}/logs", headers=farm.admin)
        assert whole.text == "".join(logs)
        ranged = await farm.http.get(
            f"/api/jobs/{job_id}/logs?attempt=1", headers={**farm.admin, "Range": "bytes=1-3"}
        )
        assert (ranged.status_code, ranged.text) == (206, "irs")
        for query, status in (("attempt=2", 404), ("attempt=9", 404), ("attempt=0", 422)):
            await farm.call("GET", f"/api/jobs/{job_id}/logs?{query}", status)
        await farm.call("GET", f"/api/jobs/{job_id}/logs?attempt=1&follow=true", 422)

    virtually_on_farm(main, tmp_path, store)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_lapsed_attempt_has_its_worker_and_its_times(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        one = await farm.register("mini-1")
        job_id = (await farm.put(attempts=4))["id"]
        began = farm.clock.epoch()
        await one.job()  # writes nothing, and falls silent
        await asyncio.sleep(300)
        await farm.controller.runs.sweep()  # it notices that the worker is silent
        await farm.controller.queue.claim("other", 1, 60.0, kinds=["other"])  # the lease runs out
        (lapsed,) = (await farm.call("GET", f"/api/jobs/{job_id}/attempts"))["attempts"]
        assert (lapsed["worker_id"], lapsed["worker_name"]) == (one.id, "mini-1")
        assert lapsed["state"] == "failed"
        begin, end = (
            datetime.fromisoformat(lapsed[name]).timestamp() for name in ("began_at", "ended_at")
        )
        assert begin == pytest.approx(began, abs=1)
        assert began + 120 <= end <= began + 301

    virtually_on_farm(main, tmp_path, store)


def test_a_job_that_is_retried_by_an_operator_counts_from_one_again(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register("mini")
        job_id = (await farm.put(attempts=1))["id"]
        await run(farm, agent, b"before\n", error="no")
        await asyncio.sleep(60)
        await farm.call("POST", f"/api/jobs/{job_id}/retry")
        await run(farm, agent, b"after\n", "done")
        found = (await farm.call("GET", f"/api/jobs/{job_id}/attempts"))["attempts"]
        assert [(each["attempt"], each["log_start"]) for each in found] == [(1, 0), (1, 7)]
        assert found[-1]["state"] == "done"
        assert (await log_of(farm, job_id, 1)).endswith("after\n"), "the newest"

    virtually_on_farm(main, tmp_path)


def test_a_running_attempt_is_shown(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register("mini")
        job_id = (await farm.put())["id"]
        await agent.job()
        [only] = (await farm.call("GET", f"/api/jobs/{job_id}/attempts"))["attempts"]
        assert (only["state"], only["worker_id"], only["ended_at"]) == ("leased", agent.id, None)
        assert (only["log_start"], only["log_end"]) == (None, None)

    virtually_on_farm(main, tmp_path)


# Deaths


def test_deaths_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(farm: Farm) -> None:
        farm.seen.events.subscribe(log)
        agent, silent = await farm.register("mini"), await farm.register("gone")
        await farm.put(attempts=1)
        job = await agent.job()
        await agent.finish(job, "failed", error="exploded")
        [died] = farm.seen.of(JobDied)
        assert (died.job, died.kind, died.error) == (job["id"], "build", "exploded")
        await silent.poll()
        for _ in range(15):
            await asyncio.sleep(10)
            await agent.get()
        [told] = farm.seen.of(WorkerSilent)
        assert (told.worker, told.name) == (silent.id, "gone")
        assert told.silent > 120

    with caplog.at_level(logging.INFO, "pollwise"):
        virtually_on_farm(main, tmp_path)
    actions = {vars(each).get("action"): each.levelname for each in caplog.records}
    assert actions["job_died"] == "ERROR"
    assert actions["worker_silent"] == "WARNING"


def test_a_worker_that_polls_another_controller_is_not_silent(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent, elsewhere = await farm.register("mini"), await farm.register("elsewhere")
        for _ in range(15):
            await asyncio.sleep(10)
            await agent.get()
            await farm.controller.storage.seen([WorkerSeen(elsewhere.id)])
        assert farm.seen.of(WorkerSilent) == []

    virtually_on_farm(main, tmp_path)


# Names


def test_names_are_shown_beside_ids(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        made = await farm.call("POST", "/api/tokens", 201, json={"scope": "put", "name": "the ci"})
        assert made["created_by"].endswith("(test admin)")
        ci = {"Authorization": f"Bearer {made['token']}"}
        job = await farm.call("POST", "/api/jobs", 201, headers=ci, json={"kind": "build"})
        assert (job["created_by"], job["created_by_name"]) == (f"token:{made['id']}", "the ci")
        agent = await farm.register("mini")
        await agent.job()
        [listed] = (await farm.call("GET", "/api/jobs"))["jobs"]
        assert (listed["worker_id"], listed["worker_name"]) == (agent.id, "mini")
        assert listed["created_by_name"] == "the ci"
        await farm.call("POST", f"/api/jobs/{job['id']}/cancel", headers=ci)
        await farm.call("POST", f"/api/workers/{agent.id}/drain")
        await farm.call("POST", f"/api/workers/{agent.id}/unregister", headers=agent.headers)
        await asyncio.sleep(11)
        entries = (await farm.call("GET", "/api/audit"))["entries"]
        said = {each["action"]: (each["who_name"], each["detail"]) for each in entries}
        assert said["job.put"] == ("the ci", "build")
        assert said["job.cancel"] == ("the ci", "build")
        assert said["worker.drain"] == ("test admin", "mini: on")
        assert said["worker.unregister"] == ("mini", "mini")
        [cancel] = [each for each in entries if each["action"] == "job.cancel"]
        assert cancel["who"] == f"token:{made['id']}"

    virtually_on_farm(main, tmp_path)
