"""A job's life over HTTP: put, delivered, kept, reported, cancelled, retried, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller import ControllerOptions
from pollwise.controller.jobs import new_job
from pollwise.controller.terms import JobTerms
from pollwise.errors import StoreUnavailable
from pollwise.runtime.events import JobGivenUp, JobLapsed
from pollwise.runtime.jobs import LAPSES_ALONE, NewJob, Settlement
from pollwise.testing import VirtualClock
from tests.controller.farm import Farm, claims, farm_on, two_queues, virtually_on_farm

OnFarm = Callable[..., None]


@pytest.fixture(params=["memory", "sqlite"])
def on(request: pytest.FixtureRequest, tmp_path: Path) -> OnFarm:
    def run(main: Callable[[Farm], Coroutine[Any, Any, None]], **options: Any) -> None:
        virtually_on_farm(main, tmp_path, request.param, **options)

    return run


def test_a_job_goes_all_the_way(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register("mini", platform="ios")
        sent = await farm.put("build", {"ref": "main"}, requires={"platform": "ios"})
        assert sent["state"] == "ready"
        assert sent["waiting_for"] is None
        job = await agent.job()
        assert (job["id"], job["payload"], job["attempt"]) == (sent["id"], {"ref": "main"}, 1)
        assert job["lease_s"] == 120
        seen = await farm.job(job["id"])
        assert (seen["state"], seen["worker_id"]) == ("leased", agent.id)
        said = await agent.finish(job, result={"ok": True}, exit_code=0)
        assert said["lost"] == []
        ended = await farm.job(job["id"])
        assert (ended["state"], ended["result"], ended["error"]) == ("done", {"ok": True}, None)
        assert await farm.call("GET", f"/api/jobs/{job['id']}/result") == {"ok": True}
        stats = await farm.queue.stats()
        assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)

    on(main)


def test_people_see_no_envelope_and_its_worker_does(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        envelope = {"~codec": "zlib", "data": "AAAA"}
        agent = await farm.register()
        sent = await farm.put("build", envelope)
        assert sent["payload"] == "<encoded with zlib, 3 bytes>"
        job = await agent.job()
        assert job["payload"] == envelope
        await agent.finish(job, result=envelope)
        ended = await farm.job(job["id"])
        assert ended["payload"] == ended["result"] == "<encoded with zlib, 3 bytes>"
        [listed] = (await farm.call("GET", "/api/jobs"))["jobs"]
        assert listed["payload"] == listed["result"] == "<encoded with zlib, 3 bytes>"

    on(main)


def test_a_poll_that_carries_all(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(slots=3)
        for number in range(3):
            await farm.put("build", number)
        first = await agent.poll(max=2)
        assert [job["payload"] for job in first["jobs"]] == [0, 1]
        assert first["job"] == first["jobs"][0]
        assert first["next_poll_s"] == 0  # there may be more
        one, two = (job["id"] for job in first["jobs"])
        log = {"offset": 0, "text": "half way\n"}
        answer = await agent.post(
            max=2,
            running=[{"job_id": two, "progress": 0.5, "message": "linking", "log": log}],
            finished=[{"job_id": one, "state": "done", "result": 7}],
        )
        said = answer.json()
        assert [job["payload"] for job in said["jobs"]] == [2]
        assert (said["lost"], said["cancel"], said["drain"]) == ([], [], False)
        running = await farm.job(two)
        assert (running["progress"], running["message"]) == (0.5, "linking")
        text = await farm.http.get(f"/api/jobs/{two}/logs", headers=farm.admin)
        assert text.text == "half way\n"
        assert (await farm.job(one))["result"] == 7

    on(main)


def test_a_lost_answer_is_given_again_and_no_other_job(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        other = await farm.register()
        first = await farm.put("build", 1)
        second = await farm.put("build", 2)
        lost = await agent.job()
        assert lost["id"] == first["id"]
        again = await agent.job()
        assert (again["id"], again["attempt"]) == (first["id"], 1)
        assert (await other.job())["id"] == second["id"]
        # Once it is heard of, the worker gets other jobs, and this one no more.
        assert (await agent.poll(running=first["id"]))["job"] is None
        await asyncio.sleep(10)
        assert (await agent.poll())["job"] is None
        await agent.finish(first["id"])
        assert (await farm.job(first["id"]))["attempt"] == 1

    on(main)


def test_a_lost_report_is_taken_once_more(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        assert (await agent.post(max=0, running=None, finished=None)).status_code == 200
        assert (await agent.finish(job, result=1))["lost"] == []
        assert (await agent.finish(job, result=1))["lost"] == []
        other = await farm.register()
        assert (await other.finish(job, result=2))["lost"] == [job["id"]]
        assert (await farm.job(job["id"]))["result"] == 1

    on(main)


def test_a_silent_worker_loses_its_job_until_it_is_dead(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        first, second = await farm.register("a"), await farm.register("b")
        job = await farm.put(attempts=2)
        assert (await first.job())["attempt"] == 1
        await asyncio.sleep(60)
        assert (await second.poll())["job"] is None  # the lease holds
        await asyncio.sleep(61)
        taken = await second.job()
        assert (taken["id"], taken["attempt"]) == (job["id"], 2)
        late = await first.post(max=0, running=[{"job_id": job["id"]}])
        assert late.json()["lost"] == [job["id"]]
        refused = await first.heartbeat(job["id"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "lease_lost")
        assert (await first.finish(job, result="late"))["lost"] == [job["id"]]
        for _ in range(6):  # nobody else may take its last attempt, so it is awaited for longer
            assert (await farm.job(job["id"]))["state"] == "leased"
            await asyncio.sleep(100.1)
            assert (await first.poll())["job"] is None
        dead = await farm.job(job["id"])
        assert (dead["state"], dead["attempt"]) == ("dead", 2)
        assert "silent" in dead["error"]
        assert len(farm.seen.of(JobGivenUp)) == 1
        assert len(farm.seen.of(JobLapsed)) >= 1
        assert (await farm.queue.stats()).leased == 0

    on(main)


def test_a_store_that_was_away_for_long_takes_no_job_from_its_worker(
    on: OnFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(farm: Farm) -> None:
        agent, other = await farm.register("a"), await farm.register("b")
        job = await farm.put()
        await agent.job()

        async def away(*_: object, **given: object) -> None:
            raise StoreUnavailable("it is away")

        with monkeypatch.context() as patch:
            for call in ("jobs", "get", "renew", "claim"):
                patch.setattr(farm.queue, call, away)
            for _ in range(7):
                await asyncio.sleep(20)
                assert (await agent.get(running=job["id"])).status_code == 503
                assert (await other.get()).status_code in (200, 503)
        await asyncio.sleep(10)
        assert (await other.poll())["job"] is None, "the first one has time to return"
        await asyncio.sleep(50)
        assert (await agent.poll(max=0, running=job["id"]))["job"] is None
        assert (await agent.finish(job))["lost"] == []
        assert (await farm.job(job["id"]))["attempt"] == 1

    on(main)


def test_whoever_is_heard_of_keeps_its_jobs(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent, other = await farm.register(slots=2), await farm.register()
        polled, beaten = await farm.put(), await farm.put()
        await agent.poll(max=2)
        for _ in range(10):
            await asyncio.sleep(50)
            await agent.poll(running=f"{polled['id']},{beaten['id']}", max=0)
            answer = await agent.heartbeat(beaten["id"], progress=0.25)
            assert answer.json() == {"cancel": False, "lease_s": 120.0}
            assert (await other.poll())["job"] is None
        for job in (polled, beaten):
            assert (await farm.job(job["id"]))["state"] == "leased"
            assert (await agent.finish(job))["lost"] == []

    on(main)


def test_a_job_that_its_worker_forgot_goes_to_another(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent, other = await farm.register(), await farm.register()
        job = await farm.put()
        await agent.job()
        await agent.poll(running=job["id"])
        for _ in range(3):  # it was restarted, and knows of nothing
            await asyncio.sleep(30)
            assert (await agent.post(running=[])).json()["job"] is None
        await asyncio.sleep(31)
        assert (await other.job())["attempt"] == 2

    on(main)


def test_leases_are_not_renewed_at_each_contact(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        for _ in range(60):
            await asyncio.sleep(1)
            await agent.heartbeat(job["id"])
        if "calls" in vars(farm.queue):
            assert farm.queue.calls["renew"] == 2

    on(main)


def test_a_failed_job_is_tried_again_and_then_dead(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put(attempts=2)
        await agent.job()
        await agent.finish(job, "failed", error="exit 1\x1b[31m", exit_code=1)
        waiting = await farm.job(job["id"])
        assert (waiting["state"], waiting["last_error"]) == ("delayed", "exit 1\x1b[31m")
        assert (await agent.poll())["job"] is None  # it backs off
        await asyncio.sleep(10)
        assert (await agent.job())["attempt"] == 2
        await agent.finish(job, "failed", exit_code=2)
        dead = await farm.job(job["id"])
        assert (dead["state"], dead["error"]) == ("dead", "it ended with exit code 2")
        assert [each["attempt"] for each in dead["errors"]] == [1, 2]
        assert (dead["last_error"], dead["worker_id"]) == (None, agent.id)
        assert (await farm.queue.stats()).ready == 0

    on(main)


def test_a_job_that_is_tried_again_shows_nothing_of_the_run_before_but_why(on: OnFarm) -> None:
    of_a_run = ("worker_id", "started_at", "progress", "message", "error")

    async def main(farm: Farm) -> None:
        first, second = await farm.register("a"), await farm.register("b")
        job = await farm.put()
        await first.job()
        await first.heartbeat(job["id"], progress=0.5, message="linking")
        await first.finish(job, "failed", error="exit 1", exit_code=1)
        waits = await farm.job(job["id"])
        assert [waits[name] for name in of_a_run] == [None] * 5
        assert (waits["state"], waits["attempt"], waits["last_error"]) == ("delayed", 1, "exit 1")
        [listed] = (await farm.call("GET", "/api/jobs"))["jobs"]
        assert listed == waits
        await asyncio.sleep(10)
        await second.job()
        runs = await farm.job(job["id"])
        assert (runs["worker_id"], runs["error"]) == (second.id, None)
        assert (runs["last_error"], runs["progress"]) == ("exit 1", None)
        await second.finish(job)
        done = await farm.job(job["id"])
        assert (done["state"], done["error"], done["last_error"]) == ("done", None, None)
        assert done["worker_id"] == second.id

    on(main)


def test_a_job_without_attempts_is_dead_though_nobody_polls(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put(attempts=1)
        await agent.job()
        now = job
        for _ in range(21):  # somebody looks, so that the controller does its chores
            await asyncio.sleep(30)
            now = await farm.job(job["id"])
        assert (now["state"], now["attempt"], now["waiting_for"]) == ("dead", 1, None)
        assert now["error"] == (
            f"the lease of mini ({agent.id}) ran out: it was silent for 600 s, in the last of 1 "
            "attempts"
        )
        assert len(farm.seen.of(JobGivenUp)) == len(farm.seen.of(JobLapsed)) == 1
        stats = await farm.queue.stats()
        assert (stats.ready, stats.leased) == (0, 0), "nothing is left for anybody to claim"

    on(main)


@pytest.mark.parametrize("swept", [True, False], ids=["swept", "taken"])
def test_who_gets_what_another_lost_is_told_why(on: OnFarm, swept: bool) -> None:
    async def main(farm: Farm) -> None:
        first, second = await farm.register("a"), await farm.register("b")
        job = await farm.put()
        await first.job()
        await asyncio.sleep(60)
        assert (await second.poll())["job"] is None
        await asyncio.sleep(60.5)
        if swept:
            await asyncio.sleep(1)
            await farm.controller.runs.sweep()
        assert (await second.job())["attempt"] == 2
        now = await farm.job(job["id"])
        assert (now["state"], now["worker_id"]) == ("leased", second.id)
        assert now["last_error"] == f"the lease of a ({first.id}) ran out"
        assert len(farm.seen.of(JobLapsed)) == 1

    on(main)


def test_a_job_whose_last_worker_was_silent_does_not_die_of_an_older_error(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent, other = await farm.register("a"), await farm.register("b")
        job = await farm.put(attempts=2)
        await agent.job()
        await agent.finish(job, "failed", error="exit 1")
        await asyncio.sleep(10)
        assert (await agent.job())["attempt"] == 2
        for _ in range(6):
            await asyncio.sleep(100)
            assert (await other.poll())["job"] is None
        dead = await farm.job(job["id"])
        assert dead["state"] == "dead"
        assert dead["error"].startswith(f"the lease of a ({agent.id}) ran out")

    on(main)


def test_a_job_that_cannot_be_decoded_is_dead_and_the_others_are_handed_out(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(slots=3)
        await farm.put("build", 1)
        bad = NewJob("build", headers={"pollwise-attempts": "1"})
        bad.encoded = "{bad"  # as another program puts it
        [bad_id] = await farm.queue.put(bad)
        await farm.put("build", 3)
        listed = {job["id"]: job for job in (await farm.call("GET", "/api/jobs"))["jobs"]}
        assert listed[bad_id]["payload"] == "{bad"
        assert "cannot be decoded" in listed[bad_id]["last_error"]
        found = await agent.poll(max=3)
        assert [job["payload"] for job in found["jobs"]] == [1, 3]
        dead = await farm.job(bad_id)
        assert dead["state"] == "dead"
        assert dead["error"].startswith("its payload cannot be decoded")
        [event] = farm.seen.of(JobGivenUp)
        assert (event.job, event.kind, event.error) == (bad_id, "build", dead["error"])

    on(main)


def test_a_job_that_on_failure_has_undone_is_retried_only_anyway(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        first = NewJob("build")
        ids = await farm.controller.queue.put(
            [first, NewJob("undo", after=[first], on_failure=True)]
        )
        [claim] = await farm.controller.queue.claim("w", 1, "1h")
        await farm.controller.queue.settle([Settlement.dead(claim, "no")])
        path = f"/api/jobs/{ids[0]}/retry"
        refused = await farm.call("POST", path, 409)
        assert refused["error"]["code"] == "compensated"
        assert (await farm.job(ids[0]))["state"] == "dead"
        anew = await farm.call("POST", f"{path}?anyway=true")
        assert anew["state"] == "ready"

    on(main)


def test_retry_makes_it_anew(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put(attempts=1)
        running = await farm.call("POST", f"/api/jobs/{job['id']}/retry", 409)
        assert running["error"]["code"] == "not_ended"
        await agent.job()
        await agent.finish(job, "failed", error="no")
        assert (await farm.job(job["id"]))["state"] == "dead"
        anew = await farm.call("POST", f"/api/jobs/{job['id']}/retry")
        assert (anew["state"], anew["attempt"], anew["error"]) == ("ready", 0, None)
        assert (await agent.job())["attempt"] == 1
        await agent.finish(job)
        assert (await farm.job(job["id"]))["state"] == "done"

    on(main)


def test_cancel_of_a_queued_job_is_at_once(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        cancelled = [await farm.put("build", n) for n in range(5)]
        wanted = await farm.put("build", "wanted")
        for job in cancelled:
            said = await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
            assert said["state"] == "cancelled"
        assert (await agent.job())["id"] == wanted["id"]
        assert (await farm.queue.stats()).ready == 0
        assert (await farm.call("POST", f"/api/jobs/{cancelled[0]['id']}/cancel"))["state"] == (
            "cancelled"
        )

    on(main)


def test_cancel_of_a_running_job_reaches_its_worker(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        said = await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
        assert (said["state"], said["cancel"]) == ("leased", True)
        assert (await agent.heartbeat(job["id"])).json()["cancel"] is True
        polled = await agent.poll(max=0, running=job["id"])
        assert polled["cancel"] == [job["id"]]
        await agent.finish(job, "cancelled")
        ended = await farm.job(job["id"])
        assert (ended["state"], ended["cancel"]) == ("cancelled", False)
        done = await farm.put()
        await agent.job()
        await agent.finish(done)
        await farm.call("POST", f"/api/jobs/{done['id']}/cancel", 409)

    on(main)


def test_what_fails_after_a_cancel_is_cancelled(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
        await agent.finish(job, "failed", exit_code=-15)
        assert (await farm.job(job["id"]))["state"] == "cancelled"

    on(main)


def test_unique_is_one_job(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        first = await farm.put("build", 1, unique="u")
        body = {"kind": "build", "payload": 1, "unique": "u"}
        again = await farm.call("POST", "/api/jobs", 200, json=body)
        assert again["id"] == first["id"]
        refused = await farm.call("POST", "/api/jobs", 409, json={**body, "payload": 2})
        assert refused["error"]["code"] == "unique_conflict"

    on(main)


def test_priority_key_and_delay(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        agent, other = await farm.register(), await farm.register()
        late = await farm.put("build", delay_s=30)
        low = await farm.put("build", key="k")
        high = await farm.put("build", priority=5)
        behind = await farm.put("build", key="k")
        assert (await agent.job())["id"] == high["id"]
        assert (await other.job())["id"] == low["id"]
        await agent.finish(high)
        assert (await agent.poll())["job"] is None
        await other.finish(low)
        await asyncio.sleep(5)
        assert (await agent.job())["id"] == behind["id"]
        await agent.finish(behind)
        await asyncio.sleep(26)
        assert (await agent.job())["id"] == late["id"]

    on(main)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["claim", "settle", "renew"])
def test_a_queue_that_fails_once_loses_nothing(tmp_path: Path, call: str, after: bool) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        farm.queue.after = after
        for turn in range(40):
            farm.queue.failing = [call] if turn == 1 or (call == "claim" and turn == 0) else []
            answer = await agent.post(running=[])
            found = answer.json().get("job") if answer.status_code == 200 else None
            if found:
                break
            await asyncio.sleep(10)
        await asyncio.sleep(60)
        farm.queue.failing = [call]
        await agent.post(max=0, running=[{"job_id": job["id"]}])
        await agent.post(max=0, finished=[{"job_id": job["id"], "state": "done"}])
        farm.queue.failing = []
        await agent.post(max=0, finished=[{"job_id": job["id"], "state": "done"}])
        await asyncio.sleep(130)
        await agent.get()
        assert (await farm.job(job["id"]))["state"] == "done"

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("store", ["sqlite", "postgres", "postgres_oldest"])
def test_two_controllers_agree(tmp_path: Path, store: str, request: pytest.FixtureRequest) -> None:
    clock = VirtualClock()
    server = None if store == "sqlite" else request.getfixturevalue(store)

    async def main() -> None:
        async with two_queues(tmp_path, clock, server) as (one, two):
            async with farm_on(one, clock, tmp_path) as a:
                async with farm_on(two, clock, tmp_path, admin=False) as b:
                    b.admin = a.admin
                    await agree(a, b)

    async def agree(a: Farm, b: Farm) -> None:
        agent = await a.register(platform="ios")
        there = type(agent)(b.http, {"worker_id": agent.id, "token": agent.token})
        other = await b.register("other", platform="ios")
        job = await b.put(requires={"platform": "ios"})
        assert (await a.job(job["id"]))["state"] == "ready"
        assert (await a.job(job["id"]))["waiting_for"] is None
        await asyncio.sleep(6)  # what is required is read anew
        assert (await agent.job())["id"] == job["id"]
        # Its answer was lost, and it asks the other controller: the same job, the same attempt.
        again = await there.job()
        assert (again["id"], again["attempt"]) == (job["id"], 1)
        assert (await there.poll(max=0, running=job["id"]))["job"] is None
        for _ in range(5):  # it is heard of here and there in turn
            await asyncio.sleep(45)
            await agent.poll(max=0, running=job["id"])
            await asyncio.sleep(45)
            await there.poll(max=0, running=job["id"])
            assert (await other.poll())["job"] is None
        await b.call("POST", f"/api/jobs/{job['id']}/cancel")
        assert (await agent.poll(max=0, running=job["id"]))["cancel"] == [job["id"]]
        await there.finish(job, "cancelled")
        assert (await a.job(job["id"]))["state"] == "cancelled"
        # One goes silent: the other controller's worker takes over.
        next_job = await a.put()
        assert (await agent.job())["id"] == next_job["id"]
        await asyncio.sleep(65)
        assert (await other.poll())["job"] is None
        await asyncio.sleep(65)
        assert (await other.job())["attempt"] == 2
        assert (await agent.finish(next_job))["lost"] == [next_job["id"]]

    clock.run(main())


def test_what_is_old_is_forgotten_with_its_files(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        path = f"/api/jobs/{job['id']}/artefacts/a.txt"
        sent = await farm.http.put(path, content=b"made", headers=agent.headers)
        assert sent.status_code == 201
        await agent.finish(job)
        assert len(list((tmp_path / "artefacts").rglob("*"))) > 0
        for _ in range(20):
            await asyncio.sleep(300)
            await agent.get()
        await farm.call("GET", f"/api/jobs/{job['id']}", 404)
        assert not [p for p in (tmp_path / "artefacts").rglob("*") if p.is_file()]

    virtually_on_farm(main, tmp_path, keep="1h")


def test_the_spec_of_a_job_has_defaults() -> None:
    assert JobTerms.of(new_job({"kind": "build"}, ControllerOptions())).attempts == 3


def test_claims_are_counted(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put()
        before = claims(farm)
        await agent.job()
        assert claims(farm) == before + 1

    virtually_on_farm(main, tmp_path)


def test_a_job_that_may_have_killed_its_workers_is_handed_out_alone(on: OnFarm) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put(attempts=5)
        for n in range(LAPSES_ALONE):
            assert (await (await farm.register(f"dies{n}")).job())["id"] == job["id"]
            await asyncio.sleep(121)
            await farm.controller.runs.sweep()
        await farm.put()
        agent = await farm.register("lives", slots=4)
        first = (await agent.post(max=4)).json()["jobs"]
        assert [each["id"] for each in first] == [job["id"]]
        second = await agent.post(max=3, running=[{"job_id": job["id"]}])
        assert second.json()["jobs"] == []
        await asyncio.sleep(10)
        done = [{"job_id": job["id"], "state": "done"}]
        assert len((await agent.post(max=4, finished=done)).json()["jobs"]) == 1

    on(main)
