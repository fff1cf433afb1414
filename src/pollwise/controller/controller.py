"""A controller: everything behind the routes, with one beginning and one end.

It works on a queue and a state that other controllers may work on too. Its chores ride on contacts:
they are woken by requests, and rest when none came since their last turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from starlette.requests import HTTPConnection

from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.files.logs import Logs
from pollwise.controller.http.answers import Refused, lease_lost
from pollwise.controller.http.requests import is_id
from pollwise.controller.jobs import Jobs
from pollwise.controller.missing_files import BlobsMissing, NotNow, OpenFiles
from pollwise.controller.options import ControllerOptions
from pollwise.controller.security.audit import Audit
from pollwise.controller.security.auth import Auth, Caller
from pollwise.controller.security.tokens import Tokens
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.values import JobRow, Run
from pollwise.controller.workers.polling import LogText, Poller
from pollwise.controller.workers.push import Pushes
from pollwise.controller.workers.registry import REQUIREMENTS_EVERY, WRITE_EVERY, Known, Registry
from pollwise.controller.workers.runs import Runs
from pollwise.errors import MissingExtra, PollwiseError, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import ControllerCounted, Events

if TYPE_CHECKING:
    from pollwise.observe.prometheus import PrometheusSink

logger = logging.getLogger("pollwise")

#: How often what ended long ago is deleted, in seconds, and how much at a time.
RETENTION_EVERY = 600.0
RETENTION_LIMIT = 500
#: How long workers that never came back, requirements without a job and the audit log are kept.
WORKERS_KEPT = 30 * 86400.0
REQUIREMENTS_KEPT = 86400.0
AUDIT_KEPT = 90 * 86400.0


class Controller:
    """Jobs for workers anywhere, over a queue and a state.

    queue: holds what is to be done. Its store must be able to claim by kind.
    state: holds what people ask about.
    artefacts: where files lie.
    """

    def __init__(
        self,
        queue: Queue,
        state: ControllerState,
        artefacts: Artefacts,
        *,
        options: ControllerOptions | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        if not queue.capabilities.kinds:
            raise Unsupported(
                f"{queue.url} cannot claim by kind, which the controller needs to match jobs with "
                "workers; use SQLite, Postgres, Redis or an object store"
            )
        self.queue = queue
        self.state = state
        self.artefacts = artefacts
        self.options = options or ControllerOptions()
        self.clock = clock or queue.clock
        self.events = events or Events()
        self.source = queue.name
        hints = queue.hints()
        common = (self.options, self.clock, self.events)
        self.auth = Auth(state, self.clock)
        self.tokens = Tokens(state, self.clock)
        self.audit = Audit(state)
        self.logs = Logs(state, self.options.log_limit)
        self.registry = Registry(state, *common, self.source)
        self.runs = Runs(state, queue, self.registry, *common)
        self.jobs = Jobs(state, queue, self.registry, *common)
        self.poller = Poller(
            self.registry, self.runs, hints, self.options, self.clock, self._append_log
        )
        self.pushes = Pushes(self.registry, self.runs, hints, *common, self.source)
        hints.report_to(self.source, self.events)
        stores = (each for each in (queue, state) if isinstance(each, (SqliteQueue, SqliteState)))
        self._files = OpenFiles((each.path for each in stores), self.clock)
        #: What was said in the log of what is missing, and is not said again until it was there.
        self._said: set[str] = set()
        #: Whether the chores are on the agenda: routes look here before they call `began`.
        self.awake = False
        #: Opens a named queue of the store, where raw queues are served as well.
        self.open_queue: Callable[[str, float | None], Queue] | None = None
        self._contacts = 0
        self._contacts_before = 0
        self._metrics: PrometheusSink | None = None
        self._chores: Chores | None = None
        self._starting = asyncio.Lock()
        #: Ends what the routes of raw queues hold.
        self.queues_stop_waiting: Callable[[], None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Read what there is. Whoever comes first starts it, if nobody did."""
        if self._chores is not None:
            return
        async with self._starting:
            if self._chores is None:
                await self.registry.read_requirements(force=True)
                # Jobs without files need no place for them; whoever asks /readyz is told.
                with suppress(BlobsMissing):
                    await self.artefacts.blobs.check()
                await self._files.check()
                self._chores = self._planned()

    async def close(self) -> None:
        """Let go: end what is held, and write down who was seen."""
        if self._closed:
            return
        self._closed = True
        self.stop_waiting()
        if self._chores is not None:
            await self._chores.close()
            try:
                await self.registry.write_down()
                await self.auth.write_down()
            except Exception as error:
                self.log_failure(error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop_waiting(self) -> None:
        """End held polls, followed logs, WebSockets: a server that stops does not wait for them."""
        if self.queues_stop_waiting is not None:
            self.queues_stop_waiting()
        self.poller.stop_waiting()
        self.logs.stop_waiting()
        self.pushes.close()

    def began(self) -> None:
        """A request came in: see to the chores."""
        self._contacts += 1
        if not self.awake and self._chores is not None and not self._closed:
            self.awake = True
            for name in ("seen", "sweep", "requirements", "retention"):
                self._chores.wake(name)

    def connected(self) -> None:
        """A WebSocket was opened."""
        self.began()
        if self._chores is not None:
            self._chores.wake("ping")

    def log_failure(self, error: BaseException) -> None:
        """What a client is only told in general is for the log of who runs the controller."""
        fields = {"error": f"{type(error).__name__}: {error}"}
        if isinstance(error, NotNow):
            if fields["error"] in self._said:
                return
            self._said.add(fields["error"])
        known = isinstance(error, PollwiseError)
        logger.log(
            logging.WARNING if known else logging.ERROR,
            "a request failed: %s",
            fields["error"],
            exc_info=None if known else error,
            extra={"action": "request_failed", "fields": fields},
        )

    async def ready(self) -> None:
        """Can it work? Raises when not."""
        await self._files.check()
        await self.state.ping()
        await self.queue.stats()
        await self.artefacts.blobs.check()
        self._said.clear()

    async def can_keep(self) -> None:
        """Before a job is taken in: is what it is written to still there? Raises when not."""
        await self._files.check(at_once=False)

    # Who asks

    async def caller(
        self,
        connection: HTTPConnection,
        *needs: str,
        worker: str | None = None,
        token: str | None = None,
    ) -> Caller:
        """Who a request is from; `Refused` if that is nobody, or they may not.

        needs: the scopes of which one is needed (an admin has them all), `own` for any worker's
            own token; none for anybody's token.
        worker: this worker's own token will do as well.
        token: where it came in no header.
        """
        await self.start()
        if token is None:
            who = await self.auth.caller(connection.headers.get("authorization"))
        else:
            who = await self.auth.caller_of(token)
        self.began()
        if who.role == "own" and worker is not None:
            who.must_be_worker(worker)
        elif who.role == "own" and "own" in needs:
            pass
        elif "submit" in needs:
            who.must_submit()
        elif "worker" in needs:
            who.must_register()
        elif needs:
            who.must_be_admin()
        return who

    async def authorise(self, connection: HTTPConnection, scopes: Sequence[str]) -> str:
        """Who asks for a raw queue: the name they go by; `Refused` without one of these scopes."""
        who = await self.caller(connection)
        name = connection.path_params.get("name", "")
        if who.role != "admin" and name not in (self.options.queues or ()):
            raise Refused(
                403,
                "queue_not_open",
                f"the queue {str(name)[:80]!r} is open to admins only; yours has the scope "
                f"{who.role}",
                "Have who runs the controller name it in the setting controller.queues.",
            )
        if who.role not in scopes:
            raise Refused(
                403,
                "forbidden",
                f"this needs a token with the scope {' or '.join(scopes)}; yours has {who.role}",
                "Use such a token; an admin can make one with POST /api/tokens.",
            )
        return who.who

    async def note(
        self, request: HTTPConnection, who: Caller, action: str, what: str = "", detail: str = ""
    ) -> None:
        """Write into the audit log what somebody did."""
        await self.audit.note(who.who, action, what, detail, address_of(request))

    async def job_for(self, request: HTTPConnection, job_id: str) -> JobRow:
        """A job, for who may see it."""
        who = await self.caller(request, "submit", "own")
        row = await self.state.job(job_id) if is_id(job_id) else None
        return who.must_see(row, job_id)

    async def run_for(self, request: HTTPConnection, job_id: str) -> tuple[Known, Run]:
        """The run of a job, for the worker that has it; 409 if that is over."""
        who = await self.caller(request, "admin", "own")
        row = who.must_see(await self.state.job(job_id) if is_id(job_id) else None, job_id)
        run = await self.state.run(job_id)
        if run is None or (who.role == "own" and run.worker_id != who.worker_id):
            raise lease_lost((row.id,))
        known = await self.registry.get(run.worker_id)
        if known is None:
            raise lease_lost((row.id,))
        if who.role == "own":
            self.registry.seen(known, address_of(request))
        return known, run

    async def metrics(self) -> tuple[bytes, str]:
        """What Prometheus scrapes, and its content type."""
        sink = self._sink()
        await self.registry.write_down()
        counted = await self.state.stats(self.options.span("heartbeat_timeout"))
        offline = counted.workers - counted.workers_live
        self.events.emit(
            ControllerCounted(
                self.source,
                tuple(counted.jobs.items()),
                counted.workers_live,
                offline,
                self.poller.held,
            )
        )
        return sink.exposed()

    def measure(self) -> None:
        """Begin to count for `metrics`; nothing is counted before, where it is not installed."""
        with suppress(MissingExtra):
            self._sink()

    def _sink(self) -> PrometheusSink:
        if self._metrics is None:
            from pollwise.observe.prometheus import PrometheusSink

            self._metrics = PrometheusSink()
            self._metrics.subscribe(self.events)
        return self._metrics

    async def _append_log(self, known: Known, log: LogText) -> bool:
        run = known.runs.get(log.job_id)
        if run is None:
            await self.runs.read(known, afresh=True)
            run = known.runs.get(log.job_id)
        if run is None:
            return False
        place = await self.logs.append(run, log.offset, log.text.encode())
        return place is not None

    # Chores

    def _planned(self) -> Chores:
        chores = Chores(self.source, self.clock, self.events)
        chores.add("seen", WRITE_EVERY, self._write_down)
        chores.add("sweep", WRITE_EVERY, self._sweep)
        chores.add("requirements", REQUIREMENTS_EVERY, self.registry.read_requirements)
        chores.add("retention", RETENTION_EVERY, self._retain)
        chores.add("ping", self.options.span("idle_ping") / 4, self._ping)
        return chores

    async def _write_down(self) -> None:
        await self.registry.write_down()
        await self.auth.write_down()
        if self._contacts == self._contacts_before and not len(self.pushes):
            self._rest()
        self._contacts_before = self._contacts

    def _rest(self) -> None:
        """Nobody came since the last turn: nothing is done until somebody does."""
        self.awake = False
        if self._chores is not None:
            for name in ("seen", "sweep", "requirements"):
                self._chores.rest(name)

    async def _sweep(self) -> None:
        await self.jobs.complete_submissions()
        await self.runs.show_lapsed()

    async def _ping(self) -> None:
        if not await self.pushes.ping() and self._chores is not None:
            self._chores.rest("ping")

    async def _retain(self) -> None:
        state, keep = self.state, self.options.span("keep")
        ids = await state.finished_before(keep, RETENTION_LIMIT)
        if ids:
            for job_id in ids:
                await self.artefacts.delete_all(job_id)
            await state.forget(ids)
        await state.prune_requirements(REQUIREMENTS_KEPT)
        await state.prune_workers(WORKERS_KEPT, RETENTION_LIMIT)
        await state.prune_audit(AUDIT_KEPT, RETENTION_LIMIT)
        if not self.awake and self._chores is not None:
            self._chores.rest("retention")


def address_of(connection: HTTPConnection) -> str:
    """Where a request is from, as the server says: behind a proxy that it trusts, from before."""
    return connection.client.host if connection.client else ""
