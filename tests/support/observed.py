"""All parts of Pollwise under load in one event loop, each with metrics that Prometheus scrapes.

Workers, a relay, a controller with an agent and a worker over HTTP, and two fleets, with typical
problems: jobs fail and die, a breaker opens, a thread is abandoned, a key is blocked, an agent is
offline, a target is down. Dashboards are tested with it, and their pictures are made from it.

    async with Observed(folder, dsn).running() as observed:
        observed.scrapes    # for Prometheus
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from unittest import mock

import httpx

from pollwise import Concurrency, Ewma, Worth
from pollwise.agent import Agent, AgentOptions
from pollwise.alerts.channels.function import FunctionChannel
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Notice
from pollwise.controller import Controller, ControllerOptions
from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.core.strategies.base import Strategy
from pollwise.fleet import FailureRules, Fleet, FleetRunOptions, Target
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.targets import Reading
from pollwise.observe.prometheus import PrometheusSink
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.events import Events
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker, WorkerRunOptions
from pollwise.worker.measuring import QueueExporter
from tests.support.daemons import free_port
from tests.support.private import write_private
from tests.support.prometheus import Scrape

#: The price of a poll, in dollars.
PRICE = 0.0000004
RETRY = Retry.exponential("100ms", "500ms", attempts=2)
#: By kind: jobs a second, seconds that one takes, and the share that fails.
KINDS = {"charge_card": (6.0, 0.05, 0.02), "send_receipt": (9.0, 0.02, 0.0), "ship": (3, 0.1, 0.15)}
GROUPS = {"shop": 8, "api": 6, "partners": 10}


class Observed:
    """The parts, and where their metrics are. `load` scales how much work arrives.

    dsn: an empty database of Postgres, whose hints are checked; the other stores are files.
    """

    def __init__(self, folder: Path, dsn: str, seed: int = 19) -> None:
        self.folder = folder
        self.dsn = dsn
        self.rng = Random(seed)
        self.load = 1.0
        self.scrapes: list[Scrape] = []
        self._release = threading.Event()
        self._tasks: list[asyncio.Future[Any]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Observed]:
        """Everything runs inside the block."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end)
            stack.callback(self._release.set)
            # A kind without a handler counts as such after a minute.
            stack.enter_context(mock.patch("pollwise.worker.unhandled.READY_FOR", 0.0))
            await self._orders(stack)
            await self._reports(stack)
            shop = SqliteOutboxStore(self.folder / "shop.db", name="shop")
            await self._relay(stack, shop, Ewma())
            mail = PostgresOutboxStore(self.dsn, "mail")
            await self._relay(stack, mail, Worth(mean_wait="500ms"))
            self._exporter(stack)
            await self._controller(stack)
            self._fleet(stack, "pages", by_target=False)
            self._fleet(stack, "machines", by_target=True)
            yield self

    # Workers

    async def _orders(self, stack: AsyncExitStack) -> None:
        """A busy queue: jobs fail and die, a breaker opens, a chore fails."""
        queue = SqliteQueue(self.folder / "orders.db", "orders", synchronous="off", keep="1d")
        await stack.enter_async_context(queue)
        await queue.migrate()
        worker = Worker(queue, name="orders-1", events=self._served(stack, "worker"))
        for kind in KINDS:
            worker.handle(kind, retry=RETRY)(self._handler(kind))

        @worker.handle("call_bank", retry=RETRY, breaker=Breaker(2, "1s"))
        async def call_bank(job: Job) -> NoReturn:
            raise ConnectionError("bank.example does not answer")

        @worker.handle("scan", retry=Retry.never(), timeout="200ms")
        def scan(job: Job) -> None:
            self._release.wait(600.0)  # longer than its timeout: its thread is abandoned

        await queue.put([NewJob("sms", {}), NewJob("scan", {})])
        await queue.put([NewJob("call_bank", {}) for _ in range(3)])
        queue.record_worker = _fails_once(queue.record_worker)  # type: ignore[method-assign]
        await stack.enter_async_context(worker.running(self._options(Ewma())))
        self._go(self._orders_arrive(queue))

    async def _orders_arrive(self, queue: SqliteQueue) -> None:
        while True:
            await queue.put(
                NewJob(kind, {"order": self.rng.randrange(10_000)})
                for kind, (rate, _, _) in KINDS.items()
                for _ in range(self._arrivals(rate * 0.25))
            )
            await asyncio.sleep(0.25)  # real time: Prometheus scrapes

    def _handler(self, kind: str) -> Callable[[Job], Any]:
        _, takes, failing = KINDS[kind]

        async def handle(job: Job) -> None:
            await asyncio.sleep(self.rng.expovariate(1 / takes))  # real time: scraped
            if self.rng.random() < failing:
                raise ConnectionError("carrier.example answered 503")

        return handle

    async def _reports(self, stack: AsyncExitStack) -> None:
        """A quiet queue, whose worker states a goal instead of intervals."""
        queue = SqliteQueue(self.folder / "reports.db", "reports", synchronous="off", keep="1d")
        await stack.enter_async_context(queue)
        await queue.migrate()
        worker = Worker(queue, name="reports-1", events=self._served(stack, "worker-reports"))
        worker.handle("thumbnail")(self._handler("charge_card"))
        await queue.schedules.set("hourly", NewJob("thumbnail", {}), every="1h")
        await queue.limits.set("thumbnail", Concurrency(100))
        options = self._options(Worth(mean_wait="500ms"), hints=False)
        await stack.enter_async_context(worker.running(options))
        self._go(self._every(1.5, lambda: queue.put([NewJob("thumbnail", {})])))

    def _exporter(self, stack: AsyncExitStack) -> None:
        """What `pollwise queue export` runs."""
        urls = [f"sqlite:///{self.folder}/{name}.db?queue={name}" for name in ("orders", "reports")]
        exporter = QueueExporter(urls, self._served(stack, "queues"), 0.5)
        self._go(exporter.run(asyncio.Event()))

    # The outbox

    async def _relay(self, stack: AsyncExitStack, store: OutboxStore, polling: Strategy) -> None:
        name = store.name
        await stack.enter_async_context(store)
        await store.migrate()
        outbox = Outbox(store, relay=f"{name}-1", events=self._served(stack, f"relay-{name}"))

        @outbox.handle("*", retry=RETRY, breaker=Breaker(2, "2s"))
        async def publish(record: Any) -> None:
            await asyncio.sleep(0.01)  # real time: Prometheus scrapes
            if record.key == "order-40404":
                raise ValueError("broker refused the message: 413 payload too large")

        @outbox.handle("order.refunded", retry=RETRY, breaker=Breaker(2, "2s"))
        async def refund(record: Any) -> NoReturn:
            raise ConnectionError("bank.example does not answer")

        store.stats = _fails_once(store.stats)  # type: ignore[method-assign]
        await store.put([NewRecord("order.placed", {}, "order-40404") for _ in range(3)])
        await store.put([NewRecord("order.refunded", {}, f"refund-{n}") for n in range(3)])
        options = OutboxRunOptions(polling=polling, signals=False, seed=1)
        await stack.enter_async_context(outbox.running(options))

        async def put() -> None:
            keys = [f"order-{self.rng.randrange(9999)}" for _ in range(self._arrivals(3.0))]
            await store.put([NewRecord("order.placed", {}, key) for key in keys])

        self._go(self._every(0.5, put))

    # The controller

    async def _controller(self, stack: AsyncExitStack) -> None:
        """Builds for an agent, mail for a worker over HTTP; one more agent has gone offline."""
        port = free_port()
        options = ControllerOptions(
            port=port, signals=False, metrics_open=True, artefacts=self.folder / "artefacts",
            heartbeat_timeout="2s", min_interval="100ms", poll_interval="1s", queues=["mail"],
        )  # fmt: skip
        url = f"sqlite:///{self.folder}/farm.db?queue=agents&keep=1d&synchronous=off"
        controller = Controller(url, options, events=Events(quiet=True))
        serving = asyncio.ensure_future(controller.run())

        async def stop() -> None:
            controller.stop()
            await serving

        stack.push_async_callback(stop)
        here = f"http://127.0.0.1:{port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=here))
        async with asyncio.timeout(60):
            while not await self._answers(http):
                await asyncio.sleep(0.05)  # real time: the server starts
        self.scrapes.append(Scrape("controller", f"{here}/metrics"))
        _, admin = await controller.tokens.make("admin", "admin")
        _, secret = await controller.tokens.make("worker", "workers")
        http.headers["Authorization"] = f"Bearer {admin}"
        token = self.folder / "token"
        write_private(token, secret)
        body = {"name": "build-2", "capabilities": {}, "slots": 1}
        (await http.post("/api/workers/register", json=body)).raise_for_status()
        agent = AgentOptions(
            here, ["true"], token, name="build-1", folder=self.folder / "agent", signals=False
        )
        self._go(Agent(agent, events=Events(quiet=True)).run())
        queue = open_queue(f"{here}?queue=mail&token_file={token}")
        await stack.enter_async_context(queue)
        worker = Worker(queue, name="mail-1", events=self._served(stack, "worker-mail"))
        worker.handle("send_receipt")(self._handler("send_receipt"))
        await stack.enter_async_context(worker.running(self._options(Ewma())))

        async def put() -> None:
            await http.post("/api/jobs", json={"kind": "build", "payload": None, "attempts": 1})
            await http.get("/api/jobs/unknown")

        self._go(self._every(1.0, put))

    async def _answers(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get("/readyz")).is_success
        except httpx.TransportError:
            return False

    # Fleets

    def _fleet(self, stack: AsyncExitStack, name: str, *, by_target: bool) -> None:
        async def page(notice: Notice) -> None:
            if self.rng.random() < 0.3:
                raise ConnectionError("pager.example does not answer")

        alerts = Alerts([FunctionChannel("ops", page)], to=["ops"])
        rules = FailureRules(confirm=0.2, confirmations=1, breaker=Breaker(2, "2s"))
        options = FleetRunOptions(seed=1, signals=False, rules=rules)
        events = self._served(stack, f"fleet-{name}", by_target=by_target)
        fleet = Fleet(options, name=name, events=events, alerts=alerts)
        for group, count in GROUPS.items():
            for n in range(1, count + 1):
                probe = as_probe(self._probe(group, n))
                fleet.add(Target(f"{group}-{n:02}", probe, "1s", group=group, alerts="down"))
        self._go(fleet.run())
        stack.callback(fleet.stop)

    def _probe(self, group: str, n: int) -> Any:
        async def probe(target: Target) -> Reading:
            await asyncio.sleep(self.rng.uniform(0.01, 0.2))  # real time: scraped
            down = (
                time.monotonic() % (6.0 * n) < 3.0
            )  # again and again, so that alerts open and close
            if (group == "partners" and n < 4 and down) or self.rng.random() < 0.01:
                raise ConnectionError("connection refused")
            return Reading(str(self.rng.randrange(10)))

        return probe

    # All parts

    def _options(self, polling: Strategy, *, hints: bool = True) -> WorkerRunOptions:
        return WorkerRunOptions(polling=polling, signals=False, seed=1, hints=hints, concurrency=8)

    def _served(self, stack: AsyncExitStack, job: str, *, by_target: bool = False) -> Events:
        """Events whose metrics Prometheus scrapes."""
        events, sink = Events(quiet=True), PrometheusSink(price=PRICE, by_target=by_target)
        sink.subscribe(events)
        server = sink.serve(0)
        stack.callback(server.close)
        self.scrapes.append(Scrape(job, server.url))
        return events

    def _arrivals(self, expected: float) -> int:
        return sum(self.rng.random() < expected * self.load / 20 for _ in range(20))

    def _go(self, work: Any) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _every(self, pause: float, work: Callable[[], Any]) -> None:
        while True:
            await work()
            await asyncio.sleep(pause)  # real time: Prometheus scrapes

    def check(self) -> None:
        """Raise the error of a part that ended too early."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _fails_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which raises the first time: a chore fails."""
    failed = False

    async def called(*given: Any, **more: Any) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise ConnectionError("the disk is busy")
        return await call(*given, **more)

    return called
