"""The controller: an HTTP API over a queue, for workers that register and poll.

    controller = Controller("sqlite:///jobs.db")
    asyncio.run(controller.run())                # serve it, or
    app.mount("/pollwise", controller.app)       # mount it in a FastAPI or Starlette application

Several controllers may share one store. Recurring chores are woken by requests, and rest when no
request came since their last turn.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.files.blobs import open_blobs
from pollwise.controller.files.logs import Logs
from pollwise.controller.jobs import Jobs, new_job
from pollwise.controller.measuring import ControllerMetrics
from pollwise.controller.missing_files import BlobsMissing, MissingStorage, OpenFiles
from pollwise.controller.names import Names
from pollwise.controller.opening import (
    AGENTS,
    check_queue,
    default_artefacts,
    queue_named,
    refuse_unfit,
    state_at,
    state_of,
)
from pollwise.controller.options import ControllerOptions
from pollwise.controller.retention import RETENTION_EVERY, Retention
from pollwise.controller.security.auth import Auth
from pollwise.controller.security.tokens import Tokens
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.workers.others import OtherControllers
from pollwise.controller.workers.polling import Poller
from pollwise.controller.workers.push import WorkerSockets
from pollwise.controller.workers.registry import REQUIREMENTS_EVERY, WRITE_EVERY, WorkerRegistry
from pollwise.controller.workers.runs import Runs
from pollwise.controller.workers.waiting import waiting_kinds
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, MissingExtra, PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.jobs import ENDED, STATES
from pollwise.runtime.signals import stopping_on_signals

try:
    from pollwise.controller.http.access import Access
    from pollwise.controller.http.queues.routes import QueueApi
except ImportError:  # pragma: no cover - tried in an environment without the extra
    raise MissingExtra("the controller", "serve") from None

if TYPE_CHECKING:
    from pollwise.controller.http.app import ControllerApp
    from pollwise.controller.http.server import ControllerServer
    from pollwise.observe.otel import OtelSink

logger = logging.getLogger("pollwise")

#: The maximum number of puts that wait for the audit log while it cannot be written.
PUTS_NOTED_MAX = 10_000
#: The chores that rest while no request comes.
WHILE_AWAKE = ("seen", "sweep", "requirements", "kinds")


class Controller:
    """Hands out the jobs of a queue to workers that poll over HTTP.

    store: the URL of a store, whose queue `agents` is used; or an open queue, which the caller
        closes, and whose own `keep` counts. It must be able to claim by kind, to keep results and
        to cancel.
    options: how it behaves, where it listens, and where it keeps its state and files.
    """

    def __init__(
        self,
        store: Queue | str,
        options: ControllerOptions | None = None,
        *,
        events: Events | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(store, (Queue, str)):
            raise ConfigError(f"store = {store!r} is neither a queue nor the URL of a store")
        refuse_unfit(store if isinstance(store, str) else store.url)
        self.options: ControllerOptions = options or ControllerOptions()
        if isinstance(store, str):
            store_keep = self.options.span("keep")
            self.queue: Queue = queue_named(store, AGENTS, keep=store_keep, clock=clock)
        else:
            self.queue = store
        check_queue(self.queue)
        self.queue.pass_sealed_on()
        self.clock: Clock = clock or self.queue.clock
        self.events: Events = events or Events()
        self.source: str = self.queue.name
        self.storage: ControllerState = self._open_state()
        #: What `close` closes: the queue and the state, unless they were given.
        self._owned: list[Queue | ControllerState] = []
        if isinstance(store, str):
            self._owned.append(self.queue)
        if not isinstance(self.options.state, ControllerState):
            self._owned.append(self.storage)
        self.artefacts: Artefacts = Artefacts(
            self.storage, open_blobs(self._artefacts_place()), limit=self.options.artefact_limit
        )
        hints, common = self.queue.hints(), (self.options, self.clock, self.events)
        self.auth: Auth = Auth(self.storage, self.clock)
        self.access: Access = Access(self)
        self.names: Names = Names(self.storage)
        self.tokens: Tokens = Tokens(self.storage, self.clock)
        self.registry: WorkerRegistry = WorkerRegistry(self.storage, hints, *common, self.source)
        self.runs: Runs = Runs(self.queue, self.registry, *common)
        self.jobs: Jobs = Jobs(self.queue, self.registry, self.artefacts, self.clock, self.events)
        self._retention = Retention(self.queue, self.storage, self.jobs, self.artefacts)
        self.logs: Logs = Logs(
            self.storage, self.options.log_limit, self.jobs.folder_of, self._has_ended
        )
        self._puts_to_note: list[tuple[AuditEntry, float]] = []
        others = OtherControllers(self.registry, self.runs, hints, self.clock)
        self.poller: Poller = Poller(
            self.registry, self.runs, self.logs, others, hints, self.options, self.clock
        )
        self.sockets: WorkerSockets = WorkerSockets(
            self.registry, others, hints, *common, self.source
        )
        #: The queues of the store over HTTP; None if the store was given as an open queue.
        self.queue_api: QueueApi | None = None
        if isinstance(store, str):
            self.queue_api = QueueApi(
                lambda name, keep: queue_named(store, name, keep, clock),
                self.access.authorise,
                self.clock,
                self.check_files,
                lambda: self.storage.secret("claims"),
                self.access.readable,
                self.options.span("keep"),
            )
        hints.report_to(self.source, self.events)
        stores = (
            each
            for each in (self.queue, self.storage)
            if isinstance(each, (SqliteQueue, SqliteState))
        )
        self._files = OpenFiles((each.path for each in stores), self.clock)
        #: Failures that were logged, and are not logged again until `ready` succeeded.
        self._logged: set[str] = set()
        #: Whether the chores are scheduled; the poll route calls `began` only if not.
        self.awake: bool = False
        self._requests = 0
        self._requests_before = 0
        self._metrics = ControllerMetrics(self)
        self._chores = self._planned()
        self._started = False
        self._starting = asyncio.Lock()
        self._server: ControllerServer | None = None
        self._closed = False
        #: Called by `stop_waiting`, such as to end the live pages of a web interface.
        self.on_stop: list[Callable[[], None]] = []

    def _open_state(self) -> ControllerState:
        chosen = self.options.state
        if isinstance(chosen, ControllerState):
            return chosen
        return state_of(self.queue, self.clock) if chosen is None else state_at(chosen, self.clock)

    def _artefacts_place(self) -> str:
        chosen = self.options.artefacts
        place = default_artefacts(self.queue) if chosen is None else str(chosen)
        if place is not None:
            return place
        folder = tempfile.mkdtemp(prefix="pollwise-artefacts-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    # Running

    @cached_property
    def app(self) -> ControllerApp:
        """The ASGI application. It can be mounted: `outer.mount("/pollwise", controller.app)`.

        Starlette does not run the lifespan of a mounted application: give the outer one
        `lifespan=controller.lifespan`. Otherwise the first request starts the controller, and
        nothing closes it.
        """
        from pollwise.controller.http.app import application

        with suppress(MissingExtra):  # without the extra `metrics`, nothing is counted
            self._metrics.prometheus()
        return application(self)

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Start the controller and close it at the end: the lifespan of an ASGI application."""
        async with self:
            yield

    async def run(self) -> None:
        """Serve `app` at the host and port of the options until stopped; then close."""
        from pollwise.controller.http.server import server_of

        self._server = server_of(self)
        try:
            with stopping_on_signals(self.stop if self.options.signals else None):
                await self._server.serve_until_stopped()
        finally:
            await self.close()

    def stop(self) -> None:
        """Stop `run`: answer held polls, then let requests finish. A second call does not wait."""
        self.stop_waiting()
        if self._server is not None:
            self._server.force_exit = self._server.should_exit
            self._server.should_exit = True

    async def start(self) -> None:
        """Read what is stored. The first request does this if nothing has done it before."""
        if self._started:
            return
        async with self._starting:
            if not self._started:
                await self.registry.read_requirements(force=True)
                # Jobs without files need no place for them; /readyz reports it.
                with suppress(BlobsMissing):
                    await self.artefacts.blobs.check()
                await self._files.check()
                self._started = True

    async def close(self) -> None:
        """End held requests, save when workers were seen, and close what was opened."""
        if self._closed:
            return
        self._closed = True
        self.stop_waiting()
        async with AsyncExitStack() as stack:
            for each in self._owned:
                stack.push_async_callback(each.close)
            stack.push_async_callback(self.artefacts.close)
            if self._started:
                stack.push_async_callback(self._save_last)
                stack.push_async_callback(self._chores.close)
            if self.queue_api is not None:
                await self.queue_api.close()

    async def _save_last(self) -> None:
        try:
            await self._save()
        except Exception as error:
            self.log_failure(error)

    async def _save(self) -> None:
        await self.registry.write_down()
        await self.auth.write_down()
        await self._note_puts()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop_waiting(self) -> None:
        """End held polls, followed logs and WebSockets, so that a stopping server need not wait."""
        if self.queue_api is not None:
            self.queue_api.stop_waiting()
        self.poller.stop_waiting()
        self.logs.stop_waiting()
        self.sockets.close()
        for call in self.on_stop:
            call()

    def state(self) -> dict[str, Any]:
        """What this controller does now, from memory, as plain values."""
        return {
            "queue": self.queue.url,
            "workers_known": len(self.registry),
            "held_polls": self.poller.held,
            "pushes": len(self.sockets),
        }

    async def stats(self) -> dict[str, Any]:
        """Counts of jobs and workers in the store, held polls and WebSockets, as plain values."""
        workers, online = await self.count_workers()
        live = await self.registry.live()
        counted = await self.queue.stats_by_kind()
        jobs = {state: sum(getattr(each, state) for each in counted.values()) for state in STATES}
        waiting = [
            {
                "kind": each.kind,
                "requires": dict(each.requires),
                "count": each.count,
                "oldest_age_s": each.oldest_age,
                "waiting_for": each.waiting_for,
            }
            for each in waiting_kinds(counted, await self.storage.requirements(), live)
        ]
        return {
            "jobs": jobs,
            "waiting": waiting,
            "workers": workers,
            "workers_online": online,
            "running": jobs["leased"],
            "held_polls": self.poller.held,
            "pushes": len(self.sockets),
        }

    async def count_workers(self) -> tuple[int, int]:
        """How many workers are registered, and how many of them are online."""
        await self.registry.write_down()
        return await self.storage.count_workers(self.options.span("heartbeat_timeout"))

    async def put(
        self,
        kind: str,
        payload: Any = None,
        *,
        requires: Mapping[str, Any] | None = None,
        key: str | None = None,
        unique: str | None = None,
        priority: int = 0,
        delay: Duration = 0.0,
        timeout: Duration | None = None,
        attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        by: str = "application",
    ) -> str:
        """Put a job, as `POST /api/jobs` does; return its id. Raises `JobError` for an invalid job.

        requires: the capabilities that a worker must have, such as {"memory_gb": ">=8"}.
        key: jobs with the same key run one at a time.
        unique: a second put with the same `unique` returns the id of the first job.
        by: who put it, for the audit log.
        """
        given = {
            "kind": kind,
            "payload": payload,
            "requires": requires,
            "priority": priority,
            "key": key,
            "unique": unique,
            "delay_s": seconds(delay, "delay"),
            "timeout_s": None if timeout is None else seconds(timeout, "timeout"),
            "attempts": attempts,
            "headers": None if headers is None else dict(headers),
        }
        await self.start()
        await self.check_files()
        info, fresh = await self.jobs.put(new_job(given, self.options, by))
        if fresh:
            self.note_put(by, info.job.id, kind)
        return info.job.id

    async def unregister(self, worker_id: str) -> int | None:
        """Remove a worker and give its jobs back; return their number, None if there is none."""
        known = self.registry.remembered(worker_id)
        removed = await self.registry.unregister(worker_id)
        self.auth.forget(None if known is None else known.row.token_hash)
        if not removed:
            return None
        given_back = await self.runs.give_back(worker_id)
        self.registry.notice_put()
        return given_back

    # Requests

    def began(self) -> None:
        """A request came in: schedule the chores."""
        self._requests += 1
        if not self.awake and self._started and not self._closed:
            self.awake = True
            for name in (*WHILE_AWAKE, "retention"):
                self._chores.wake(name)
            self._chores.hasten("kinds", REQUIREMENTS_EVERY)

    def connected(self) -> None:
        """A WebSocket was opened."""
        self.began()
        self._chores.wake("ping")

    def log_failure(self, error: BaseException) -> None:
        """Log the details that are hidden from the client."""
        fields = {"error": f"{type(error).__name__}: {error}"}
        if isinstance(error, MissingStorage):
            if fields["error"] in self._logged:
                return
            self._logged.add(fields["error"])
        known = isinstance(error, PollwiseError)
        logger.log(
            logging.WARNING if known else logging.ERROR,
            "a request failed: %s",
            fields["error"],
            exc_info=None if known else error,
            extra={"action": "request_failed", "fields": fields},
        )

    def note_put(self, who: str, what: str, detail: str, address: str = "") -> None:
        """Note a put for the audit log, where it is written within WRITE_EVERY.

        It is not written with the put: the job itself says who put it.
        """
        entry = AuditEntry.of(who, "job.put", what, detail, address)
        entry.log()
        self._puts_to_note.append((entry, self.clock.now()))
        self.began()

    async def _note_puts(self) -> None:
        entries, self._puts_to_note = self._puts_to_note, []
        try:
            now = self.clock.now()
            await self.storage.audit(
                [entry for entry, _ in entries], [now - at for _, at in entries]
            )
        except BaseException:
            self._puts_to_note = entries[-PUTS_NOTED_MAX:] + self._puts_to_note
            raise

    async def _has_ended(self, job_id: str) -> bool:
        info = await self.queue.get(job_id)
        return info is None or info.state in ENDED

    async def ready(self) -> None:
        """Raise if the store does not answer, a file is missing, or a disk is full."""
        await self._files.check()
        await self._files.check_room()
        await self.storage.ping()
        await self.queue.stats()
        await self.artefacts.blobs.check()
        self._logged.clear()

    async def check_files(self) -> None:
        """Raise `DatabaseMissing` if the database file is gone: what is put would be lost."""
        await self._files.check(at_once=False)

    async def metrics(self) -> tuple[bytes, str]:
        """The text that Prometheus scrapes, and its content type."""
        return await self._metrics.scraped()

    def send_metrics(self, sink: OtelSink) -> None:
        """Send the metrics of this controller to OpenTelemetry. Call it in the event loop.

        Jobs, workers and held polls are counted when a reader of OpenTelemetry asks for them. In
        the thread of the event loop, a reader gets the last counts.
        """
        self._metrics.send_to(sink)

    # Chores

    def _planned(self) -> Chores:
        chores = Chores(self.source, self.clock, self.events)
        chores.add("seen", WRITE_EVERY, self._write_down)
        chores.add("sweep", min(WRITE_EVERY, self.runs.lease_s / 4), self.runs.sweep)
        chores.add("requirements", REQUIREMENTS_EVERY, self.registry.read_requirements)
        chores.add("kinds", RETENTION_EVERY, self._learn_kinds)
        chores.add("retention", RETENTION_EVERY, self._retain)
        chores.add("ping", self.options.span("idle_ping") / 4, self._ping)
        return chores

    async def _write_down(self) -> None:
        await self._save()
        if self._requests == self._requests_before and not len(self.sockets):
            self.awake = False  # no request came since the last turn: rest until one does
            for name in WHILE_AWAKE:
                self._chores.rest(name)
        self._requests_before = self._requests

    async def _learn_kinds(self) -> None:
        await self.registry.learn_kinds(self.queue)

    async def _ping(self) -> None:
        if not await self.sockets.ping():
            self._chores.rest("ping")

    async def _retain(self) -> None:
        keep = self.queue.keep or self.options.span("keep")
        began = self.clock.now()
        after = await self._retention.delete_slice(keep)
        now = self.clock.now()
        self._chores.run_by("retention", now + (after or now - began))
        if after and not self.awake:
            self._chores.rest("retention")
