"""A controller as pages show it: the one that runs in this process, or only its state in a store.

The state has the agents, their capabilities, logs and the names of artefacts. Held polls, open
WebSockets and the bytes of artefacts are known to the running controller alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pollwise.controller.attempts import Attempt, attempts_of
from pollwise.controller.jobs import folders_begin
from pollwise.controller.names import Names
from pollwise.controller.opening import AGENTS, state_of
from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import ArtefactRow, LogPlace, WorkerRow
from pollwise.controller.terms import JobTerms
from pollwise.controller.workers import matching
from pollwise.controller.workers.waiting import WaitingKind, live_capabilities, waiting_kinds
from pollwise.queues.base import Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import JobInfo
from pollwise.web.sources import QueueSource, Remembered

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

#: How many running jobs are read to count those of each agent, and how many of one are listed.
RUNNING_READ = 200
RUNNING_SHOWN = 50
#: How many agents decide whether a live page changed, and how long they are remembered, in seconds.
AGENTS_MARKED = 100
AGENTS_REMEMBERED = 10.0
#: How many bytes of a log's end a page shows.
LOG_TAIL = 64 * 1024


@dataclass(frozen=True, slots=True)
class ShownAgent:
    """An agent: a worker that registered with the controller.

    state: `online`, `draining` (it gets no more jobs) or `offline`.
    link: how it reaches the controller now: "held poll", "WebSocket" or "" if that is not known.
    """

    row: WorkerRow
    state: str
    seen_at: float
    link: str = ""


@dataclass(frozen=True, slots=True)
class RunningCounts:
    """How many jobs each agent runs, by id. complete: False if there are too many to count."""

    by_agent: Mapping[str, int]
    complete: bool

    def of(self, agent: str) -> str:
        count = self.by_agent.get(agent, 0)
        return f"{count}" if self.complete else f"≥ {count}"


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a controller has of a job beside its record.

    log: the end of its log as text, from the byte `log_start` on; "" if it wrote none.
    names: of the workers in `attempts` (`worker:<id>`), and of who put it (`token:<id>`).
    downloads: True if this process can read the bytes of artefacts.
    """

    attempts: Sequence[Attempt]
    names: Mapping[str, str]
    place: LogPlace
    log: str
    log_start: int
    artefacts: Sequence[ArtefactRow]
    inputs: Sequence[ArtefactRow]
    downloads: bool


