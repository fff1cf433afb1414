"""Polls of workers: take reports, renew leases, hand out jobs.

Nearly all polls find nothing, and are answered from memory: the worker is known, it runs nothing,
and a claim for its group has just come back empty. All others read the stores.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from pollwise.controller.files.logs import Logs
from pollwise.controller.http.answers import too_soon
from pollwise.controller.options import ControllerOptions
from pollwise.controller.workers.others import OtherControllers
from pollwise.controller.workers.registry import HeldRun, KnownWorker, WorkerRegistry
from pollwise.controller.workers.runs import RunReport, Runs
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hint, Hints
from pollwise.runtime.jobs import Progress

#: A held poll claims again after this many seconds while hints are not proven.
CLAIM_EVERY = 5.0
#: How many polls a worker may send at once, and one more per slot.
POLLS_AT_ONCE = 10.0
#: The longest time that a poll is held, as a fraction of the heartbeat timeout.
SHARE_OF_TIMEOUT = 0.5


@dataclass(frozen=True, slots=True)
class LogText:
    """A piece of a job's log that came with a poll."""

    job_id: str
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class PollRequest:
    """What a poll asks for and reports.

    running: the progress of the jobs that run; None if it does not say which run.
    """

    max_jobs: int = 1
    wait: float = 0.0
    running: dict[str, Progress | None] | None = None
    finished: Sequence[RunReport] = ()
    logs: Sequence[LogText] = ()


@dataclass(slots=True)
class PollResult:
    """The answer to a poll."""

    next_poll_s: float
    jobs: Sequence[HeldRun] = ()
    cancel: Sequence[str] = ()
    lost: list[str] = field(default_factory=list)
    drain: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.cancel or self.lost)


#: Ends when the client is gone.
Gone = Callable[[], Awaitable[None]]


