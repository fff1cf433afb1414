"""A whole web interface for the browser: a shop that runs, and a queue full of hostile texts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pollwise.fleet.stores.urls import open_store as open_fleet_store
from pollwise.outbox import NewRecord
from pollwise.outbox.stores.urls import open_store as open_outbox_store
from pollwise.queues.base import Queue
from pollwise.queues.presence import RunningJob, WorkerInfo
from pollwise.queues.urls import open_queue
from pollwise.runtime.audit import printable
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from pollwise.web.app import Web, application
from pollwise.web.sources import Sources
from tests.queues.http.stub import Served
from tests.support.shop import LOOKED_AT, Shop
from tests.web.viewers import Everybody

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
#: Those that can be a name: of a kind, a key, a worker.
NAMES = tuple(attack for attack in ATTACKS if attack.isprintable())
#: How many jobs carry them.
HOSTILE_JOBS = 1_000


@dataclass(frozen=True)
class Site:
    """Where a web interface is served, and the paths of pages with hostile texts."""

    url: str
    web: Web
    hostile: tuple[str, ...]


@contextmanager
def served_site(folder: Path) -> Iterator[Site]:
    """The site at a port of this machine."""
    # In a thread: Playwright has an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        sources, paths = thread.submit(_made, folder).result()
    web = Web(sources, Everybody(), refresh=0.2)
    with Served(lambda: application(web)) as served:
        yield Site(served.url, web, paths)


def _made(folder: Path) -> tuple[Sources, tuple[str, ...]]:
    shop = Shop.open_for(folder, hours=0.75)
    clock = shop.clock
    hostile = f"sqlite:///{folder}/shop.db?queue=hostile&keep=7d"

    async def fill() -> tuple[str, ...]:
        async with open_queue(hostile, clock=clock) as queue:
            return await _fill_queue(queue), await _fill_outbox(shop.outbox, clock)

    paths = asyncio.run(fill())
    sources = Sources(clock=clock)
    for url in (*shop.queues, hostile):
        sources.add_queue(open_queue(url, clock=clock, create=False))
    sources.add_outbox(open_outbox_store(shop.outbox, clock=clock))
    sources.add_fleet(open_fleet_store(shop.fleet, clock=clock))
    return sources, paths


async def _fill_queue(queue: Queue) -> str:
    """Jobs in every state whose fields are all hostile; returns the page of one of them."""
    jobs = []
    for n in range(HOSTILE_JOBS):
        text = f"{ATTACKS[n % len(ATTACKS)]}{n}"
        kind = NAMES[n % len(NAMES)]
        payload = {text: [text, {text: text}], "n": n}
        key = f"{NAMES[n % 5]}{n % 9}" if n % 7 == 0 else None
        jobs.append(NewJob(kind, payload, key=key, headers={"attack": printable(text)}))
    await queue.put(jobs)
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
    return f"/queues/hostile/jobs/{died[0].job.id}"


async def _fill_outbox(url: str, clock: Clock) -> str:
    async with open_outbox_store(url, clock=clock) as store:
        ids = await store.put(NewRecord(a, {a: a}, a) for a in NAMES)
    return f"/outboxes/default/records/{ids[0]}"
