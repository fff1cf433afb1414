"""Claims over HTTP belong to the token that made them: nobody else can renew or settle them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pollwise.controller import Controller, ControllerOptions
from pollwise.controller.security.claims import ClaimSeals
from pollwise.errors import ConfigError
from pollwise.queues.http import wire
from pollwise.runtime.jobs import Claim, Job
from tests.controller.farm import URL

LEASE = 60


class Client:
    """One token at one controller."""

    def __init__(self, http: httpx.AsyncClient, secret: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def post(self, call: str, **body: Any) -> Any:
        path = f"/api/queue/mail/{call}"
        answer = await self._http.post(path, json=body, headers=self._headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def claim(self) -> Any:
        [claim] = (await self.post("claim", worker="me", lease=LEASE))["claims"]
        return claim

    async def settle(self, claim: Any, **changed: Any) -> list[str]:
        settlement = {**claim, "action": "done", "result": "mine", **changed}
        lost: list[str] = (await self.post("settle", settlements=[settlement]))["lost"]
        return lost

    async def renew(self, claim: Any) -> list[str]:
        given = {**claim, "progress": {"note": "mine"}}
        lost: list[str] = (await self.post("renew", claims=[given], lease=600))["lost"]
        return lost


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Controller, httpx.AsyncClient]]:
    store = f"sqlite:///{folder}/jobs.db"
    controller = Controller(store, ControllerOptions(queues="mail", artefacts=folder / "files"))
    transport = httpx.ASGITransport(controller.app)
    async with controller, httpx.AsyncClient(transport=transport, base_url=URL) as http:
        yield controller, http


def test_only_the_token_that_claimed_can_renew_and_settle(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (controller, http):
            secrets = {
                name: (await controller.tokens.make(scope, name))[1]
                for name, scope in (("put", "put"), ("one", "worker"), ("two", "worker"))
            }
            one, two = (Client(http, secrets[name]) for name in ("one", "two"))
            putting = Client(http, secrets["put"])
            [job_id] = (await putting.post("put", jobs=[{"kind": "a", "key": "k"}]))["ids"]
            claim = await one.claim()

            async def untouched() -> None:
                path = f"/api/queue/mail/jobs/{job_id}"
                headers = {"Authorization": f"Bearer {secrets['put']}"}
                shown = (await http.get(path, headers=headers)).json()["job"]
                assert (shown["state"], shown["result"]) == ("leased", None)
                assert shown["progress"] is None
                assert shown["since"] == pytest.approx(claim["until"] - LEASE, abs=1)

            for forged in (
                claim,  # replayed
                {**claim, "receipt": "x" * len(claim["receipt"])},  # guessed
                {**claim, "receipt": "é☃" * 12},
                {**claim, "receipt": claim["receipt"][:-1]},
            ):
                assert await two.settle(forged) == [job_id]
                assert await two.renew(forged) == [job_id]
                await untouched()
            assert await one.settle({**claim, "key": "other"}) == [job_id], "no other key is freed"
            await untouched()
            # One that is theirs beside one that is not.
            [mine] = (await putting.post("put", jobs=[{"kind": "a"}]))["ids"]
            both = [{**claim, "action": "done"}, {**await two.claim(), "action": "done"}]
            assert (await two.post("settle", settlements=both))["lost"] == [job_id]
            assert (await two.settle(both[1])) == [mine], "it was settled"
            await untouched()
            assert await one.renew(claim) == []
            assert await one.settle(claim) == []
            assert await one.settle(claim) == [job_id], "it is over"

    asyncio.run(main())


def test_a_claim_is_valid_at_another_controller_and_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (controller, http):
            token, secret = await controller.tokens.make("worker", "one")
            _, putting = await controller.tokens.make("put", "puts")
            client = Client(http, secret)
            await Client(http, putting).post("put", jobs=[{"kind": "a"}, {"kind": "a"}])
            first, second = await client.claim(), await client.claim()
            async with serving(tmp_path) as (_, there):
                assert await Client(there, secret).renew(first) == []
                assert await Client(there, secret).settle(first) == []
        async with serving(tmp_path) as (controller, http):
            rotated = await controller.tokens.rotate(token.id)
            assert rotated is not None
            assert await Client(http, rotated[1]).settle(second) == []

    asyncio.run(main())


def test_every_value_of_a_claim_is_sealed() -> None:
    async def key() -> bytes:
        return b"k" * 32

    async def main() -> None:
        seals = ClaimSeals(key)
        await seals.ready()
        job = Job("7", "q", "kind", None, "key", 0, 2, 0.0, 0.0, None)
        claim = Claim(job, 3, "w", 60.0, "the store's own")
        held = wire.held_to(seals.seal(claim, "token:a"))
        for given in (held, {**held, "until": 99.0, "worker": "another name"}):
            opened = seals.open(wire.held_from(given, "q"), "token:a")
            assert opened is not None
            assert opened.receipt == "the store's own"
        changes: dict[str, Any] = {
            "id": "8", "kind": "x", "key": None, "attempt": 1, "token": 4,
            "receipt": held["receipt"] + "x",
        }  # fmt: skip
        for name, value in changes.items():
            changed = wire.held_from({**held, name: value}, "q")
            assert seals.open(changed, "token:a") is None, name
        assert seals.open(wire.held_from(held, "other"), "token:a") is None
        assert seals.open(wire.held_from(held, "q"), "token:b") is None
        with pytest.raises(ConfigError, match="send back all fields"):
            seals.open(wire.held_from({**held, "receipt": ""}, "q"), "token:a")

    asyncio.run(main())
