"""The agent on a real controller, in virtual time: delivery, reports, pace, trouble, stops."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pollwise.agent.commands.command import CommandResult
from pollwise.agent.job import AgentRun
from pollwise.errors import ConfigError, StoreError
from pollwise.queues.http.client import EMPTY_POLLS_BURST, EMPTY_POLLS_PER_SECOND
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    HintsLost,
    HintsProven,
    JobGivenBack,
    JobLost,
    JobReported,
    JobStarted,
    PollFailed,
    WorkerRegistered,
)
from tests.agent.hands import Hand, at_work, ended, make_hand, takes, until, worker_token
from tests.controller.farm import Farm, farm_on, opened_queue
from tests.controller.farm import virtually_on_farm as on_farm
from tests.support.private import write_private


def test_a_job_is_run_and_reported(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put("build", {"ref": "main"})
        seen: list[Any] = []

        async def execute(run: AgentRun) -> CommandResult:
            seen.append(json.loads((run.folder / "payload.json").read_text()))
            (run.folder / "out" / "deep").mkdir()
            (run.folder / "out" / "deep" / "app.bin").write_bytes(b"x" * 100_000)
            (run.folder / "result.json").write_text('{"size": 7}')
            assert run._log is not None
            run._log.write(b"hello\n")
            return CommandResult(0)

        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=execute)
        async with at_work(hand):
            done = await ended(farm, job["id"], within=5)
        assert seen == [{"ref": "main"}]
        assert (done["result"], done["error"], done["attempt"]) == ({"size": 7}, None, 1)
        files = (await farm.call("GET", f"/api/jobs/{job['id']}/artefacts"))["artefacts"]
        assert [(file["name"], file["size"]) for file in files] == [("deep/app.bin", 100_000)]
        log = await farm.http.get(f"/api/jobs/{job['id']}/logs", headers=farm.admin)
        assert log.text.endswith("hello\n")
        assert (await farm.call("GET", "/api/workers"))["workers"] == [], "it left"
        assert not list((tmp_path / "agent" / "jobs").iterdir()), "its folder is gone"
        assert not list((tmp_path / "agent" / "results").iterdir())

    on_farm(main, tmp_path)


def test_failures_are_retried_and_then_dead(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put("build", attempts=2)
        attempts: list[int] = []

        async def execute(run: AgentRun) -> CommandResult:
            attempts.append(run.work.attempt)
            return CommandResult(3, "the command ended with exit code 3")

        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=execute)
        async with at_work(hand):
            dead = await ended(farm, job["id"], "dead")
        assert attempts == [1, 2]
        assert dead["error"] == "the command ended with exit code 3"

    on_farm(main, tmp_path)


@pytest.mark.parametrize("push", [True, False])
def test_cancel_reaches_a_running_job(tmp_path: Path, push: bool) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(3600), push=push)
        async with at_work(hand):
            await ended(farm, job["id"], "leased")
            await farm.clock.sleep(1)
            await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
            began = farm.clock.now()
            await ended(farm, job["id"], "cancelled", within=60)
            took = farm.clock.now() - began
        assert took < 2 if push else took <= 34

    on_farm(main, tmp_path)


@pytest.mark.parametrize("word", ["/poll", "/register", "/logs", "/artefacts/"])
def test_a_lost_answer_neither_loses_nor_doubles_a_job(tmp_path: Path, word: str) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        runs: list[str] = []

        async def execute(run: AgentRun) -> CommandResult:
            runs.append(run.work.id)
            assert run._log is not None
            run._log.write(b"one line\n")
            (run.folder / "out" / "a").write_text("a")
            return CommandResult(0)

        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=execute)
        hand.wire.lose = (word, 2)
        async with at_work(hand):
            done = await ended(farm, job["id"], within=60)
        assert runs == [job["id"]]
        assert done["attempt"] == 1
        log = await farm.http.get(f"/api/jobs/{job['id']}/logs", headers=farm.admin)
        assert log.text.count("one line") == 1

    on_farm(main, tmp_path)


def test_several_at_a_time_and_leases_renewed_while_they_run(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        jobs = [(await farm.put())["id"] for _ in range(5)]
        done: list[str] = []
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(500, done), slots=3)
        most = 0
        async with at_work(hand):
            await until(lambda: _is(len(hand.agent.state()["running"]) == 3), 10)
            began = farm.clock.now()
            while len(done) < 5:
                most = max(most, len(hand.agent.state()["running"]))
                assert farm.clock.now() - began < 1200
                await farm.clock.sleep(5)
            for job in jobs:
                assert (await ended(farm, job, within=60))["attempt"] == 1
        assert most == 3
        assert sorted(done) == sorted(jobs)

    on_farm(main, tmp_path)


async def _is(true: bool) -> bool:
    return true


# Trouble


def test_days_without_a_network(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        first = await farm.put()
        done: list[str] = []
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(40, done))
        async with at_work(hand):
            await ended(farm, first["id"], "leased")
            await farm.clock.sleep(30)
            await hand.cut()
            await farm.clock.sleep(20)
            assert done == [first["id"]], "it works on while the network is gone"
            assert len(list((tmp_path / "agent" / "results").iterdir())) == 1
            hand.restore()
            one = await ended(farm, first["id"], within=70)
            assert one["attempt"] == 1, "the result waited for the network"
            await hand.cut()
            before = len(hand.wire.requests)
            await farm.clock.sleep(3 * 86400)
            assert len(hand.wire.requests) - before < 3 * 86400 / 20, "it backs off"
            second = await farm.put()
            hand.restore()
            await ended(farm, second["id"], within=120)
        assert done == [first["id"], second["id"]]

    on_farm(main, tmp_path)


def test_what_another_took_during_an_outage_is_stopped(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        done: list[str] = []
        token = await worker_token(farm, tmp_path)
        cut = make_hand(
            farm.app, token, tmp_path, farm.clock, execute=takes(1000, done), name="cut"
        )
        other = make_hand(
            farm.app, token, tmp_path / "other", farm.clock, execute=takes(1, done), name="other"
        )
        async with at_work(cut):
            await ended(farm, job["id"], "leased")
            await cut.cut()
            async with at_work(other):
                again = await ended(farm, job["id"], within=300)
            assert again["attempt"] == 2
            assert cut.agent.state()["running"] == [job["id"]], "it cannot know"
            cut.restore()
            await until(lambda: _is(not cut.agent.state()["running"]), 100)
            assert len(cut.seen.of(JobLost)) == 1, "the command was stopped"
        assert done == [job["id"]]
        assert (await farm.job(job["id"]))["state"] == "done"

    on_farm(main, tmp_path)


#: Longer than the heartbeat timeout of two minutes.
OUTAGE = 140.0


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("work", [60.0, 400.0], ids=["ended meanwhile", "still runs"])
def test_what_nobody_else_took_during_an_outage_is_accepted(
    tmp_path: Path, work: float, attempts: int
) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put(requires={"platform": "ios"}, attempts=attempts)
        runs: list[str] = []

        async def execute(run: AgentRun) -> CommandResult:
            runs.append(run.work.id)
            (run.folder / "out" / "a").write_text("a")
            (run.folder / "result.json").write_text("7")
            return await takes(work)(run)

        token = await worker_token(farm, tmp_path)
        given: dict[str, Any] = {"execute": execute, "capabilities": {"platform": "ios"}}
        hand = make_hand(farm.app, token, tmp_path, farm.clock, **given)
        # Another one is there all the time, and can take other jobs.
        idle = make_hand(farm.app, token, tmp_path / "idle", farm.clock, name="idle")
        async with at_work(idle), at_work(hand):
            await ended(farm, job["id"], "leased")
            await hand.cut()
            await farm.clock.sleep(OUTAGE)
            if attempts > 1:
                assert (await farm.job(job["id"]))["state"] == "ready", "others may take it"
            hand.restore()
            done = await ended(farm, job["id"], within=work + 70)
        assert (done["result"], done["attempt"]) == (7, 1)
        assert runs == [job["id"]]
        files = (await farm.call("GET", f"/api/jobs/{job['id']}/artefacts"))["artefacts"]
        assert [file["name"] for file in files] == ["a"]

    on_farm(main, tmp_path)


@pytest.mark.parametrize("restarts", [True, False], ids=["controller", "network"])
def test_after_an_outage_workers_have_time_to_return(tmp_path: Path, restarts: bool) -> None:
    """Of two workers, the idle one returns first, and must not get the job of the other."""
    clock = VirtualClock()

    async def main() -> None:
        async with opened_queue("sqlite", tmp_path, clock) as queue:
            hands: list[Hand] = []
            async with AsyncExitStack() as stack:
                async with farm_on(queue, clock, tmp_path) as farm:
                    token = await worker_token(farm, tmp_path)
                    job = await farm.put()
                    for name in ("busy", "idle"):
                        hand = make_hand(
                            farm.app, token, tmp_path / name, clock, execute=takes(200), name=name
                        )
                        hands.append(hand)
                        await stack.enter_async_context(at_work(hand))
                        await ended(farm, job["id"], "leased")
                    await clock.sleep(5)
                    for hand in hands:
                        await hand.cut()
                    if not restarts:
                        await clock.sleep(OUTAGE)
                        await finished(farm, job["id"], hands)
                if restarts:
                    await clock.sleep(OUTAGE)
                    async with farm_on(queue, clock, tmp_path) as farm:
                        for hand in hands:
                            hand.move(farm.app)
                        await finished(farm, job["id"], hands)

    async def finished(farm: Farm, job_id: str, hands: list[Hand]) -> None:
        busy, idle = hands
        idle.restore()
        polls = len(idle.wire.polls())
        await until(lambda: _is(len(idle.wire.polls()) > polls), 70)
        await clock.sleep(20)
        busy.restore()
        done = await ended(farm, job_id, within=300)
        assert (done["attempt"], idle.seen.of(JobStarted)) == (1, [])
        for hand in hands:
            await hand.cut()  # their stop does not need it

    clock.run(main())


def test_a_controller_that_forgot_the_agent_gets_it_again(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        first = await farm.put()
        done: list[str] = []
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(300, done))
        async with at_work(hand):
            await ended(farm, first["id"], "leased")
            one = hand.agent.state()["worker_id"]
            await farm.call("POST", f"/api/workers/{one}/unregister")
            await until(lambda: _is(hand.agent.state()["worker_id"] not in (None, one)), 120)
            assert len(hand.seen.of(WorkerRegistered)) == 2
            await ended(farm, first["id"], within=600)
        assert len(hand.seen.of(JobLost)) == 1, "what it ran for its old self was stopped"
        assert done == [first["id"]]

    on_farm(main, tmp_path)


def test_a_token_that_ends_is_renewed_before(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(1))
        async with at_work(hand):
            await farm.clock.sleep(3 * 3600)
            assert len(hand.seen.of(WorkerRegistered)) in (3, 4)
            assert hand.seen.of(PollFailed) == []

    on_farm(main, tmp_path, registered_for=3600)


@pytest.mark.parametrize("ahead", [-86400.0, 7200.0, 40 * 86400.0])
def test_an_agent_whose_clock_is_wrong_registers_once(tmp_path: Path, ahead: float) -> None:
    class WrongClock(VirtualClock):
        def epoch(self) -> float:
            return super().epoch() + ahead

    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, WrongClock())
        async with at_work(hand):
            await farm.clock.sleep(600)
            assert len(hand.seen.of(WorkerRegistered)) == 1

    on_farm(main, tmp_path, registered_for="1h")


def test_registrations_are_limited(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        body = {"name": "loops"}
        answers = []
        for _ in range(300):
            await farm.clock.sleep(0.01)
            path = "/api/workers/register"
            answers.append(await farm.http.post(path, json=body, headers=farm.admin))
        assert Counter(each.status_code for each in answers) == {201: 100, 429: 200}
        answer = answers[-1]
        assert answer.json()["error"]["message"].startswith("'loops' registers too often")
        assert int(answer.headers["Retry-After"]) >= 1
        await farm.register("another")
        await farm.clock.sleep(6)
        await farm.register("loops")

    on_farm(main, tmp_path)


def test_push_is_lost_and_comes_back(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        done: list[str] = []
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(1, done))
        ids: list[str] = []
        async with at_work(hand):
            for _ in range(3):
                await until(lambda: _is(hand.agent.state()["push"]), 200)
                job = await farm.put()
                ids.append(job["id"])
                began = farm.clock.now()
                await ended(farm, job["id"], within=60)
                assert farm.clock.now() - began < 3, "by push"
                farm.controller.sockets.close()  # as a restart does, or a proxy
                await until(lambda: _is(not hand.agent.state()["push"]), 200)
                job = await farm.put()
                ids.append(job["id"])
                await ended(farm, job["id"], within=60)
        assert done == ids
        assert len(hand.seen.of(HintsLost)) == 3, "told once each time"
        assert len(hand.seen.of(HintsProven)) in (3, 4)

    on_farm(main, tmp_path)


# The pace


class Terse:
    """A controller that has nothing and says little."""

    def __init__(self, answer: dict[str, Any], status: int = 200, **headers: str) -> None:
        self.answer, self.status, self.headers = answer, status, headers
        self.app = Starlette(
            routes=[
                Route("/api/workers/register", self.register, methods=["POST"]),
                Route("/api/workers/poll", self.poll, methods=["POST"]),
            ]
        )

    async def register(self, _: Request) -> Response:
        return JSONResponse(
            {"worker_id": "w", "token": "t", "min_interval_s": 5, "heartbeat_timeout_s": 600}, 201
        )

    async def poll(self, _: Request) -> Response:
        return JSONResponse(self.answer, self.status, self.headers)


def polled(tmp_path: Path, terse: Terse, seconds: float, **options: Any) -> list[float]:
    """The gaps between the polls of an idle agent."""
    clock = VirtualClock()
    token = tmp_path / "token"
    write_private(token, "secret")
    hands: list[Hand] = []

    async def main() -> None:
        hand = make_hand(terse.app, token, tmp_path, clock, push=False, **options)
        hands.append(hand)
        async with at_work(hand):
            await clock.sleep(seconds)

    clock.run(main())
    polls = [at for at in hands[0].wire.polls() if at < seconds]
    return [b - a for a, b in itertools.pairwise(polls)]


class Hasty(Terse):
    """A controller that wants its agents to poll all the time."""

    async def register(self, _: Request) -> Response:
        told = {"worker_id": "w", "token": "t", "min_interval_s": 0, "heartbeat_timeout_s": 1e-9}
        return JSONResponse(told, 201)


@pytest.mark.parametrize(
    "terse",
    [
        Hasty({"job": None, "next_poll_s": 0}),
        Hasty({"job": None, "next_poll_s": -1}),
        Hasty({"job": {"id": 7}, "next_poll_s": 0}),
        Hasty({}, 429, **{"Retry-After": "0"}),
        Hasty({}, 503, **{"Retry-After": "0"}),
    ],
    ids=["0", "-1", "bad-job", "429", "503"],
)
def test_an_agent_polls_at_most_so_often_whatever_a_controller_says(
    tmp_path: Path, terse: Terse
) -> None:
    gaps = polled(tmp_path, terse, 60)
    assert gaps
    assert len(gaps) <= EMPTY_POLLS_BURST + 60 * EMPTY_POLLS_PER_SECOND + 1


@pytest.mark.parametrize("field", ["min_interval_s", "heartbeat_timeout_s"])
@pytest.mark.parametrize("value", ["nan", "inf", -1])
def test_a_registration_with_times_that_are_none_is_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    terse = Terse({})

    async def register(_: Request) -> Response:
        told = {"worker_id": "w", "token": "t", "min_interval_s": 5, "heartbeat_timeout_s": 600}
        return JSONResponse({**told, field: value}, 201)

    terse.app.router.routes[0] = Route("/api/workers/register", register, methods=["POST"])
    with pytest.raises(StoreError, match="no valid answer to a registration"):
        polled(tmp_path, terse, 60)


def test_an_idle_agent_backs_off_where_nothing_is_suggested(tmp_path: Path) -> None:
    gaps = polled(tmp_path, Terse({"job": None}), 2000)
    assert gaps[0] <= 30, "agents that were started together spread their first pause"
    assert 54 <= gaps[1] <= 66
    assert all(108 <= gap <= 120 for gap in gaps[2:]), gaps
    assert len(set(gaps)) > 3, "there is jitter"


@pytest.mark.parametrize("next_poll", [5, 20, 90])
def test_it_polls_exactly_when_the_controller_suggests(tmp_path: Path, next_poll: float) -> None:
    """The controller spreads the polls of its workers, and jitter would undo that."""
    gaps = polled(tmp_path, Terse({"job": None, "next_poll_s": next_poll}), 1000)
    assert all(gap == pytest.approx(next_poll, abs=0.1) for gap in gaps), gaps


@pytest.mark.parametrize(
    ("options", "second", "last"),
    [
        ({"poll_interval": "8s", "max_interval": "40s"}, 16, 40),
        ({"poll_interval": "10s", "max_interval": "10s"}, 10, 10),
        ({"poll_interval": "2s", "max_interval": "3s"}, 5, 5),  # the controller's minimum
        ({"max_interval": "12s"}, 12, 12),  # the controller suggests more
    ],
)
def test_an_agent_may_have_a_pace_of_its_own(
    tmp_path: Path, options: dict[str, Any], second: float, last: float
) -> None:
    gaps = polled(tmp_path, Terse({"job": None, "next_poll_s": 70}), 500, **options)
    assert gaps[1] == pytest.approx(second, rel=0.11)
    assert gaps[-1] == pytest.approx(last, rel=0.11)


@pytest.mark.parametrize(("timeout", "then"), [("120s", [60, 90, 90]), ("160s", [60, 120, 120])])
def test_an_idle_agent_backs_off_below_the_heartbeat_timeout(
    tmp_path: Path, timeout: str, then: list[float]
) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, push=False, poll_interval="30s")
        async with at_work(hand):
            await farm.clock.sleep(600)
            polls = hand.wire.polls()
        gaps = [b - a for a, b in itertools.pairwise(polls)]
        assert 5 <= gaps[0] <= 30
        assert gaps[1:4] == pytest.approx(then, rel=0.11)

    on_farm(main, tmp_path, heartbeat_timeout=timeout)


@pytest.mark.parametrize("interval", ["7s", "30s", "80s"])
def test_idle_agents_poll_as_often_as_the_controller_says(tmp_path: Path, interval: str) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, push=False)
        async with at_work(hand):
            await farm.clock.sleep(1000)
            gaps = [b - a for a, b in itertools.pairwise(hand.wire.polls())]
        assert gaps[0] <= float(interval[:-1]) + 0.1
        assert all(gap == pytest.approx(float(interval[:-1]), rel=0.05) for gap in gaps[1:])

    on_farm(main, tmp_path, poll_interval=interval)


def test_agents_that_were_started_together_poll_in_turn(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hands = [
            make_hand(farm.app, token, tmp_path / f"{n}", farm.clock, push=False) for n in range(4)
        ]
        async with AsyncExitStack() as stack:
            for hand in hands:
                await stack.enter_async_context(at_work(hand))
            began = farm.clock.now()
            await farm.clock.sleep(1200)
        polls = sorted(at for hand in hands for at in hand.wire.polls() if at > began + 90)
        assert max(b - a for a, b in itertools.pairwise(polls)) <= 9, "30 s, divided by four"
        assert len(polls) <= 4 * 1200 / 30 + 4

    on_farm(main, tmp_path)


@pytest.mark.parametrize("interval", ["5s", "30s"])
def test_an_open_websocket_saves_polls(tmp_path: Path, interval: str) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(1))
        async with at_work(hand):
            await farm.clock.sleep(3600)
            assert hand.agent.state()["push"]
            assert len(hand.wire.polls()) <= 2 + 3600 / 54
            gaps = [b - a for a, b in itertools.pairwise(hand.wire.polls())]
            assert all(54 <= gap <= 66 for gap in gaps[1:]), gaps
            job = await farm.put()
            began = farm.clock.now()
            await ended(farm, job["id"], within=20)
            assert farm.clock.now() - began < 3, "and yet it is picked up at once"
            await farm.clock.sleep(5)
            farm.controller.sockets.close()
            hand.refuse_sockets()
            polls = len(hand.wire.polls())
            await until(lambda: _is(len(hand.wire.polls()) > polls), 10)
            await farm.clock.sleep(600)
            assert len(hand.wire.polls()) - polls >= 600 / (1.1 * float(interval[:-1]))
        results = Counter(getattr(event, "result", "") for event in farm.seen)
        assert results["too_soon"] == 0

    on_farm(main, tmp_path, poll_interval=interval)


@pytest.mark.parametrize("push", [True, False])
@pytest.mark.parametrize("slots", [1, 5])
def test_a_busy_agent_is_never_too_soon(tmp_path: Path, push: bool, slots: int) -> None:
    async def main(farm: Farm) -> None:
        jobs = [(await farm.put())["id"] for _ in range(60)]
        count = itertools.count()

        async def execute(run: AgentRun) -> CommandResult:
            number = next(count)
            await asyncio.sleep((0.0, 0.3, 7.0, 0.01)[number % 4])
            failed = number % 9 == 0 and run.work.attempt == 1
            return CommandResult(int(failed), "no" if failed else None)

        token = await worker_token(farm, tmp_path)
        hand = make_hand(
            farm.app, token, tmp_path, farm.clock, execute=execute, push=push, slots=slots
        )
        async with at_work(hand):
            for job in jobs:
                await ended(farm, job, within=2000)
                if job == jobs[30]:
                    await farm.put()
        results = Counter(getattr(event, "result", "") for event in farm.seen)
        assert results["too_soon"] == 0

    on_farm(main, tmp_path)


@pytest.mark.parametrize("status", [429, 403])  # 403: of a proxy that limits requests
def test_too_soon_is_heeded(tmp_path: Path, status: int) -> None:
    refused = {"error": {"code": "too_soon", "message": "m", "what_to_do": "w"}}
    gaps = polled(tmp_path, Terse(refused, status, **{"Retry-After": "17"}), 300)
    assert gaps
    assert all(17 <= gap < 18 for gap in gaps), gaps


def test_an_agent_that_polls_as_told_is_never_too_soon_nor_offline(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, push=False)
        async with at_work(hand):
            for _ in range(100):
                await farm.clock.sleep(37)
                found = (await farm.call("GET", "/api/workers"))["workers"]
                assert [worker["state"] for worker in found] == ["online"]
        assert hand.seen.of(PollFailed) == []
        results = Counter(getattr(event, "result", "") for event in farm.seen)
        assert results["too_soon"] == 0

    on_farm(main, tmp_path)


# Stops


def test_a_stop_finishes_what_runs(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(20), grace="30s")
        async with at_work(hand):
            await ended(farm, job["id"], "leased")
        assert (await farm.job(job["id"]))["state"] == "done"
        assert (await farm.call("GET", "/api/workers"))["workers"] == []

    on_farm(main, tmp_path)


@pytest.mark.parametrize("twice", [False, True])
def test_a_stop_gives_back_what_takes_too_long(tmp_path: Path, twice: bool) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        token = await worker_token(farm, tmp_path)
        grace = "1h" if twice else "5s"
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(9999), grace=grace)
        async with at_work(hand):
            await ended(farm, job["id"], "leased")
            if twice:
                hand.agent.stop()
                await farm.clock.sleep(1)
        found = await farm.job(job["id"])
        assert found["state"] == "ready"
        assert len(hand.seen.of(JobGivenBack)) == 1
        again = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(1))
        async with at_work(again):
            done = await ended(farm, job["id"])
        assert done["attempt"] == 1, "a run that was given back is no attempt"

    on_farm(main, tmp_path)


def test_a_stop_with_the_network_gone_ends(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(9999), grace="5s")
        async with at_work(hand):
            await ended(farm, job["id"], "leased")
            await hand.cut()
            began = farm.clock.now()
        assert farm.clock.now() - began < 80

    on_farm(main, tmp_path)


# What is wrong from the start


@pytest.mark.parametrize(("scope", "says"), [("put", "scope worker"), (None, "not known")])
def test_a_wrong_token_ends_it_at_once(tmp_path: Path, scope: str | None, says: str) -> None:
    async def main(farm: Farm) -> None:
        token = tmp_path / "none"
        write_private(token, "hunter2" * 6)
        if scope is not None:
            token = await worker_token(farm, tmp_path, scope)
        hand = make_hand(farm.app, token, tmp_path, farm.clock)
        with pytest.raises(StoreError, match=says) as raised:
            await hand.agent.run()
        assert token.read_text().strip() not in str(raised.value)

    on_farm(main, tmp_path)


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock)
        async with at_work(hand):
            await farm.clock.sleep(1)
            with pytest.raises(ConfigError, match="another agent uses"):
                await make_hand(farm.app, token, tmp_path, farm.clock).agent.run()

    on_farm(main, tmp_path)


# Many


@pytest.mark.parametrize(
    ("store", "agents"),
    [
        ("sqlite", 60),
        pytest.param("sqlite", 200, marks=pytest.mark.soak),
        pytest.param("memory", 200, marks=pytest.mark.soak),
    ],
)
def test_agents_race_for_jobs_and_each_runs_once(tmp_path: Path, store: str, agents: int) -> None:
    count = 5 * agents

    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        done: list[str] = []
        hands = [
            make_hand(
                farm.app, token, tmp_path / str(number), farm.clock,
                execute=takes(0.5 + number % 7, done), name=f"hand-{number}", push=number % 2 == 0,
            )
            for number in range(agents)
        ]  # fmt: skip
        working = [asyncio.ensure_future(hand.agent.run()) for hand in hands]
        jobs = [(await farm.put(payload=number))["id"] for number in range(count)]
        await until(lambda: _is(len(done) >= count), 3600)
        await farm.clock.sleep(30)
        for hand in hands:
            hand.agent.stop()
        await asyncio.wait(working)
        assert sorted(done) == sorted(jobs)
        started = Counter(event.job for hand in hands for event in hand.seen.of(JobStarted))
        assert set(started.values()) == {1}
        reported = [event for hand in hands for event in hand.seen.of(JobReported)]
        assert {event.result for event in reported} == {"done"}
        stats = await farm.call("GET", "/api/stats")
        assert stats["jobs"]["done"] == count

    on_farm(main, tmp_path, store)


# Uploads that cannot be


def made(size: int) -> Any:
    async def execute(run: AgentRun) -> CommandResult:
        (run.folder / "out" / "app.bin").write_bytes(b"x" * size)
        (run.folder / "progress").write_text("0.9 linked\n")
        return CommandResult(0)

    return execute


def test_an_artefact_above_the_limit_is_not_even_sent(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put("build", attempts=1)
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=made(1001))
        async with at_work(hand):
            dead = await ended(farm, job["id"], "dead", within=5)
        assert "has more than 1000 bytes" in dead["error"]
        assert "raise artefact_limit" in dead["error"]
        assert dead["progress"] == 0.9
        assert not [path for _, method, path in hand.wire.requests if method == "PUT"]

    on_farm(main, tmp_path, artefact_limit=1000)


def test_an_upload_that_is_cut_each_time_fails_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put("build", attempts=1)
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=made(10))
        hand.wire.lose = ("/artefacts/", 1000)
        async with at_work(hand):
            dead = await ended(farm, job["id"], "dead", within=120)
        assert "'app.bin' could not be sent in 5 tries" in dead["error"]
        assert len([1 for _, method, _ in hand.wire.requests if method == "PUT"]) == 5

    on_farm(main, tmp_path)
    tries = [each for each in caplog.records if "could not be sent" in each.getMessage()]
    assert len(tries) == 5


@pytest.mark.parametrize("timeout", [60, None])
def test_a_controller_with_a_full_disk_fails_the_job_by_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: int | None
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main(farm: Farm) -> None:
        monkeypatch.setattr("pollwise.controller.files.blobs._FileWriter.write", full)
        job = await farm.put("build", attempts=1, timeout_s=timeout)
        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=made(10))
        async with at_work(hand):

            async def shown() -> bool:
                return "no room" in ((await farm.job(job["id"]))["message"] or "")

            await until(shown)
            if timeout is None:  # it keeps trying, and everybody sees why
                await farm.clock.sleep(3600)
                assert await shown()
                monkeypatch.undo()
                await ended(farm, job["id"])
            else:
                dead = await ended(farm, job["id"], "dead", within=120)
                assert "'app.bin' could not be sent within the timeout of 60 s" in dead["error"]
                assert "no room" in dead["error"]

    on_farm(main, tmp_path)


def test_a_result_that_the_controller_refuses_fails_its_job_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An agent of another version lets more through than its controller.
    monkeypatch.setattr("pollwise.agent.commands.results.encode", lambda *_: "")

    async def main(farm: Farm) -> None:
        jobs = [await farm.put("build", payload=n, attempts=1) for n in range(3)]

        async def execute(run: AgentRun) -> CommandResult:
            deep = 300 if run.work.payload == 1 else 1
            (run.folder / "result.json").write_text("[" * deep + "]" * deep)
            return CommandResult(0)

        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=execute, slots=3)
        async with at_work(hand):
            refused = await ended(farm, jobs[1]["id"], "dead")
            for job in (jobs[0], jobs[2]):
                assert (await ended(farm, job["id"]))["result"] == []
        assert "its report was refused" in refused["error"]
        assert "nests deeper than 200" in refused["error"]

    on_farm(main, tmp_path)


def test_the_last_progress_is_told_with_the_end(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put("build")

        async def execute(run: AgentRun) -> CommandResult:
            (run.folder / "progress").write_text("0.2 compiling\n1.0 packed\n")
            return CommandResult(0)

        token = await worker_token(farm, tmp_path)
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=execute)
        async with at_work(hand):
            done = await ended(farm, job["id"], within=5)
        assert (done["progress"], done["message"]) == (1.0, "packed")

    on_farm(main, tmp_path)


def test_an_agent_whose_token_was_revoked_stops_and_says_why(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token = await worker_token(farm, tmp_path)
        [row] = [
            each for each in await farm.controller.storage.list_tokens() if each.scope != "admin"
        ]
        job = await farm.put()
        hand = make_hand(farm.app, token, tmp_path, farm.clock, execute=takes(3600))
        async with at_work(hand):
            await ended(farm, job["id"], "leased")
            await farm.call("DELETE", f"/api/tokens/{row.id}")

            async def stopped() -> bool:
                return not hand.agent.state()["running"]

            await until(stopped, within=60)
            assert len(hand.seen.of(JobLost)) == 1, "it is not its any more"
            failed = await until_failed(hand)
            assert "the token was revoked. Ask an admin for another" in failed.error
            await ended(farm, job["id"], "ready")  # for others, when the lease is over
            # Another token in the file, and it goes on by itself.
            await worker_token(farm, tmp_path)
            await ended(farm, job["id"], "leased")

    async def until_failed(hand: Hand) -> PollFailed:
        async def so() -> bool:
            return bool(hand.seen.of(PollFailed))

        await until(so, within=60)
        return hand.seen.of(PollFailed)[-1]

    on_farm(main, tmp_path)
