"""What a token let in goes with it: workers whose registration was revoked, expired or rotated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pollwise.controller.security.tokens import Tokens
from pollwise.controller.workers.registry import WRITE_EVERY
from pollwise.runtime.clock import VirtualClock
from tests.controller.farm import Agent, Farm, farm_on, two_queues, virtually_on_farm
from tests.controller.state.states import Main, Stand

On = Callable[[Main], None]


async def let_in(farm: Farm, **given: Any) -> tuple[str, Agent]:
    """A worker that registered with a token of its scope; the id of that."""
    row, secret = await farm.controller.tokens.make("worker", "minis", **given)
    headers = {"Authorization": f"Bearer {secret}"}
    body = {"name": "mini", "capabilities": {}}
    answer = await farm.http.post("/api/workers/register", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return row.id, Agent(farm.http, answer.json())


async def told(agent: Agent) -> dict[str, Any]:
    """What a worker that is sent away hears, however it asks."""
    answers = [
        await agent.get(),
        await agent.post(max=1),
        await agent.get(),  # what is remembered of a refusal says the same
        await agent.http.get(f"/api/workers/{agent.id}", headers=agent.headers),
    ]
    assert [each.status_code for each in answers] == [401] * 4
    errors = [each.json()["error"] for each in answers]
    assert all(each == errors[0] for each in errors), errors
    found: dict[str, Any] = errors[0]
    return found


def test_workers_of_a_revoked_token_are_refused_and_their_jobs_go_to_others(
    tmp_path: Path,
) -> None:
    async def main(farm: Farm) -> None:
        token_id, agent = await let_in(farm)
        other = await farm.register("other")
        job = await farm.put()
        assert (await agent.job())["id"] == job["id"]
        await farm.call("DELETE", f"/api/tokens/{token_id}")
        error = await told(agent)
        assert error["message"] == "the token that this worker registered with was revoked"
        assert "Register again with another token" in error["what_to_do"]
        assert (await agent.heartbeat(job["id"])).status_code == 401
        # Nothing that it sends keeps the job: the lease it had runs out.
        await asyncio.sleep(100)
        assert (await other.poll())["job"] is None
        await agent.get(running=job["id"])
        await asyncio.sleep(21)
        assert (await other.job())["attempt"] == 2
        shown = await farm.call("GET", f"/api/workers/{agent.id}")
        assert shown["state"] == "offline"

    virtually_on_farm(main, tmp_path)


def test_a_held_poll_of_a_revoked_worker_ends(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token_id, agent = await let_in(farm)
        held = asyncio.ensure_future(agent.get(wait=60))
        await asyncio.sleep(1)
        began = farm.clock.now()
        await farm.call("DELETE", f"/api/tokens/{token_id}")
        job = await farm.put()
        assert (await held).json()["job"] is None
        assert farm.clock.now() - began < 1
        assert (await farm.job(job["id"]))["state"] == "ready"
        assert (await agent.get()).status_code == 401

    virtually_on_farm(main, tmp_path)


def test_workers_of_an_expired_token_are_refused(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        _, agent = await let_in(farm, expires_in="1h")
        await asyncio.sleep(3590)
        assert (await agent.get()).status_code == 200
        await asyncio.sleep(11)
        error = await told(agent)
        assert error["message"] == "the token that this worker registered with has expired"
        assert "rotated" in error["what_to_do"]

    virtually_on_farm(main, tmp_path)


def test_workers_of_a_rotated_token_stay_until_their_own_expires(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        token_id, agent = await let_in(farm, expires_in="1h")
        await farm.call("POST", f"/api/tokens/{token_id}/rotate", json={"expires_in_s": 86400})
        for _ in range(3):
            await asyncio.sleep(1000)
            assert (await agent.get()).status_code == 200
            assert (await agent.post(max=0)).status_code == 200
        await asyncio.sleep(601)
        error = await told(agent)
        assert (error["message"], error["what_to_do"]) == (
            "the token has expired", "Register again.",
        )  # fmt: skip

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("how", ["get", "post"])
def test_what_was_revoked_elsewhere_is_heeded_within_seconds(tmp_path: Path, how: str) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with two_queues(tmp_path, clock) as (one, two):
            async with farm_on(one, clock, tmp_path) as a, farm_on(two, clock, tmp_path) as b:
                await gone(a, b)

    async def gone(a: Farm, b: Farm) -> None:
        token_id, agent = await let_in(a)

        async def ask() -> httpx.Response:
            return await (agent.get() if how == "get" else agent.post(max=1))

        assert (await ask()).status_code == 200
        await Tokens(b.controller.storage).revoke(token_id)  # as the command line does
        for _ in range(2):
            await asyncio.sleep(WRITE_EVERY / 2 + 0.1)
            await ask()
        await asyncio.sleep(WRITE_EVERY / 2)
        last = await ask()
        assert last.status_code == 401
        assert "revoked" in last.json()["error"]["message"]

    clock.run(main())


def test_nobody_registers_in_the_seconds_that_a_revoked_token_is_remembered(
    tmp_path: Path,
) -> None:
    async def main(farm: Farm) -> None:
        row, secret = await farm.controller.tokens.make("worker", "minis")
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"name": "mini", "capabilities": {}}
        first = await farm.http.post("/api/workers/register", json=body, headers=headers)
        assert first.status_code == 201
        await Tokens(farm.controller.storage).revoke(row.id)  # by another controller
        second = await farm.http.post("/api/workers/register", json=body, headers=headers)
        assert second.status_code == 401
        assert second.json()["error"]["message"] == "the token was revoked"

    virtually_on_farm(main, tmp_path)


def test_the_store_ends_the_tokens_of_workers_with_the_one_they_came_by(on_state: On) -> None:
    async def main(s: Stand) -> None:
        token, _ = await Tokens(s.state).make("worker", "minis")
        until = s.clock.epoch() + 500
        given = {"registered_by": f"token:{token.id}"}
        first = await s.worker("a", token_expires_at=until, **given)
        second = await s.worker("b", **given)
        over = await s.worker("c", token_expires_at=s.clock.epoch() - 5, **given)
        other = await s.worker("d", token_expires_at=until, registered_by="token:another")
        await s.clock.advance(10)
        now = s.clock.epoch()
        await s.state.revoke_token(token.id)
        await s.clock.advance(10)
        await s.state.revoke_token(token.id)  # again changes nothing
        rows = await s.state.workers([each.id for each in (first, second, over, other)])
        ends = [rows[each.id].token_expires_at for each in (first, second, over, other)]
        assert ends == [now, now, over.token_expires_at, until]

    on_state(main)
