"""The agent: polls, runs commands and reports, with one loop and one connection.

It goes on polling while commands run. Each poll says what runs, which renews the leases, and how
jobs ended; reports stay on disk until the controller has accepted them. While the controller cannot
be reached, commands go on: it says which jobs are lost when it answers again. If it does not know
the agent any more, the agent registers again, and stops the jobs that it lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pollwise.agent.commands.confinement import CommandUser
from pollwise.agent.folder import AgentFolder
from pollwise.agent.job import AgentJob, AgentRun, Execute, sandbox_of, token_file_of
from pollwise.agent.link import ControllerLink, NotRegistered
from pollwise.agent.options import AgentOptions
from pollwise.agent.pace import BUSY_SHARE, IDLE_SHARE, RETURN_SHARE, Suggested
from pollwise.agent.push import AgentHints
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import ConfigError, PollwiseError, StoreUnavailable
from pollwise.platforms.system import agents_run_here
from pollwise.queues.http.client import (
    Busy,
    CertificateNotTrusted,
    ControllerClient,
    RequestRefused,
    TokenSource,
)
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    Events,
    JobGivenBack,
    JobLost,
    JobReported,
    JobStarted,
    WorkerRegistered,
    WorkerStopped,
    WorkerStopping,
)
from pollwise.runtime.loop import LONG_INTERVAL, POLL_RETRY, Batch, LoopOptions, PollLoop
from pollwise.runtime.signals import stopping_on_signals

#: The most reports in one poll, and the most bytes of them.
REPORTS_MAX = 100
REPORT_BYTES_MAX = 512 * 1024
#: How often to poll where nothing is suggested, in seconds.
POLL_INTERVAL = 30.0
#: How long the last requests of a stop may take, in seconds.
FAREWELL = 10.0


class Agent:
    """Takes jobs from a controller and runs a command for each.

    execute: runs a job instead of the command.
    transport, dial: carry requests and WebSockets instead of the network.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        execute: Execute | None = None,
        transport: Any = None,
        dial: Any = None,
    ) -> None:
        agents_run_here()
        self.options = options
        self.events: Events = events or Events()
        self._clock = clock or Clock()
        self._execute = execute
        client = ControllerClient(
            options.controller, self._clock, ca_file=options.ca_file, transport=transport, dial=dial
        )
        self._link = ControllerLink(client, TokenSource(options.token_file), self._clock)
        self._push = AgentHints(self._link, self._clock, self.events, options.name, self._cancel)
        longest, own = options.span("max_interval"), options.poll_interval is not None
        shortest = options.span("poll_interval") if own else min(POLL_INTERVAL, longest)
        self._pace = Suggested(Adaptive(shortest, longest), own=own)
        self._polling = LoopOptions(
            clock=self._clock, events=self.events, hints=self._push, spread=False
        )
        self._loop: PollLoop[AgentJob] = PollLoop(
            self._poll, self._pace, options.name, self._polling
        )
        self._root: AgentFolder  # opened by `run`
        self._runs: dict[str, tuple[AgentRun, asyncio.Task[None]]] = {}
        self._reports: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, tuple[str, int]] = {}  # their kinds and attempts
        #: Reports that were refused once, and are sent as failures without details.
        self._stripped: set[str] = set()
        self._one_by_one = False
        self._was_registered = False
        self._stopping = False
        self._hurry = asyncio.Event()
        self._grace: asyncio.Task[None] | None = None

    def state(self) -> dict[str, Any]:
        """What the agent does now, as plain values.

        worker_id: its id at the controller; None while it is not registered.
        running: the ids of the jobs that run now.
        unreported: how many jobs have ended and are not reported yet.
        push: whether the WebSocket for hints is connected.
        """
        return {
            "worker_id": None if self._link.worker is None else self._link.worker.worker_id,
            "running": list(self._runs),
            "unreported": len(self._reports),
            "push": self._push.connected,
        }

    async def run(self) -> None:
        """Run until stopped. Raises errors of the first registration; later ones are retried."""
        with stopping_on_signals(self.stop if self.options.signals else None):
            user = CommandUser.of(self.options.user)
            if user is not None:
                user.check_closed(token_file_of(self.options))
            self._root = AgentFolder(self.options.folder, self.options.name, user)
            try:
                sandbox = sandbox_of(self.options, self._root.path)
                if sandbox is not None:
                    await asyncio.to_thread(sandbox.check, self._root.path, user)
                await asyncio.to_thread(self._root.sweep)
                for report in self._root.saved():
                    self._reports[report["job_id"]] = report
                async for batch in self._loop:
                    for work in batch:
                        self._start(work)
            finally:
                await self._end()

    def stop(self) -> None:
        """Take no more jobs, wait for commands within the grace, then end. Again: do not wait."""
        if self._stopping:
            self._hurry.set()
            return
        self._stopping = True
        self.events.emit(
            WorkerStopping(
                self.options.name, self.options.name, len(self._runs), self.options.span("grace")
            )
        )
        self._grace = asyncio.ensure_future(self._wait_for_runs())

    async def _wait_for_runs(self) -> None:
        """Wait until commands have ended and are reported; then end the loop."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        until = self._clock.now() + self.options.span("grace")
        try:
            while self._runs and not hurry.done():
                left = until - self._clock.now()
                if left <= 0:
                    break
                tasks = [task for _, task in self._runs.values()]
                await asyncio.wait(
                    [*tasks, hurry], timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            hurry.cancel()
            self._loop.stop()

    async def _end(self) -> None:
        """Give back what still runs, send the last reports, and unregister."""
        if self._grace is not None:
            self._grace.cancel()
            await asyncio.gather(self._grace, return_exceptions=True)
        given_back = len(self._runs)
        self._stop_all("given back")
        if self._runs:
            await asyncio.wait([task for _, task in self._runs.values()])
        await self._push.aclose()
        with suppress(PollwiseError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                while self._reports and self._link.worker is not None:
                    await self._report_and_poll(0)
                await self._link.unregister()
        await self._link.close()
        self._root.close()
        if self._was_registered:
            self.events.emit(WorkerStopped(self.options.name, self.options.name, given_back))

    # Polling

    async def _poll(self, hold: float) -> Batch[AgentJob]:
        """One poll: report what runs and what ended, and take jobs for the free slots."""
        worker = self._link.worker
        if worker is not None and self._clock.now() > worker.renew_at and not self._runs:
            with suppress(PollwiseError):  # it only saves a row; the token expires anyway
                await self._link.unregister()
            self._link.forget()
        if self._link.worker is None:
            await self._register()
        free = 0 if self._stopping else self.options.slots - len(self._runs)
        try:
            return await self._report_and_poll(free)
        except NotRegistered:
            self._forget()
            await self._register()
            return await self._report_and_poll(free)
        except Busy as busy:
            if busy.status not in (403, 429):
                raise
            self._pace.next_poll = None
            self._pace.shorten_first(None)
            self._loop.poll_by(self._clock.now() + (busy.retry_after or self._pace.least or 1.0))
            return Batch(())

    async def _report_and_poll(self, free: int) -> Batch[AgentJob]:
        reports = list(self._next_reports())
        runs = [run for run, task in self._runs.values() if not task.done()]
        running = await asyncio.gather(*(run.progress() for run in runs))
        said = {"max": free, "running": running, "finished": reports}
        began = self._clock.now()
        try:
            answer = await self._link.poll(said)
        except RequestRefused as refused:
            if reports and refused.status in (400, 413, 422):
                if len(reports) == 1:
                    self._strip(reports[0], str(refused))
                self._one_by_one = True  # which of them is refused?
                raise StoreUnavailable(str(refused)) from refused
            raise
        self._answered({str(each) for each in answer.get("lost") or ()}, reports)
        for job_id in answer.get("cancel") or ():
            self._cancel(job_id)
        next_poll = answer.get("next_poll_s")
        self._pace.next_poll = float(next_poll) if isinstance(next_poll, (int, float)) else None
        worker = self._link.worker
        # After a stall their leases may be over. What is still ours is handed out again.
        late = worker is not None and self._clock.now() - began >= worker.heartbeat_timeout
        fresh = [] if late else list(self._fresh(answer))
        self._set_pace(busy=bool(self._runs or fresh))
        return Batch(fresh, free or None)

    def _fresh(self, answer: Mapping[str, Any]) -> Iterable[AgentJob]:
        """The new jobs of an answer. One is handed out again if an answer was late, not lost."""
        jobs = answer.get("jobs")
        for given in [answer.get("job")] if jobs is None else jobs:
            with suppress(LookupError, TypeError, ValueError):
                job = AgentJob.of(given)
                if job.id not in self._runs and job.id not in self._reports:
                    yield job

    def _set_pace(self, *, busy: bool) -> None:
        worker = self._link.worker
        if worker is not None:
            share = BUSY_SHARE if busy else IDLE_SHARE
            self._pace.least = worker.min_interval
            self._pace.most = share * worker.heartbeat_timeout
            # While hints arrive, polls are needed only in case one is lost.
            self._polling.long_interval = min(LONG_INTERVAL, self._pace.most)
            # After an outage, workers have one heartbeat timeout to return.
            longest = max(RETURN_SHARE * worker.heartbeat_timeout, POLL_RETRY.first)
            longest = min(longest, POLL_RETRY.max_delay)
            self._polling.retry = replace(POLL_RETRY, max_delay=longest)

    def _next_reports(self) -> Iterable[dict[str, Any]]:
        room = REPORT_BYTES_MAX
        self._one_by_one = self._one_by_one and len(self._reports) > 1
        for report in list(self._reports.values())[: 1 if self._one_by_one else REPORTS_MAX]:
            room -= len(json.dumps(report))
            yield report
            if room <= 0:
                return

    def _strip(self, report: dict[str, Any], why: str) -> None:
        """Report a job as failed whose report was refused; drop it if that is refused too."""
        job_id = report["job_id"]
        if job_id in self._stripped:
            self._accepted(job_id)
            return
        self._stripped.add(job_id)
        stripped = {"job_id": job_id, "state": report["state"]}
        if report["state"] == "done":  # its result would be lost without a message
            stripped |= {"state": "failed", "error": f"its report was refused: {why}"[:1000]}
        self._reports[job_id] = stripped

    def _answered(self, lost: set[str], reports: Iterable[dict[str, Any]]) -> None:
        """The controller accepted the reports, and says which jobs are lost."""
        for report in reports:
            job_id = report["job_id"]
            if job_id in lost:  # another worker had the job meanwhile
                kind, attempt = self._ended.get(job_id, ("", 0))
                name = self.options.name
                self.events.emit(JobLost(name, name, job_id, kind, attempt))
            self._accepted(job_id)
        for job_id in lost & self._runs.keys():
            self._runs[job_id][0].stop.ask("lost")

    def _accepted(self, job_id: str) -> None:
        self._reports.pop(job_id, None)
        self._ended.pop(job_id, None)
        self._stripped.discard(job_id)
        self._root.remove(job_id)

    def _stop_all(self, why: str) -> None:
        for run, _ in self._runs.values():
            run.stop.ask(why)

    def _cancel(self, job_id: object) -> None:
        if isinstance(job_id, str) and job_id in self._runs:
            self._runs[job_id][0].stop.ask("cancel")

    # Registering

    async def _register(self) -> None:
        options = self.options
        try:
            worker = await self._link.register(options.name, options.capabilities, options.slots)
        except (RequestRefused, ConfigError, CertificateNotTrusted) as error:
            if not self._was_registered:
                if isinstance(error, CertificateNotTrusted):  # waiting does not help
                    raise ConfigError(str(error)) from error
                raise
            # It worked before, so it may work again: a token is being rotated, or a proxy repaired.
            raise StoreUnavailable(str(error)) from error
        self._was_registered = True
        self._set_pace(busy=False)
        self._pace.shorten_first(self._polling.random.random())
        self.events.emit(WorkerRegistered(options.name, worker.worker_id, options.name))
        if options.push:
            self._push.begin()

    def _forget(self) -> None:
        """The controller does not know us: our jobs are lost."""
        self._link.forget()
        self._push.end()
        self._stop_all("lost")

    # Working

    def _start(self, work: AgentJob) -> None:
        run = AgentRun(work, self.options, self._root, self._link, self._clock, self._execute)
        self._runs[work.id] = (run, asyncio.ensure_future(self._work(run)))

    async def _work(self, run: AgentRun) -> None:
        work, name = run.work, self.options.name
        job = (name, name, work.id, work.kind, work.attempt)
        self.events.emit(JobStarted(*job, 0.0))
        report: dict[str, Any] | None = None
        try:
            report = await run.run()
        finally:
            if report is not None:
                self._reports[work.id] = report
                self._ended[work.id] = (work.kind, work.attempt)
                with suppress(OSError):  # a full disk: the report is still in memory
                    self._root.save(report)
            self._runs.pop(work.id, None)
            self._loop.hint()
        took = self._clock.now() - run.began
        if report is None:
            if run.stop.why == "given back":
                self.events.emit(JobGivenBack(*job, "the agent stops"))
            else:
                self.events.emit(JobLost(*job))
        else:
            self.events.emit(JobReported(*job, report["state"], took, report.get("error") or ""))
