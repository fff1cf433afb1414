"""Polls: cheap when empty, refused when too soon, held when asked, at a suggested pace."""

from __future__ import annotations

import asyncio
import bisect
import heapq
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.controller.options import ControllerOptions
from pollwise.controller.workers.groups import SuggestedPace, WorkerGroup
from pollwise.errors import ConfigError
from pollwise.runtime.events import PollAnswered
from tests.controller.farm import Farm, claims, virtually_on_farm
from tests.queues.http.stub import dial_inside


def test_an_empty_poll_says_when_to_come_again(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        said = await agent.poll()
        first = said.pop("next_poll_s")
        assert 5 <= first <= 30  # spread, as workers may have been started together
        assert said == {"job": None, "cancel": [], "drain": False}
        await asyncio.sleep(first)
        assert (await agent.poll())["next_poll_s"] == 30
        others = [await farm.register(f"other {n}") for n in range(9)]
        for other in others:
            assert 5 <= (await other.poll())["next_poll_s"] <= 50
        await asyncio.sleep(30)
        assert 5 <= (await agent.poll())["next_poll_s"] <= 50  # ten of them look every 5 s in all

    virtually_on_farm(main, tmp_path)


def test_nothing_new_is_304(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await agent.get()
        await asyncio.sleep(6)
        first = await agent.get()
        etag = {"If-None-Match": first.headers["ETag"]}
        await asyncio.sleep(6)
        again = await agent.get(headers=etag)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]
        await farm.put()
        await asyncio.sleep(6)
        found = await agent.get(headers=etag)
        assert found.status_code == 200
        assert found.json()["job"] is not None

    virtually_on_farm(main, tmp_path)


def test_too_soon_is_429_and_reaches_no_queue(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put("other")  # so that there is something to claim at all
        other = await farm.register()
        await other.job()
        await asyncio.sleep(2)
        assert (await agent.poll())["job"] is None
        before = claims(farm)
        for _ in range(3):
            answer = await agent.get()
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "too_soon"
            assert 1 <= int(answer.headers["Retry-After"]) <= 5
            await asyncio.sleep(1)
        answer = await agent.post(running=[])
        assert answer.status_code == 429
        assert claims(farm) == before
        await asyncio.sleep(2)
        assert (await agent.get()).status_code == 200
        assert claims(farm) == before + 1
        # What reports something, or asks for no job, need not wait after an empty poll.
        assert (await agent.post(max=0)).status_code == 200
        assert (
            await agent.post(finished=[{"job_id": "0" * 32, "state": "done"}])
        ).status_code == 200
        results = [event.result for event in farm.seen.of(PollAnswered)]
        assert results.count("too_soon") == 4

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    "asked",
    [
        {"max": 1},
        {"max": 0},
        {"finished": [{"job_id": "0" * 32, "state": "done"}]},
        {"wait": 60},
    ],
    ids=["holds a job", "asks for none", "reports nothing real", "does not wait"],
)
def test_a_worker_is_limited_whatever_it_asks(tmp_path: Path, asked: dict[str, Any]) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        running = [{"job_id": job["id"]}]
        held: set[asyncio.Task[Any]] = set()

        async def post() -> Any:
            poll = asyncio.ensure_future(agent.post(running=running, **asked))
            if "wait" not in asked:
                return (await poll).status_code
            await asyncio.sleep(0.01)
            held.add(poll)
            return poll.result().status_code if poll.done() else 200

        began = farm.clock.now()
        answers = Counter([await post() for _ in range(100)])
        assert 1 <= answers[200] <= 14
        assert set(answers) == {200, 429}
        while farm.clock.now() < began + 600:
            await asyncio.sleep(1)
            answers[await post()] += 1
        assert 90 < answers[200] <= 14 + 600 / 5, "one in five seconds"
        await asyncio.gather(*held)
        await asyncio.sleep(60)
        assert (await agent.finish(job))["lost"] == [], "it has kept its job"

    virtually_on_farm(main, tmp_path)


def test_a_websocket_that_is_opened_again_and_again_brings_no_more_polls(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        answers: Counter[int] = Counter()
        for _ in range(50):
            path = f"/api/workers/ws?worker_id={agent.id}"
            socket = await dial_inside(farm.app, path, agent.token)
            await socket.receive()
            answers[(await agent.get()).status_code] += 1
            await socket.close()
        assert answers[200] <= 12

    virtually_on_farm(main, tmp_path)


def test_news_ends_the_wait_of_who_polled_too_soon(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put("build")
        await agent.finish(await agent.job())
        assert (await agent.poll())["job"] is None
        assert (await agent.get()).status_code == 429
        job = await farm.put("build")
        assert (await agent.job())["id"] == job["id"]

    virtually_on_farm(main, tmp_path)


def test_empty_polls_of_a_group_are_answered_from_memory(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agents = [await farm.register(f"agent {n}") for n in range(50)]
        await farm.put()
        await agents[0].finish(await agents[0].job())
        before = claims(farm)
        for agent in agents:
            assert (await agent.poll())["job"] is None
        assert claims(farm) <= before + 1
        await asyncio.sleep(6)
        for agent in agents:
            assert (await agent.poll())["job"] is None
        assert claims(farm) <= before + 2

    virtually_on_farm(main, tmp_path)


def test_who_was_seen_is_written_in_batches(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agents = [await farm.register(f"agent {n}") for n in range(20)]
        written: list[int] = []
        seen = farm.controller.storage.seen

        async def counted(batch: Any) -> Any:
            written.append(len(batch))
            return await seen(batch)

        farm.controller.storage.seen = counted  # type: ignore[method-assign]
        for _ in range(6):
            for agent in agents:
                await agent.get()
            await asyncio.sleep(10)
        assert len(written) <= 7
        await asyncio.sleep(100)
        online = await farm.call("GET", "/api/workers?state=online")
        assert len(online["workers"]) == 20
        await asyncio.sleep(60)
        offline = await farm.call("GET", "/api/workers?state=offline&limit=7")
        assert len(offline["workers"]) == 7
        after = offline["next"]
        rest = await farm.call("GET", f"/api/workers?state=offline&after={after}")
        assert (len(rest["workers"]), rest["next"]) == (13, None)

    virtually_on_farm(main, tmp_path)


def test_a_silent_controller_does_nothing(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put()
        await agent.finish(await agent.job())
        await asyncio.sleep(1000)
        state = farm.controller.storage
        calls: list[str] = []
        for name in ("seen", "audit", "requirements", "folders_before", "prune_workers"):
            work = getattr(state, name)

            async def counted(*given: Any, work: Any = work, name: str = name) -> Any:
                calls.append(name)
                return await work(*given)

            setattr(state, name, counted)
        farm.queue.calls.clear()
        await asyncio.sleep(86400)
        assert calls == []
        assert not farm.queue.calls

    virtually_on_farm(main, tmp_path)


# Holding


def test_a_held_poll_gets_what_comes(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put("first")
        await agent.finish(await agent.job())
        began = farm.clock.now()
        held = asyncio.ensure_future(agent.job(wait=60))
        await asyncio.sleep(20)
        assert farm.controller.poller.held == 1
        job = await farm.put("build")
        assert (await held)["id"] == job["id"]
        assert farm.clock.now() - began == pytest.approx(20, abs=0.01)
        assert farm.controller.poller.held == 0

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("kind", ["first", "new"])
def test_a_job_that_is_put_during_the_claim_is_not_missed(tmp_path: Path, kind: str) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put("first")
        await agent.finish(await agent.job())
        await asyncio.sleep(60)
        claim = farm.queue.claim
        jobs: list[Any] = []

        async def slow(*given: Any, **named: Any) -> Any:
            found = await claim(*given, **named)
            if not jobs:
                jobs.append(await farm.put(kind))
            return found

        farm.queue.claim = slow
        began = farm.clock.now()
        assert (await agent.job(wait=60))["id"] == jobs[0]["id"]
        assert farm.clock.now() - began < 0.1

    virtually_on_farm(main, tmp_path)


def test_a_held_poll_ends_empty_and_may_be_followed_at_once(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        for _ in range(3):
            began = farm.clock.now()
            assert (await agent.poll(wait=30))["job"] is None
            assert farm.clock.now() - began == pytest.approx(30, abs=0.01)
        began = farm.clock.now()
        await agent.poll(wait=3600)
        assert farm.clock.now() - began == pytest.approx(60, abs=0.01)

    virtually_on_farm(main, tmp_path)


def test_a_herd_is_not_woken_for_one_job(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agents = [await farm.register(f"agent {n}") for n in range(20)]
        await farm.put()
        await agents[0].finish(await agents[0].job())
        held = [asyncio.ensure_future(agent.poll(wait=60)) for agent in agents]
        await asyncio.sleep(1)
        before = claims(farm)
        await farm.put()
        await asyncio.sleep(0.1)
        assert sum(each.done() for each in held) == 1
        assert claims(farm) <= before + 3
        for _ in range(5):
            await farm.put()
        await asyncio.sleep(0.1)
        assert sum(each.done() for each in held) == 6
        for each in await asyncio.gather(*held):
            assert each["job"] is None or each["job"]["kind"] == "build"

    virtually_on_farm(main, tmp_path)


def test_a_held_poll_hears_of_a_new_requirement(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(platform="ios")
        held = asyncio.ensure_future(agent.job(wait=60))
        await asyncio.sleep(1)
        job = await farm.put("never seen", requires={"platform": "ios"})
        assert (await held)["id"] == job["id"]
        assert farm.clock.now() == pytest.approx(1, abs=0.1)

    virtually_on_farm(main, tmp_path)


def test_a_newer_poll_takes_the_place_of_the_older(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        first = asyncio.ensure_future(agent.poll(wait=60))
        await asyncio.sleep(10)
        second = asyncio.ensure_future(agent.poll(wait=60))
        await asyncio.sleep(1)
        assert first.done()
        job = await farm.put()
        assert (await second)["job"]["id"] == job["id"]
        assert (await first)["job"] is None

    virtually_on_farm(main, tmp_path)


def test_a_cancel_ends_a_held_poll(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register(slots=2)
        job = await farm.put()
        await agent.job()
        held = asyncio.ensure_future(agent.poll(wait=60, running=job["id"]))
        await asyncio.sleep(7)
        await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
        assert (await held)["cancel"] == [job["id"]]
        assert farm.clock.now() == pytest.approx(7, abs=0.1)

    virtually_on_farm(main, tmp_path)


def test_a_job_that_falls_due_ends_a_held_poll(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put(delay_s=17)
        held = await agent.job(wait=60)
        assert held["id"] == job["id"]
        assert farm.clock.now() == pytest.approx(17, abs=0.1)

    virtually_on_farm(main, tmp_path)


def test_only_so_many_polls_are_held(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agents = [await farm.register(f"agent {n}") for n in range(3)]
        held = [asyncio.ensure_future(agent.poll(wait=30)) for agent in agents]
        await asyncio.sleep(1)
        assert sorted(each.done() for each in held) == [False, False, True]
        await asyncio.gather(*held)

    virtually_on_farm(main, tmp_path, waiting_max=2)


def test_a_stop_answers_held_polls(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        held = asyncio.ensure_future(agent.poll(wait=60))
        await asyncio.sleep(1)
        farm.controller.stop_waiting()
        assert (await held)["job"] is None
        assert farm.clock.now() == pytest.approx(1, abs=0.1)

    virtually_on_farm(main, tmp_path)


# Matching


def test_a_job_goes_only_to_who_can_take_it(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        small = await farm.register("small", memory_gb=4, platform=["ios", "macos"])
        nobody = await farm.put(requires={"memory_gb": ">=8", "platform": "ios"})
        assert nobody["waiting_for"] == "no live worker has memory_gb >= 8"
        assert (await small.poll())["job"] is None
        stats = await farm.call("GET", "/api/stats")
        [waiting] = stats["waiting"]
        assert (waiting["count"], waiting["waiting_for"]) == (1, nobody["waiting_for"])
        large = await farm.register("large", memory_gb=16, platform="ios")
        await asyncio.sleep(3)
        assert (await farm.job(nobody["id"]))["waiting_for"] is None
        assert (await large.job())["id"] == nobody["id"]
        await large.finish(nobody)
        again = await farm.put(requires={"memory_gb": ">=8"})
        await asyncio.sleep(130)
        assert (await farm.job(again["id"]))["waiting_for"] == "no live worker"

    virtually_on_farm(main, tmp_path)


def test_a_worker_that_names_kinds_gets_no_others(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        tester = await farm.register("tester", kinds=["test"])
        build = await farm.put("build")
        assert build["waiting_for"] == "no live worker takes kind 'build'"
        assert (await tester.poll())["job"] is None
        test = await farm.put("test")
        assert (await tester.job())["id"] == test["id"]

    virtually_on_farm(main, tmp_path)


def test_drain(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        running = await farm.put()
        await agent.job()
        view = await farm.call("POST", f"/api/workers/{agent.id}/drain")
        assert (view["state"], view["drain"]) == ("draining", True)
        assert "finishes what it runs, and stays registered" in view["what_follows"]
        assert f'POST {{"drain": false}} to /api/workers/{agent.id}/drain' in view["what_follows"]
        waiting = await farm.put()
        said = await agent.poll(running=running["id"])
        assert (said["job"], said["drain"]) == (None, True)
        assert (await farm.job(waiting["id"]))["waiting_for"] == "no live worker"
        await agent.finish(running)
        listed = await farm.call("GET", "/api/workers?state=draining")
        assert [each["id"] for each in listed["workers"]] == [agent.id]
        undo = {"json": {"drain": False}, "headers": agent.headers}
        refused = await farm.call("POST", f"/api/workers/{agent.id}/drain", 403, **undo)
        assert "needs a token with the scope operate" in refused["error"]["message"]
        itself = await farm.call("POST", f"/api/workers/{agent.id}/drain", headers=agent.headers)
        assert itself["drain"] is True, "it may drain itself"
        back = await farm.call("POST", f"/api/workers/{agent.id}/drain", json={"drain": False})
        assert back["what_follows"] == "It gets jobs again, from its next poll on."
        assert (await agent.job())["id"] == waiting["id"]

    virtually_on_farm(main, tmp_path)


def test_unregister_gives_back_what_runs(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent, other = await farm.register(), await farm.register()
        job = await farm.put()
        await agent.job()
        path = f"/api/workers/{agent.id}/unregister"
        assert await farm.call("POST", path, headers=agent.headers) == {"given_back": 1}
        assert (await agent.get()).status_code == 401
        assert (await other.job())["attempt"] == 1  # nobody failed
        await farm.call("POST", path, 404)
        assert (await farm.job(job["id"]))["worker_id"] == other.id

    virtually_on_farm(main, tmp_path)


# What is asked


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        ("worker_id=", 422),
        ("worker_id={id}&max=-1", 422),
        ("worker_id={id}&max=101", 422),
        ("worker_id={id}&max=x", 422),
        ("worker_id={id}&wait=nan", 422),
        ("worker_id={id}&wait=-1", 422),
        ("worker_id={id}&wait=1e999", 422),
        ("worker_id={id}&token=secret", 400),
        ("worker_id=" + "0" * 32, 404),
        ("worker_id=..%2F..%2Fetc", 404),
        ("worker_id=%ff%00", 404),
        ("worker_id={id}&" + "&".join(["max=1"] * 30), 400),
        ("worker_id={id}&running=" + ",".join(["a"] * 1001), 422),
    ],
)
def test_a_bad_query_is_refused(tmp_path: Path, query: str, status: int) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        path = f"/api/workers/poll?{query.replace('{id}', agent.id)}"
        answer = await farm.http.get(path, headers=agent.headers)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["what_to_do"]

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"worker_id": 7}', 422),
        (b'{"worker_id": "ID", "more": 1}', 422),
        (b'{"worker_id": "ID", "max": true}', 422),
        (b'{"worker_id": "ID", "max": 1e3}', 422),
        (b'{"worker_id": "ID", "wait": "soon"}', 422),
        (b'{"worker_id": "ID", "running": {}}', 422),
        (b'{"worker_id": "ID", "running": ["x"]}', 422),
        (b'{"worker_id": "ID", "running": [{"job_id": "JOB", "progress": 101}]}', 422),
        (b'{"worker_id": "ID", "running": [{"job_id": "JOB", "log": {"offset": -1}}]}', 422),
        (b'{"worker_id": "ID", "finished": [{"job_id": "JOB", "state": "lost"}]}', 422),
        (
            b'{"worker_id":"ID","finished":[{"job_id":"JOB","state":"done","result":NaN}]}',
            422,
        ),
        (b'{"worker_id": "\\ud800"}', 404),
        (b'{"worker_id": "ID", "running": [{"job_id": "\\ud800"}]}', 422),
        (b'{"worker_id": "ID", "finished": [{"job_id": "\\u0000", "state": "done"}]}', 422),
        (b'{"worker_id": "' + b"x" * 2_000_000 + b'"}', 413),
    ],
    ids=lambda each: each[:60].decode() if isinstance(each, bytes) else str(each),
)
def test_a_bad_body_is_refused(tmp_path: Path, body: bytes, status: int) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        sent = body.replace(b"ID", agent.id.encode()).replace(b"JOB", b"0" * 32)
        answer = await farm.http.post("/api/workers/poll", content=sent, headers=agent.headers)
        assert answer.status_code == status, answer.text

    virtually_on_farm(main, tmp_path)


def test_the_report_of_a_job_is_never_too_soon(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job_id = (await farm.put())["id"]
        await agent.job()
        said: dict[str, Any] = {"worker_id": agent.id, "max": 0}
        statuses = []
        for _ in range(40):  # more than it may send at once
            sent = {**said, "running": [{"job_id": job_id}]}
            answer = await farm.http.post("/api/workers/poll", json=sent, headers=agent.headers)
            statuses.append(answer.status_code)
        assert statuses[-1] == 429
        unknown = {**said, "finished": [{"job_id": "0" * 32, "state": "done"}]}
        answer = await farm.http.post("/api/workers/poll", json=unknown, headers=agent.headers)
        assert answer.status_code == 429, "it has no such job"
        report = {**said, "finished": [{"job_id": job_id, "state": "done"}]}
        answer = await farm.http.post("/api/workers/poll", json=report, headers=agent.headers)
        assert answer.status_code == 200, answer.text
        assert (await farm.job(job_id))["state"] == "done"
        answer = await farm.http.post("/api/workers/poll", json=report, headers=agent.headers)
        assert answer.status_code in (200, 429)

    virtually_on_farm(main, tmp_path)


def test_a_poll_without_a_token_says_how_to_get_one(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        answer = await farm.http.get("/api/workers/poll?worker_id=test")
        what = answer.json()["error"]["what_to_do"]
        assert answer.status_code == 401
        assert "pollwise serve token create worker --name test" in what
        assert "/api/workers/register" in what
        _, secret = await farm.controller.tokens.make("worker", "minis")
        header = {"Authorization": f"Bearer {secret}"}
        for path in ("/api/workers/poll?worker_id=test", "/api/jobs"):
            answer = await farm.http.get(path, headers=header)
            assert answer.status_code == 403
            assert "/api/workers/register" in answer.json()["error"]["what_to_do"]
        body = {"name": "test"}
        answer = await farm.http.post("/api/workers/register", json=body, headers=header)
        made = answer.json()
        answer = await farm.http.get(
            f"/api/workers/poll?worker_id={made['worker_id']}",
            headers={"Authorization": f"Bearer {made['token']}"},
        )
        assert answer.status_code == 200

    virtually_on_farm(main, tmp_path)


# SuggestedPace and groups


@given(
    st.integers(0, 10**9), st.floats(0, 90), st.floats(0, 3600), st.none() | st.floats(0.01, 3600),
    st.none() | st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip
def test_an_interval_is_within_its_bounds(
    idle: int, least: float, more: float, target: float | None, base: float | None, u: float
) -> None:
    most = min(least + more + 0.1, 3600.0)
    if base is not None:  # from the shortest to the longest that is allowed
        base = max(least + base * (min(most, 90.0) - least), 0.1)
        if base < least or base > min(most, 90.0):
            return
    options = ControllerOptions(
        poll_interval=base, min_interval=least, max_interval=most, target_pickup=target
    )
    pace = SuggestedPace(options, Random(0))
    suggested = pace.interval(idle)
    assert least <= suggested <= max(min(most, 90.0), least)  # 90 s: below the heartbeat timeout
    assert pace.interval(idle + 1) >= suggested
    if base is not None and target is None:
        assert suggested == pytest.approx(base, rel=0.05)
    group = WorkerGroup(frozenset({"build"}), idle=idle)
    for due in (None, 0.0):
        delay = pace.next_poll(group, due, u * 100, 100.0)
        assert least <= delay <= suggested


def waits_of(workers: int, hours: float = 3.0, lag: float = 0.05, **given: Any) -> list[float]:
    """How long a job would wait for the next poll of `workers` that were started together.

    Sampled each second, after the first two intervals. lag: the most that a poll is late.
    """
    pace = SuggestedPace(ControllerOptions(**given), Random(1))
    group, random = WorkerGroup(frozenset({"build"})), Random(2)
    due: dict[int, float] = {}
    agenda = [(random.random(), worker) for worker in range(workers)]
    polls: list[float] = []
    while agenda and agenda[0][0] < hours * 3600:
        now, worker = heapq.heappop(agenda)
        group.idle += worker not in due
        delay = pace.next_poll(group, due.get(worker), now, now)
        due[worker] = now + delay
        polls.append(now)
        heapq.heappush(agenda, (now + delay + lag * random.random(), worker))
    begin = 2 * pace.interval(workers)
    times = [begin + n for n in range(int(hours * 3600 - 2 * begin))]
    return sorted(polls[bisect.bisect(polls, at)] - at for at in times)


@pytest.mark.parametrize(
    ("workers", "longest"), [(1, 30.1), (2, 16), (4, 8), (6, 5.5), (10, 5.6), (18, 6), (36, 3.5)]
)
def test_workers_of_a_group_poll_in_turn(workers: int, longest: float) -> None:
    waits = waits_of(workers)
    assert waits[int(0.95 * len(waits))] <= longest, waits[-1]
    assert waits[-1] <= 1.3 * longest


def test_groups_that_were_started_together_do_not_poll_together() -> None:
    pace = SuggestedPace(ControllerOptions(), Random(1))
    groups = [WorkerGroup(frozenset({str(n)}), idle=1) for n in range(100)]
    first = [pace.next_poll(group, None, 0.0, 0.0) for group in groups]
    second = [
        at + pace.next_poll(group, at, at, at) for group, at in zip(groups, first, strict=True)
    ]
    for times, begin in ((first, 0), (second, 30)):
        busiest = Counter(int((at - begin) // 5) for at in times).most_common(1)[0][1]
        assert busiest <= 35, "a fifth of them in a fifth of the time, more or less"


def test_a_worker_that_was_away_takes_no_turn_of_others() -> None:
    pace, group = SuggestedPace(ControllerOptions(), Random(1)), WorkerGroup(frozenset(), idle=1)
    assert pace.next_poll(group, 100.0, 100.0, 100.0) == 30
    delays = {pace.next_poll(group, 100.0, 400.0 + n, 400.0 + n) for n in range(20)}
    assert len(delays) > 5


@pytest.mark.parametrize(
    ("given", "idle", "interval"),
    [
        ({}, 1, 30),
        ({}, 10, 50),
        ({"poll_interval": "7s"}, 10, 7),
        ({"poll_interval": "7s", "target_pickup": "1s"}, 10, 10),
        ({"target_pickup": "8s"}, 10, 80),
        ({"poll_interval": "2s", "min_interval": "1s"}, 1, 2),
        ({"max_interval": "10s"}, 1, 10),
        ({"min_interval": "60s"}, 1, 60),
        ({"heartbeat_timeout": "20s"}, 1, 15),
    ],
)
def test_an_interval_that_is_given_is_kept(
    given: dict[str, Any], idle: int, interval: float
) -> None:
    options = ControllerOptions(**given)
    assert SuggestedPace(options, Random(0)).interval(idle) == interval


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"poll_interval": "2s"}, "below min_interval = 5 s"),
        ({"poll_interval": "150s"}, "above max_interval = 120 s"),
        ({"poll_interval": "100s"}, "raise heartbeat_timeout to 133.333 s or more"),
    ],
)
def test_an_interval_that_cannot_be_kept_is_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        ControllerOptions(**given)


def test_a_group_knows_that_it_is_empty_until_a_put_comes() -> None:
    group = WorkerGroup(frozenset({"build"}))
    assert not group.is_empty(0.0)
    group.found_nothing(group.puts, 1.0)
    assert group.is_empty(0.5)
    assert not group.is_empty(1.0)
    group.found_nothing(group.puts, 3.0)
    before = group.puts
    group.notice_put()
    assert not group.is_empty(2.0)
    group.found_nothing(before, 4.0)  # it began before the put
    assert not group.is_empty(2.0)
    assert WorkerGroup(frozenset()).is_empty(0.0)


@pytest.mark.parametrize(
    "given",
    [
        {"min_interval": 200},
        {"heartbeat_timeout": 0},
        {"attempts": 0},
        {"attempts": True},
        {"body_limit": 1},
        {"max_wait": 100},
    ],
)
def test_contradictory_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ControllerOptions(**given)


def test_a_known_worker_takes_little_memory(tmp_path: Path) -> None:
    import gc
    import tracemalloc

    async def main(farm: Farm) -> None:
        registry = farm.controller.registry
        await farm.put()

        async def add(name: str, count: int) -> None:
            for n in range(count):
                agent = await farm.register(f"{name} {n}", platform="ios", cores=8)
                await agent.get()

        async def taken(name: str) -> float:
            """Bytes for each of 200 workers more."""
            gc.collect()
            tracemalloc.start()
            before = len(registry)
            await add(name, 200)
            await registry.write_down()
            farm.controller.auth.forget()
            farm.seen.clear()
            gc.collect()
            current, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return current / (len(registry) - before)

        await add("first", 10)
        # Python's table of interned strings may grow meanwhile, by megabytes; once, not each time.
        assert min([await taken("second"), await taken("third")]) < 4096

    virtually_on_farm(main, tmp_path)


def test_a_poll_that_is_held_long_enough_is_never_too_soon(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await agent.poll()
        assert (await agent.get(wait=4)).status_code == 429
        began = farm.clock.now()
        assert (await agent.poll(wait=5))["job"] is None
        assert farm.clock.now() - began == pytest.approx(5, abs=0.01)

    virtually_on_farm(main, tmp_path)
