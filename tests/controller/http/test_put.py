"""What comes with a put besides the work: headers for the handler, an entry in the audit log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller import Controller
from pollwise.controller.opening import state_at
from pollwise.errors import StoreUnavailable
from pollwise.runtime.events import JobPut
from tests.controller.farm import Farm, virtually_on_farm

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "von": "Ü\n"}


def test_the_trace_of_a_request_is_that_of_its_jobs(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(slots=9)
        sent = {"traceparent": TRACE["traceparent"], "tracestate": "a=1"}
        own = {"traceparent": TRACE["traceparent"].replace("b7ad", "aaaa")}
        jobs: list[Any] = [{"kind": "build"}, {"kind": "build", "headers": own}]
        await farm.call("POST", "/api/jobs", 201, headers=sent, json=jobs)
        await farm.call("POST", "/api/jobs", 201, headers=sent, json={"kind": "build"})
        forged = {"traceparent": "forged", "tracestate": "a=1"}
        await farm.call("POST", "/api/jobs", 201, headers=forged, json={"kind": "build"})
        work = (await agent.poll(max=9))["jobs"]
        assert [each["headers"] for each in work] == [sent, own, sent, {}]

    virtually_on_farm(main, tmp_path)


# Many at once


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_list_is_put_at_once(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(slots=5, platform="ios")
        jobs: list[Any] = [
            {"kind": "build", "payload": 1, "requires": {"platform": "ios"}},
            {"kind": "build", "payload": 2, "unique": "two"},
            {"kind": "test", "payload": 3, "priority": 5, "headers": {"a": "b"}, "timeout_s": 9},
        ]
        put, batches = farm.queue._put, []

        async def noted(batch: list[Any]) -> Any:
            batches.append(len(batch))
            return await put(batch)

        farm.queue._put = noted
        said = await farm.call("POST", "/api/jobs", 201, json=jobs)
        assert (len(set(said["ids"])), said["fresh"], batches) == (3, 3, [3])
        assert sorted(each.kind for each in farm.seen.of(JobPut)) == ["build", "build", "test"]
        again = await farm.call("POST", "/api/jobs", 201, json=[jobs[1], jobs[0]])
        assert (again["ids"][0], again["fresh"]) == (said["ids"][1], 1)
        assert len(farm.seen.of(JobPut)) == 4
        same = await farm.call("POST", "/api/jobs", 200, json=[jobs[1]])
        assert same == {"ids": [said["ids"][1]], "fresh": 0}
        work = (await agent.poll(max=4))["jobs"]
        assert [each["payload"] for each in work] == [3, 1, 2, 1]
        assert (work[0]["headers"], work[0]["timeout_s"]) == ({"a": "b"}, 9)
        view = await farm.job(said["ids"][0])
        assert (view["requires"], view["created_by"] is not None) == ({"platform": "ios"}, True)
        await asyncio.sleep(11)
        entries = (await farm.call("GET", "/api/audit"))["entries"]
        assert [each["detail"] for each in entries if each["action"] == "job.put"] == [
            "1 new of 2 jobs: build", "3 new of 3 jobs: build, test",
        ]  # fmt: skip

    virtually_on_farm(main, tmp_path, store)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_of_a_list_with_bad_jobs_none_is_put(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        good = {"kind": "build"}
        bad: list[Any] = [good, {"kind": ""}, good, {"kind": "b", "retries": 3}, None]
        error = (await farm.call("POST", "/api/jobs", 422, json=bad))["error"]
        assert [each["index"] for each in error["items"]] == [1, 3, 4]
        assert "no field 'retries'" in error["items"][1]["message"]
        assert error["message"].startswith("jobs[1]: kind = ''")
        assert "2 more are refused" in error["message"]
        await farm.put(unique="u", payload=1)
        clash: list[Any] = [good, {**good, "unique": "u", "payload": 2}]
        error = (await farm.call("POST", "/api/jobs", 409, json=clash))["error"]
        assert (error["code"], [each["index"] for each in error["items"]]) == (
            "unique_conflict", [1],
        )  # fmt: skip
        for many in ([], [good] * 1001):
            error = (await farm.call("POST", "/api/jobs", 422, json=many))["error"]
            assert f"a list of {len(many)} jobs; put from 1 to 1000" in error["message"]
        assert len(await farm.queue.jobs()) == 1

    virtually_on_farm(main, tmp_path, store)


# Headers


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_headers_travel_to_the_worker(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(platform="ios")
        job = await farm.put(headers=TRACE, requires={"platform": "ios"}, timeout_s=5)
        assert job["headers"] == TRACE, "and none of those that the controller adds"
        work = await agent.job()
        assert (work["headers"], work["timeout_s"]) == (TRACE, 5)
        assert (await farm.job(job["id"]))["headers"] == TRACE
        [listed] = (await farm.call("GET", "/api/jobs"))["jobs"]
        assert listed["headers"] == TRACE
        await agent.finish(job)
        assert (await farm.job(job["id"]))["headers"] == TRACE
        [info] = await farm.queue.jobs("done")
        assert TRACE.items() < dict(info.job.headers).items(), "other readers of the queue too"

    virtually_on_farm(main, tmp_path, store)


def test_a_job_without_headers_has_none(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        assert (await farm.put())["headers"] == {}
        given: tuple[Any, ...] = (None, {})
        for headers in given:
            assert (await farm.put(headers=headers))["headers"] == {}

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    "headers",
    [
        {"pollwise-attempts": "99"},
        {"pollwise-inputs": "x"},
        {"a": 1},
        {"a": None},
        {"a": "b\0"},
        {"a": "x" * 9000},
        ["a"],
        "a",
        7,
    ],
    ids=str,
)
def test_bad_headers_are_refused(tmp_path: Path, headers: Any) -> None:
    async def main(farm: Farm) -> None:
        body = {"kind": "build", "headers": headers}
        said = await farm.call("POST", "/api/jobs", 422, json=body)
        assert "header" in said["error"]["message"]
        assert (await farm.call("GET", "/api/jobs"))["jobs"] == []

    virtually_on_farm(main, tmp_path)


# The audit log


async def puts(farm: Farm) -> list[Any]:
    """The entries of puts in the audit log, newest first."""
    entries = (await farm.call("GET", "/api/audit"))["entries"]
    return [entry for entry in entries if entry["action"] == "job.put"]


def test_puts_are_in_the_audit_log_soon(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token, secret = await farm.controller.tokens.make("put", "ci")
        mine = {"Authorization": f"Bearer {secret}"}
        first = await farm.call("POST", "/api/jobs", 201, mine, json={"kind": "build"})
        await asyncio.sleep(2)
        by_code = await farm.controller.put("test", by="shop")
        again = {"kind": "test", "unique": "u"}
        unique = await farm.call("POST", "/api/jobs", 201, json=again)
        await farm.call("POST", "/api/jobs", 200, json=again)
        await farm.call("POST", "/api/jobs", 422, json={"kind": ""})
        await asyncio.sleep(11)
        newest, second, oldest = await puts(farm)
        assert (oldest["who"], oldest["what"]) == (f"token:{token.id}", first["id"])
        assert (oldest["detail"], oldest["address"]) == ("build", "127.0.0.1")
        assert oldest["at"] == first["created_at"], "when it was put, not when it was written"
        assert (second["who"], second["what"]) == ("shop", by_code)
        assert (newest["what"], newest["at"]) == (unique["id"], unique["created_at"])

    virtually_on_farm(main, tmp_path)


def test_puts_wait_for_a_state_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(farm: Farm) -> None:
        async def failing(*_: Any) -> None:
            raise StoreUnavailable("on purpose")

        monkeypatch.setattr(farm.controller.storage, "audit", failing)
        jobs = [await farm.put()]
        await asyncio.sleep(30)
        jobs.append(await farm.put())
        monkeypatch.undo()
        await asyncio.sleep(30)
        entries = await puts(farm)
        assert [each["what"] for each in entries] == [job["id"] for job in reversed(jobs)]
        assert [each["at"] for each in entries] == [job["created_at"] for job in reversed(jobs)]

    virtually_on_farm(main, tmp_path)


def test_a_close_writes_the_puts_down(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        async with Controller(url) as controller:
            job = await controller.put("build")
        async with state_at(url) as state:
            [entry] = await state.list_audit(action="job.put")
        assert (entry.what, entry.who) == (job, "application")

    asyncio.run(main())