class ControllerSource:
    """A controller that is shown.

    shown: the queue with its jobs. running: the controller, if it runs in this process.
    """

    def __init__(self, shown: QueueSource, clock: Clock, running: Controller | None = None) -> None:
        self.shown = shown
        shown.for_agents = True
        self.running = running
        self._clock = clock
        self._before = Remembered(self._first_agents, clock, AGENTS_REMEMBERED)
        self._queue_before: Hashable = None
        self._state = None if running is None else running.storage
        options = ControllerOptions() if running is None else running.options
        #: An agent is offline after this many seconds without a request.
        self.timeout: float = options.span("heartbeat_timeout")
        self._attempts = options.attempts
        self._names: Names | None = None

    @property
    def queue(self) -> Queue:
        return self.shown.queue

    @property
    def state(self) -> ControllerState:
        """The state beside the queue; opened when it is first needed, and never created."""
        if self._state is None:
            self._state = state_of(self.queue, self._clock, create=False)
        return self._state

    async def close(self) -> None:
        """Close the state, unless it belongs to the running controller."""
        if self.running is None and self._state is not None:
            await self._state.close()

    async def marker(self) -> Hashable:
        """A value that changes when agents come, go or get other work, or the queue changes.

        It asks the store once: for the queue, or for the agents when they were not read lately.
        """
        if self.running is not None:
            return await self.shown.marker(), tuple(
                (known.id, known.row.drain, known.silent, known.waiting is None, len(known.runs))
                for known in islice(self.running.registry, AGENTS_MARKED)
            )
        if self._before.age < AGENTS_REMEMBERED:
            self._queue_before = await self.shown.marker()
        agents = await self._before.get()
        return self._queue_before, tuple((each.row.id, each.state) for each in agents)

    async def _first_agents(self) -> list[ShownAgent]:
        return await self.agents(limit=AGENTS_MARKED)

    def forget(self) -> None:
        """An action changed something: the next page reads it again."""
        self._before.forget()
        self.shown.forget()

    # Agents

    async def agents(
        self, state: str | None = None, *, limit: int, after: str | None = None
    ) -> list[ShownAgent]:
        """A page of agents in the order of their registration. state: only those in it."""
        if self.running is not None:
            await self.running.registry.write_down()  # so that one seen just now is online
        rows = await self.state.list_workers(
            live=None if state is None else state != "offline",
            live_s=self.timeout,
            drain=None if state in (None, "offline") else state == "draining",
            limit=limit,
            after=after,
        )
        return list(map(self._shown, rows))

    async def agent(self, agent_id: str) -> ShownAgent | None:
        row = await self.state.worker(agent_id)
        return None if row is None else self._shown(row)

    async def count(self) -> tuple[int, int]:
        """How many agents there are, and how many of them are online."""
        return await self.state.count_workers(self.timeout)

    async def running_counts(self, agents: Iterable[ShownAgent]) -> RunningCounts:
        """How many jobs these agents run: from memory if all of them poll this controller."""
        counts = self._remembered_counts(agents)
        if counts is not None:
            return RunningCounts(counts, True)
        page = (await self.queue.page(JobFilter("leased", limit=RUNNING_READ))).jobs
        found = Counter(info.worker for info in page if info.worker is not None)
        return RunningCounts(found, len(page) < RUNNING_READ)

    def _remembered_counts(self, agents: Iterable[ShownAgent]) -> dict[str, int] | None:
        if self.running is None:
            return None
        counts: dict[str, int] = {}
        for each in agents:
            known = self.running.registry.remembered(each.row.id)
            if known is None and each.state != "offline":
                return None  # it polls another controller
            counts[each.row.id] = 0 if known is None else len(known.runs)
        return counts

    async def running_jobs(self, agent_id: str) -> list[JobInfo]:
        """What an agent runs, at most RUNNING_SHOWN."""
        asked = JobFilter("leased", worker=agent_id, limit=RUNNING_SHOWN)
        return list((await self.queue.page(asked)).jobs)

    async def drain(self, agent_id: str, drain: bool) -> WorkerRow | None:
        """Give an agent no more jobs, or give it some again; None if there is no such agent."""
        if self.running is not None:
            return await self.running.registry.drain(agent_id, drain)
        return await self.state.set_drain(agent_id, drain)

    def _shown(self, row: WorkerRow) -> ShownAgent:
        seen, link = row.last_seen, ""
        if self.running is not None:
            seen = self.running.registry.last_seen(row)
            known = self.running.registry.remembered(row.id)
            if known is not None and known.socket is not None:
                link = "WebSocket"
            elif known is not None and known.waiting is not None:
                link = "held poll"
        online = self._clock.epoch() - seen < self.timeout
        state = "offline" if not online else "draining" if row.drain else "online"
        return ShownAgent(row, state, seen, link)

    # Jobs

    async def waiting(self) -> list[WaitingKind]:
        """The kinds with ready jobs, and why no agent can take some of them."""
        if self.running is not None:
            live = await self.running.registry.live()
        else:
            live = await live_capabilities(self.state, self.timeout)
        kinds = (await self.shown.snapshot()).kinds
        return waiting_kinds(kinds, await self.state.requirements(), live)

    async def takes(self, row: WorkerRow) -> list[tuple[WaitingKind, str | None]]:
        """The kinds with ready jobs, each with what an agent lacks for it; None if it has all."""
        return [
            (each, matching.unmet(row.capabilities, each.kind, each.requires))
            for each in await self.waiting()
        ]

    async def names_of(self, whos: Sequence[str | None]) -> Mapping[str, str]:
        """The names of tokens (`token:<id>`) and agents (`worker:<id>`)."""
        if self._names is None:
            self._names = Names(self.state)
        return await self._names.of(whos)

    async def files_of(self, info: JobInfo) -> JobFiles:
        """The attempts, the end of the log, and the files of a job."""
        state, terms = self.state, JobTerms.of(info.job, self._attempts)
        folder = self.folder_of(info.job.id)
        place = await state.log_place(folder)
        start = max(place.size - LOG_TAIL, 0)
        data = await state.read_log(folder, start, LOG_TAIL) if place.size else b""
        attempts = attempts_of(info, await state.log_runs(folder), place.size, terms.attempts)
        whos = [terms.created_by, *(f"worker:{each.worker}" for each in attempts)]
        inputs = [] if terms.inputs is None else await state.artefacts(terms.inputs, input=True)
        return JobFiles(
            attempts,
            await self.names_of(whos),
            place,
            data.decode("utf-8", "replace"),
            start,
            await state.artefacts(folder),
            inputs,
            self.running is not None,
        )

    def folder_of(self, job_id: str) -> str:
        """The folder of a job's log and artefacts in the state."""
        return folders_begin(self.queue.name) + job_id


def controller_of(
    queues: Iterable[QueueSource], clock: Clock, running: Controller | None = None
) -> ControllerSource | None:
    """The controller to show: the running one, else the one whose jobs are in one of the queues.

    The jobs of a controller are in the queue `agents`; its state is in the same database.
    """
    if running is not None:
        same = (each for each in queues if each.place == running.queue.url)
        shown = next(same, None) or QueueSource("", running.queue, clock)
        return ControllerSource(shown, clock, running)
    for each in queues:
        if each.name == AGENTS and each.place.startswith(("sqlite:", "postgres")):
            return ControllerSource(each, clock)
    return None