class Poller:
    """Answers the polls of workers."""

    def __init__(
        self,
        registry: WorkerRegistry,
        runs: Runs,
        logs: Logs,
        others: OtherControllers,
        hints: Hints,
        options: ControllerOptions,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._runs = runs
        self._logs = logs
        self._others = others
        self._hints = hints
        self._clock = clock
        self._min_interval = options.span("min_interval")
        self._longest = min(
            options.span("max_wait"), SHARE_OF_TIMEOUT * options.span("heartbeat_timeout")
        )
        self._held_max = options.waiting_max
        self.held: int = 0  # polls
        self._closing = False

    def admit(self, known: KnownWorker, ask: PollRequest, now: float) -> None:
        """Raise `HttpError` for a poll that comes too soon; to be called once for each poll.

        Any poll counts. A worker may send one in `min_interval` and a few more at once, and one for
        each job that it gets or ends and each hint. After a poll that found nothing, the next one
        must wait, unless it got a hint, reports something, asks for no job, or will be held for
        long enough. The report of a job that the worker has is never refused: there are at most
        as many as jobs were handed out.
        """
        least = self._min_interval
        if not least:
            return
        group = self._registry.group_of(known)
        most = POLLS_AT_ONCE + known.row.slots
        known.polls_left = min(known.polls_left + (now - known.counted_at) / least, most)
        known.counted_at = now
        if known.polls_left < 1.0:
            if any(each.job_id in known.runs for each in ask.finished):
                return
            raise too_soon((1.0 - known.polls_left) * least, least)
        if known.empty_at is not None and ask.max_jobs and not ask.finished:
            held = ask.wait >= least and self.held < self._held_max and not self._closing
            left = known.empty_at + least - now
            if left > 0 and known.hinted_at is None and not held and known.puts == group.puts:
                raise too_soon(left, least)
        known.polls_left -= 1.0

    def quick(
        self, known: KnownWorker, max_jobs: int, wait: float, now: float
    ) -> PollResult | None:
        """The answer from memory to a poll without reports; None if the stores must be read."""
        group = self._registry.group_of(known)
        quiet = not known.runs and self._runs.is_fresh(now) and known.runs_at > -math.inf
        if not quiet or (wait and not self._closing) or known.row.drain:
            return None
        if max_jobs and not group.is_empty(now):
            return None
        return PollResult(self._registry.found(known, 0, max_jobs, now))

    async def answer(self, known: KnownWorker, ask: PollRequest, gone: Gone) -> PollResult:
        """The answer to any poll. `gone` is awaited while it is held."""
        began, puts = self._clock.now(), self._puts(known)
        async with known.polling:
            answer = await self._answer(known, ask)
        takes_more = ask.max_jobs > 0 and not known.row.drain
        takes_more = takes_more and not known.has_isolated(began)
        if answer.is_empty and ask.wait > 0 and takes_more:
            answer.jobs, answer.cancel = await self._hold(known, ask, gone, began, puts)
        more = 0 < ask.max_jobs <= len(answer.jobs)
        asked = ask.max_jobs if not known.row.drain else 0
        next_poll = self._registry.found(known, len(answer.jobs), asked, began)
        answer.next_poll_s = 0.0 if more else next_poll
        answer.drain = known.row.drain
        self._registry.seen(known)
        return answer

    def stop_waiting(self) -> None:
        """End all held polls, and hold no more: the controller stops."""
        self._closing = True
        for known in self._registry:
            if known.waiting is not None:
                known.waiting.give()

    async def _answer(self, known: KnownWorker, ask: PollRequest) -> PollResult:
        await self._registry.read_requirements()
        answer = PollResult(0.0)
        await self._runs.read(known)
        if ask.finished:
            plain = not (ask.logs or ask.running or known.row.drain)
            answer.lost, answer.jobs = await self._runs.finish(
                known, ask.finished, ask.max_jobs if plain else 0
            )
        for log in ask.logs:
            await self._runs.adopt(known, [log.job_id])
            run = known.runs.get(log.job_id)
            if not run or await self._logs.append(run.claim, log.offset, log.text.encode()) is None:
                answer.lost.append(log.job_id)
        lost, answer.cancel = await self._runs.keep(known, ask.running)
        answer.lost = list(dict.fromkeys([*answer.lost, *lost]))
        if ask.max_jobs and not answer.jobs:
            answer.jobs = await self._take(known, ask)
        return answer

    async def _take(
        self, known: KnownWorker, ask: PollRequest, *, hinted: bool = False
    ) -> list[HeldRun]:
        """Jobs for a worker; first those that were handed to it and seem not to have arrived."""
        jobs = await self._runs.unheard(known, ask.running or {}, ask.max_jobs)
        group = self._registry.group_of(known)
        if known.row.drain or (not hinted and group.is_empty(self._clock.now())):
            return jobs
        if len(jobs) < ask.max_jobs:
            jobs += await self._runs.claim(known, ask.max_jobs - len(jobs))
        return jobs

    # Holding

    def _puts(self, known: KnownWorker) -> object:
        """Changes when a job is put here that a worker can take."""
        group = self._registry.group_of(known)
        return group, group.puts

    async def _hold(
        self, known: KnownWorker, ask: PollRequest, gone: Gone, began: float, puts: object
    ) -> tuple[Sequence[HeldRun], Sequence[str]]:
        """Wait until there is something for this worker, or the time is over.

        puts: `_puts` of the worker before its first claim.
        """
        if self.held >= self._held_max or self._closing:
            return (), ()
        hint = Hint(self._registry.group_of(known).kinds)
        if self._puts(known) != puts:
            hint.give()  # its claim may have been too early to see the job
        if known.waiting is not None:
            known.waiting.give()  # an older poll of this worker, whose client is gone
        known.waiting = hint
        until = began + min(ask.wait, self._longest)
        left = asyncio.ensure_future(gone())
        left.add_done_callback(lambda _: hint.give())
        self.held += 1
        self._others.listen()
        self._hints.join(hint)
        try:
            while known.waiting is hint and not left.done() and not self._closing:
                rest = until - self._clock.now()
                if rest <= 0:
                    break
                hinted = await pause_held(self._hints, hint, self._clock, rest)
                if known.waiting is not hint or left.done() or self._closing:
                    break
                hint.polling = True
                async with known.polling:
                    cancel = [run.job_id for run in known.runs.values() if run.cancel]
                    jobs = await self._take(known, ask, hinted=hinted)
                hint.polling = False
                if jobs or cancel:
                    return jobs, cancel
        finally:
            self.held -= 1
            self._others.stop_listening()
            self._hints.leave(hint)
            left.cancel()
            if known.waiting is hint:
                known.waiting = None
        return (), ()


async def pause_held(hints: Hints, hint: Hint, clock: Clock, rest: float) -> bool:
    """Sleep until a hint comes, at most `rest` seconds; True if one came.

    While hints are not proven, the pause is shorter.
    """
    hints.asleep(hint)
    try:
        proven = hints.proven_at is not None
        return await clock.sleep(rest if proven else min(rest, CLAIM_EVERY), hint)
    finally:
        hints.awake(hint)
