"""What a poll does: report, keep, and take; by the quickest way that will do.

Nearly all polls find nothing, and are answered without a look at any store: the worker is known,
it runs nothing, and its crowd has just been found to have no job. All others go the long way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pollwise.controller.http.answers import Refused, too_soon
from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.values import JobRow, Run
from pollwise.controller.workers.registry import RUNS_FRESH, Known, Registry
from pollwise.controller.workers.reports import Finished, Progress
from pollwise.controller.workers.runs import Runs
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hint, Hints

#: The most jobs that one poll may ask for.
MAX_JOBS = 100
#: A held poll looks again so often where it is not proven that news arrives, in seconds.
LOOK_EVERY = 5.0
#: The share of the heartbeat time-out that a poll may be held.
SHARE_OF_TIMEOUT = 0.5


@dataclass(frozen=True, slots=True)
class LogText:
    """A piece of a job's log that came with a poll."""

    job_id: str
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a poll asks and says. `running` is None where it does not say what runs."""

    most: int = 1
    wait: float = 0.0
    running: Sequence[Progress] | None = None
    finished: Sequence[Finished] = ()
    logs: Sequence[LogText] = ()


@dataclass(slots=True)
class Answer:
    """What a poll is answered."""

    next_poll_s: float
    jobs: Sequence[tuple[JobRow, Run]] = ()
    cancel: Sequence[str] = ()
    lost: list[str] = field(default_factory=list)
    drain: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.cancel or self.lost)


#: Appends a piece of log; False if the job is not the worker's.
AppendLog = Callable[[Known, LogText], Awaitable[bool]]
#: Ends when the client is gone.
Gone = Callable[[], Awaitable[None]]


class Poller:
    """Answers the polls of workers."""

    def __init__(
        self,
        registry: Registry,
        runs: Runs,
        hints: Hints,
        options: ControllerOptions,
        clock: Clock,
        append_log: AppendLog,
    ) -> None:
        self._registry = registry
        self._runs = runs
        self._hints = hints
        self._clock = clock
        self._append_log = append_log
        self._least = options.span("min_interval")
        self._longest = min(
            options.span("max_wait"), SHARE_OF_TIMEOUT * options.span("heartbeat_timeout")
        )
        self._runs_fresh = min(RUNS_FRESH, options.span("heartbeat_timeout") / 4)
        self._held_max = options.waiting_max
        self._held = 0
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self._closing = False

    @property
    def held(self) -> int:
        """How many polls are held now."""
        return self._held

    def quick(self, known: Known, most: int, wait: float, now: float) -> Answer | None:
        """The answer to a poll that reports nothing, where memory has it; None if it has not.

        Raises `Refused` for a poll that comes too soon.
        """
        crowd = self._registry.crowd_of(known)
        self._refuse_too_soon(known, now, most, wait)
        quiet = not known.runs and now - known.runs_at < self._runs_fresh
        if not quiet or (wait and not self._closing) or known.row.drain:
            return None
        if most and not crowd.is_empty(now):
            return None
        return Answer(self._registry.found(known, 0, most, now))

    async def answer(self, known: Known, ask: Ask, gone: Gone) -> Answer:
        """The answer to any poll. `gone` is awaited while it is held."""
        began = self._clock.now()
        if not ask.finished:
            self._refuse_too_soon(known, began, ask.most, ask.wait)
        async with self._alone(known):
            answer = await self._look(known, ask)
        if answer.is_empty and ask.wait > 0 and ask.most and not known.row.drain:
            answer.jobs, answer.cancel = await self._hold(known, ask, gone, began)
        more = 0 < ask.most <= len(answer.jobs)
        asked = ask.most if not known.row.drain else 0
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

    def _refuse_too_soon(self, known: Known, now: float, most: int, wait: float) -> None:
        """Unless it was told to come, asks for no job, or will be held for long enough."""
        if known.empty_at is None or not most or known.hinted:
            return
        if wait >= self._least > 0 and self._held < self._held_max and not self._closing:
            return
        left = known.empty_at + self._least - now
        if left > 0 and known.news == known.crowd.news:
            raise too_soon(left, self._least)

    async def _look(self, known: Known, ask: Ask) -> Answer:
        await self._registry.read_requirements()
        answer = Answer(0.0)
        if ask.finished:
            last = [each.last for each in ask.finished if each.last is not None]
            if last:
                await self._runs.keep(known, last, complete=False)
            plain = not (ask.logs or ask.running or known.row.drain)
            lost, answer.jobs = await self._runs.finish(
                known, ask.finished, ask.most if plain else 0
            )
            answer.lost += lost
        else:
            await self._runs.read(known, afresh=bool(known.runs or ask.running))
        for each in ask.logs:
            if not await self._append_log(known, each):
                answer.lost.append(each.job_id)
        heard = await self._runs.keep(known, ask.running)
        answer.lost = list(dict.fromkeys([*answer.lost, *heard.lost]))
        answer.cancel = heard.cancel
        if ask.most and not answer.jobs:
            answer.jobs = await self._take(known, ask)
        return answer

    async def _take(
        self, known: Known, ask: Ask, *, hinted: bool = False
    ) -> list[tuple[JobRow, Run]]:
        """Jobs for a worker: first those that it was given and seems not to have got."""
        running = {each.job_id for each in ask.running or ()}
        jobs = await self._runs.unheard(known, running, ask.most)
        crowd = self._registry.crowd_of(known)
        if known.row.drain or (not hinted and crowd.is_empty(self._clock.now())):
            return jobs
        if len(jobs) < ask.most:
            jobs += await self._runs.claim(known, ask.most - len(jobs))
        return jobs

    # Holding

    async def _hold(
        self, known: Known, ask: Ask, gone: Gone, began: float
    ) -> tuple[Sequence[tuple[JobRow, Run]], Sequence[str]]:
        """Wait until something comes for this worker, or its time is over."""
        if self._held >= self._held_max or self._closing:
            return (), ()
        hint = Hint(known.crowd.kinds)
        if known.waiting is not None:
            known.waiting.give()  # an older poll of its, whose client is gone: it asks anew
        known.waiting = hint
        until = began + min(ask.wait, self._longest)
        left = asyncio.ensure_future(gone())
        left.add_done_callback(lambda _: hint.give())
        self._held += 1
        self._hints.join(hint)
        try:
            while known.waiting is hint and not left.done() and not self._closing:
                rest = until - self._clock.now()
                if rest <= 0:
                    break
                hinted = await self._sleep(hint, rest)
                if known.waiting is not hint or left.done() or self._closing:
                    break
                hint.polling = True
                async with self._alone(known):
                    cancel = await self._to_cancel(known)
                    jobs = await self._take(known, ask, hinted=hinted)
                hint.polling = False
                if jobs or cancel:
                    return jobs, cancel
        finally:
            self._held -= 1
            self._hints.leave(hint)
            left.cancel()
            if known.waiting is hint:
                known.waiting = None
        return (), ()

    async def _sleep(self, hint: Hint, rest: float) -> bool:
        pause = rest if self._hints.proven_at is not None else min(rest, LOOK_EVERY)
        self._hints.asleep(hint)
        try:
            return await self._clock.sleep(pause, hint)
        finally:
            self._hints.awake(hint)

    async def _to_cancel(self, known: Known) -> list[str]:
        if not known.runs:
            return []
        await self._runs.read(known, afresh=True)
        return [run.job_id for run in known.runs.values() if run.cancel]

    @asynccontextmanager
    async def _alone(self, known: Known) -> AsyncIterator[None]:
        """One poll of a worker at a time: the second must see what the first one took."""
        lock, users = self._locks.setdefault(known.id, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                self._locks.pop(known.id, None)


def checked_most(most: int) -> int:
    if not 0 <= most <= MAX_JOBS:
        raise Refused(
            422, "invalid", f"max = {most} must be from 0 to {MAX_JOBS}", "Ask for fewer jobs."
        )
    return most
