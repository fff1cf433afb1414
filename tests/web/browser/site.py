"""A whole web interface for the browser: a running shop, a controller, and hostile texts in all of
them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from pollwise import web as pollwise_web
from pollwise.alerts.values import Alert
from pollwise.controller import Controller
from pollwise.fleet.history.values import Period
from pollwise.fleet.stores.base import SavedTarget, SaveExtras
from pollwise.fleet.stores.urls import open_store as open_fleet_store
from pollwise.outbox import NewRecord
from pollwise.outbox.stores.urls import open_store as open_outbox_store
from pollwise.queues.base import Queue
from pollwise.queues.presence import RunningJob, WorkerInfo
from pollwise.queues.urls import open_queue
from pollwise.runtime.audit import printable
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from tests.queues.http.stub import Served
from tests.support.shop import LOOKED_AT, Shop
from tests.web.site import PASSWORD, csrf_in

#: Texts that would do harm if a page did not escape them, in every context that HTML has.
ATTACKS = (
    "<script>window.harmed=1</script>",
    "</script><script>window.harmed=1</script>",
    "<img src=x onerror=window.harmed=1>",
    '"><img src=x onerror=window.harmed=1>',
    "'><svg onload=window.harmed=1>",
    '" autofocus onfocus="window.harmed=1',
    "' onmouseover='window.harmed=1",
    "javascript:window.harmed=1",
    "</title></textarea></style></pre><iframe srcdoc='<script>parent.harmed=1</script>'>",
    "{{ 7*7 }}{% for x in () %}",
    "<base href='//harm.example/'><form action=//harm.example><button>Retry</button></form>",
    "--><!--<a href='javascript:window.harmed=1'>x</a>",
    "\u202etxt.exe\u2066<b>\x1b[31m\x07",
    "<style>body{display:none}</style><link rel=stylesheet href=//harm.example>",
    "${alert(1)}`onload=window.harmed=1`",
    "&lt;script&gt;window.harmed=1&lt;/script&gt;",
)
#: The hostile texts that can be a name: of a kind, a key, a worker.
NAMES = tuple(attack for attack in ATTACKS if attack.isprintable())
#: The number of jobs with hostile texts.
HOSTILE_JOBS = 400


@dataclass(frozen=True)
class Site:
    """The address of a web interface, and its contents.

    session: cookies of somebody who is logged in, for `browser.new_context(storage_state=…)`.
    agent: the path of the page of an agent. hostile: the paths of pages with hostile texts.
    """

    url: str
    session: Any
    agent: str
    hostile: tuple[str, ...]

    def first(self, path: str, link: str) -> str:
        """The first link of a page with this beginning."""
        cookies = {each["name"]: each["value"] for each in self.session["cookies"]}
        html = httpx.get(self.url + path, cookies=cookies).text
        found = re.search(f'href="({re.escape(link)}[^"?]+)"', html)
        assert found, f"no link to {link} on {path}"
        return found[1]


@contextmanager
def served_site(folder: Path) -> Iterator[Site]:
    """The site at a port of this machine."""
    # In a thread: Playwright has an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        shop, agent, hostile = thread.submit(_made, folder).result()
    controller = Controller(f"sqlite:///{folder}/jobs.db", clock=shop.clock)
    pages = pollwise_web.app(
        *shop.queues, f"sqlite:///{folder}/shop.db?queue=hostile&keep=7d", outboxes=[shop.outbox],
        fleets=[shop.fleet], controller=controller, password=PASSWORD, refresh=0.2,
        clock=shop.clock, status=pollwise_web.StatusOptions(["*"], reasons=True, notes=True),
    )  # fmt: skip

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with controller, pages:
            yield

    with Served(lambda: Starlette(routes=[Mount("/", pages)], lifespan=lifespan)) as served:
        yield Site(served.url, _logged_in(served.url), agent, hostile)


def _logged_in(url: str) -> Any:
    with httpx.Client(base_url=url) as http:
        http.post("/login", data={"csrf": csrf_in(http.get("/login").text), "secret": PASSWORD})
        cookies = [
            {
                "name": each.name, "value": each.value, "domain": each.domain, "path": each.path,
                "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax",
            }
            for each in http.cookies.jar
        ]  # fmt: skip
    assert cookies, "not logged in"
    return {"cookies": cookies, "origins": []}


def _made(folder: Path) -> tuple[Shop, str, tuple[str, ...]]:
    shop = Shop.open_for(folder, hours=0.75)

    async def fill() -> tuple[str, tuple[str, ...]]:
        url = f"sqlite:///{folder}/shop.db?queue=hostile&keep=7d"
        async with open_queue(url, clock=shop.clock) as queue:
            job, flow = await _fill_queue(queue)
        record = await _fill_outbox(shop.outbox, shop.clock)
        target = await _fill_fleet(shop.fleet, shop.clock)
        good, bad = await _fill_controller(f"sqlite:///{folder}/jobs.db", shop.clock)
        return good, (job, record, target, bad, flow)

    return shop, *asyncio.run(fill())


async def _fill_queue(queue: Queue) -> tuple[str, str]:
    """Jobs in every state whose fields are all hostile; the pages of one of them and of a flow."""
    jobs = []
    for n in range(HOSTILE_JOBS):
        text = f"{ATTACKS[n % len(ATTACKS)]}{n}"
        kind = NAMES[n % len(NAMES)]
        payload = {text: [text, {text: text}], "n": n}
        key = f"{NAMES[n % 5]}{n % 9}" if n % 7 == 0 else None
        jobs.append(NewJob(kind, payload, key=key, headers={"attack": printable(text)}))
    await queue.put(jobs)
    flow = await _fill_flow(queue)
    name = ATTACKS[3]
    claims = await queue.claim(name, 200, "1h")
    died, told = claims[:80], claims[80:]
    await queue.settle(
        [
            Settlement.dead(c, f"{ATTACKS[n % len(ATTACKS)]}\n\tat <b>x</b>")
            for n, c in enumerate(died)
        ]
    )
    done = [Settlement.done(c, {ATTACKS[2]: ATTACKS[0]}) for c in told[:40]]
    await queue.settle(done)
    running = told[40:]
    progress = {c.job.id: Progress(0.5, ATTACKS[n % len(ATTACKS)]) for n, c in enumerate(running)}
    await queue.renew(running, "1h", progress)
    await queue.pause(ATTACKS[0], by=ATTACKS[2], why=ATTACKS[3])
    info = WorkerInfo(
        name=name, instance=ATTACKS[4], host=ATTACKS[0], pid=1, version=ATTACKS[1],
        kinds=NAMES, concurrency=3, busy=1, waiting=0,
        running=(RunningJob(running[0].job.id, ATTACKS[2], LOOKED_AT),), started_at=LOOKED_AT,
        seen_at=LOOKED_AT, strategy=ATTACKS[5], interval=1.0, hints=False, breakers=(ATTACKS[0],),
    )  # fmt: skip
    await queue.record_worker(info, 180.0)
    for n, each in enumerate(NAMES):
        await queue.schedules.set(each, NewJob(each, each), every="1h", by=ATTACKS[n])
    await queue.schedules.run(NAMES[0])
    await queue.schedules.pause(NAMES[1])
    return f"/queues/hostile/jobs/{died[0].job.id}", f"/queues/hostile/jobs/{flow}/flow"


async def _fill_flow(queue: Queue) -> str:
    """A flow with a job of each hostile name: one is dead, one runs. Returns its first job."""
    first = NewJob(NAMES[0], priority=9)
    parts = [NewJob(name, after=[first], priority=9) for name in NAMES]
    further = [NewJob(name, after=[part]) for name, part in zip(NAMES, parts, strict=True)]
    ids = await queue.put([first, *parts, *further, NewJob(NAMES[0], after=further)])
    [claim] = await queue.claim("flow", 1, "1h")
    await queue.settle([Settlement.done(claim)])
    one, two = await queue.claim("flow", 2, "1h")
    await queue.settle([Settlement.dead(one, ATTACKS[1])])
    await queue.renew([two], "1h", {two.job.id: Progress(0.5, ATTACKS[2])})
    return ids[0]


async def _fill_outbox(url: str, clock: Clock) -> str:
    async with open_outbox_store(url, clock=clock) as store:
        ids = await store.put(NewRecord(a, {a: a}, a) for a in NAMES)
    return f"/outboxes/default/records/{ids[0]}"


async def _fill_fleet(url: str, clock: Clock) -> str:
    store = open_fleet_store(url, clock=clock)
    reading = {"summary": ATTACKS[0], "facts": {ATTACKS[0]: ATTACKS[3]}}
    targets = [
        SavedTarget(
            name, LOOKED_AT + 30, False, "dead", 4, ATTACKS[n], LOOKED_AT, None, LOOKED_AT,
            LOOKED_AT, 60.0, {"reading": reading}, None, ATTACKS[2], ATTACKS[4],
        )
        for n, name in enumerate(NAMES)
    ]  # fmt: skip
    alerts = [
        Alert(
            f"a{n}", name, ATTACKS[4], ATTACKS[0], ATTACKS[1], "critical",
            "open" if n % 2 else "closed", LOOKED_AT, LOOKED_AT, None if n % 2 else LOOKED_AT,
            ATTACKS[n], LOOKED_AT, ATTACKS[2], ATTACKS[3], 1, LOOKED_AT,
        )
        for n, name in enumerate(NAMES)
    ]  # fmt: skip
    periods = [
        Period(name, "down", LOOKED_AT - 900, LOOKED_AT - 600, ATTACKS[n])
        for n, name in enumerate(NAMES)
    ]
    await store.save(targets, SaveExtras(periods=periods, alerts=alerts))
    await store.close()
    return f"/fleets/pages/targets/{quote(NAMES[0], safe='')}"


async def _fill_controller(url: str, clock: Clock) -> tuple[str, str]:
    """Agents, jobs that none of them can take, tokens and an audit log; returns two agents."""
    async with Controller(url, clock=clock) as controller:

        async def agent(name: str, **capabilities: Any) -> str:
            row = await controller.registry.register(
                name, capabilities, 4, token_hash=f"hash of {name}", expires_at=None,
                who="token:" + "a" * 32, address="192.0.2.7",
            )  # fmt: skip
            return f"/controller/agents/{row.id}"

        good = await agent("mac-1", platform="ios", memory_gb=32)
        bad = [await agent(name, attack=[name, *NAMES[:3]]) for name in NAMES]
        await controller.put("train", requires={"gpu": "a100", "memory_gb": ">=8"})
        await controller.put("sign", requires={"attack": ATTACKS[3]})
        for name in NAMES:
            await controller.tokens.make("read", name)
            await controller.storage.note(name, "job.put", name, name, name)
        return good, bad[0]
