"""The pages about a controller: agents, their actions, and jobs that no agent can take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pollwise.controller import Controller
from pollwise.controller.state.values import WorkerRow
from pollwise.controller.workers.matching import hash_of
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob
from pollwise.web.app import Web, application
from pollwise.web.sources import Sources
from tests.web.viewers import Somebody, browsing

DRAIN = {"action": "drain"}
HOSTILE = "<script>alert(1)</script>"


async def agent(controller: Controller, name: str, **capabilities: Any) -> WorkerRow:
    return await controller.registry.register(
        name, capabilities, 4, token_hash=f"hash of {name}", expires_at=None,
        who="token:" + "a" * 32, address="10.0.0.7",
    )  # fmt: skip


def on_controller(
    main: Callable[[Controller, httpx.AsyncClient, Somebody], Awaitable[None]],
    scope: Any = "admin",
) -> None:
    async def run() -> None:
        async with Controller("memory://") as controller:
            sources = Sources(controller=controller)
            sources.add_queue(controller.queue)
            access = Somebody(scope)
            async with browsing(application(Web(sources, access))) as http:
                await main(controller, http, access)

    asyncio.run(run())


def test_agents_are_listed_with_what_they_run_and_can_do() -> None:
    async def main(controller: Controller, http: httpx.AsyncClient, _: Somebody) -> None:
        mac = await agent(controller, "mac", platform="ios", regions=["eu", "us"])
        await agent(controller, HOSTILE, x=HOSTILE)
        await controller.put("sign", requires={"platform": "ios"})
        known = await controller.registry.get(mac.id)
        assert known is not None
        [run] = await controller.runs.claim(known, 1)
        page = (await http.get("/controller")).text
        assert "2 <small>of 2</small>" in page  # online
        assert f'href="/controller/agents/{mac.id}">mac</a>' in page
        assert "1 <small>of 4</small>" in page
        assert "regions eu, us" in page
        assert HOSTILE not in page
        assert "&lt;script&gt;" in page
        about = (await http.get(f"/controller/agents/{mac.id}")).text
        assert f'id="job-{run.job_id}"' in about
        assert "10.0.0.7" in about
        assert (await http.get("/controller?state=offline")).text.count('id="agent-') == 0
        missing = await http.get(f"/controller/agents/{'0' * 32}")
        assert missing.status_code == 404

    on_controller(main)


def test_jobs_that_no_agent_can_take_say_which_requirement_nobody_meets() -> None:
    async def main(controller: Controller, http: httpx.AsyncClient, access: Somebody) -> None:
        mac = await agent(controller, "mac", platform="ios", memory_gb=16)
        await controller.put("train", requires={"gpu": "a100", "memory_gb": ">=8"})
        await controller.put("sign", requires={"platform": "ios"})
        overview = (await http.get("/")).text
        assert "1 job that no agent can take: train." in overview
        assert "No worker is running" not in overview
        page = (await http.get("/controller")).text
        stuck = page.partition("Jobs that no agent can take")[2].partition("<h2")[0]
        assert "No live worker has gpu = a100" in stuck
        assert '<span class="badge tone-red">gpu = a100</span>' in stuck
        assert '<span class="badge tone-grey">memory_gb &gt;= 8</span>' in stuck
        assert "sign" not in stuck
        about = (await http.get(f"/controller/agents/{mac.id}")).text
        assert "they need an agent that has gpu = a100" in about
        assert ">can take them<" in about
        await agent(controller, "gpu", gpu="a100", memory_gb=64)
        page = (await http.get("/controller")).text
        assert "None: for each of the 2 kinds of waiting jobs" in page
        await controller.queue.pause("train#" + hash_of({"gpu": "a100", "memory_gb": ">=8"}))
        await http.post("/controller", data={**DRAIN, "csrf": access.csrf, "agent": mac.id})
        assert "The kind is paused" in (await http.get("/controller")).text

    on_controller(main)


def test_an_agent_is_drained_given_jobs_again_and_removed() -> None:
    async def main(controller: Controller, http: httpx.AsyncClient, access: Somebody) -> None:
        row = await agent(controller, "mac")
        await controller.put("build")
        known = await controller.registry.get(row.id)
        assert known is not None
        await controller.runs.claim(known, 1)

        async def post(where: str, **form: str) -> None:
            answer = await http.post(where, data={"csrf": access.csrf, **form})
            assert answer.status_code == 303

        await post("/controller", action="drain", agent=row.id)
        assert known.row.drain
        assert row.id in (await http.get("/controller?state=draining")).text
        about = f"/controller/agents/{row.id}"
        await post(about, action="undrain")
        assert not known.row.drain
        await post(about, action="remove")
        assert await controller.storage.worker(row.id) is None
        assert (await controller.queue.stats()).ready == 1
        await post("/controller", action="drain", agent="nobody")
        assert access.noted == [
            ("drain", "mac gets no more jobs. It finishes what it runs and stays registered."),
            ("undrain", "mac gets jobs again, from its next poll on."),
            ("remove", "mac is removed and its token is invalid. 1 job went back."),
            ("drain refused", "There is no agent 'nobody'; it may have been removed."),
        ]

    on_controller(main)


@pytest.mark.parametrize("scope", ["read", "operate"])
def test_buttons_and_actions_need_their_scope(scope: str) -> None:
    async def main(controller: Controller, http: httpx.AsyncClient, access: Somebody) -> None:
        row = await agent(controller, "mac")
        about = f"/controller/agents/{row.id}"
        page = (await http.get(about)).text
        assert ('value="drain"' in page) is (scope == "operate")
        assert 'value="remove"' not in page
        refused = await http.post(about, data={"csrf": access.csrf, "action": "remove"})
        assert refused.status_code == 403
        assert await controller.storage.worker(row.id) is not None

    on_controller(main, scope)


def test_the_state_alone_shows_agents_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    async def run() -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        async with Controller(url) as controller, open_queue(f"{url}?queue=agents") as queue:
            row = await agent(controller, "mac", platform="ios")
            await controller.put("train", requires={"gpu": True})
            sources, access = Sources(), Somebody()
            sources.add_queue(queue)
            async with browsing(application(Web(sources, access))) as http:
                page = (await http.get("/controller")).text
                assert ">mac</a>" in page
                assert "No live worker has gpu = true" in page
                assert "pages of the running controller" in page
                assert "WebSockets" not in page
                form = {"csrf": access.csrf, "action": "drain", "agent": row.id}
                await http.post("/controller", data=form)
                kept = await controller.storage.worker(row.id)
                assert kept is not None
                assert kept.drain
                about = (await http.get(f"/controller/agents/{row.id}")).text
                assert 'value="remove"' not in about
            await sources.close()

    asyncio.run(run())


def test_a_store_without_the_state_of_a_controller_is_a_notice(tmp_path: Path) -> None:
    async def run() -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        async with open_queue(f"{url}?queue=agents") as queue, open_queue(url) as other:
            await queue.put(NewJob("build"))
            with_agents, without = Sources(), Sources()
            with_agents.add_queue(queue)
            without.add_queue(other)
            async with browsing(application(Web(with_agents, Somebody()))) as http:
                page = await http.get("/controller")
                assert page.status_code == 200
                assert 'class="notice bad"' in page.text
            async with browsing(application(Web(without, Somebody()))) as http:
                missing = await http.get("/controller")
                assert missing.status_code == 404
                assert ">Controller<" not in missing.text  # in the navigation
                without.add_queue(queue)  # found later
                assert ">Controller<" in (await http.get("/")).text
            await with_agents.close()

    asyncio.run(run())
