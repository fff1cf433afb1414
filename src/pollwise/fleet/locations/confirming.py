"""A node at a location: it asks other locations to confirm failures, and answers what they ask.

A target with `confirm_from = 2` is polled by the node that holds it, as all others. When it fails
there, and the last quick poll of the confirmation fails too, nodes elsewhere are asked through the
store to poll it once, one node for each location. The failure counts (its breaker opens, the target
is down or dead) when as many locations saw it, that of the holder included. Otherwise the target
stays as it is and is polled at its interval; each failed poll then asks again.

Locations without a living node are not asked. If too few locations have one, these decide alone. A
location that does not answer in time does not stop the others from deciding.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pollwise.durations import short
from pollwise.errors import ProbeTimeout
from pollwise.fleet.engine.failures import Unconfirmed, text_of
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.locations.values import LocationAnswer, LocationAsk, LocationResult, SeenFrom
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.targets import ProbeContext, Reading
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock

#: How often a node looks for answers that it waits for, and for what others ask, in seconds.
LOOK_EVERY = 1.0
SERVE_EVERY = 2.0
#: A location has the timeout of a target and this many seconds to answer.
ANSWER_WITHIN = 10.0
#: Maximum number of polls at a time that others asked for.
ANSWERS_MAX = 64

_LOOK, _SERVE = "ask other locations", "answer other locations"


@dataclass(slots=True)
class _Ask:
    """A question to other locations. sent_at: by the store's clock; None if it was not sent yet."""

    at: float
    sent_at: float | None = None
    answers: dict[str, bool] = field(default_factory=dict)


class Confirmations:
    """Confirms the failures of the targets that this node holds, and those that others ask for."""

    def __init__(
        self, store: FleetStore, location: str, scheduler: Scheduler, clock: Clock, chores: Chores
    ) -> None:
        self.location = location
        #: Locations with a living node, this one included.
        self.living: frozenset[str] = frozenset((location,))
        #: Polls in progress that others asked for.
        self.tasks: set[asyncio.Task[None]] = set()
        self._store = store
        self._scheduler = scheduler
        self._clock = clock
        self._chores = chores
        self._asks: dict[RunningTarget, _Ask] = {}
        self._answers: list[LocationAnswer] = []
        self._sending = False
        chores.add(_LOOK, LOOK_EVERY, self._look)
        chores.add(_SERVE, SERVE_EVERY, self._serve)

    def tend(self, living: frozenset[str]) -> None:
        """Note which locations live; take part if any target is confirmed from several."""
        self.living = living | {self.location}
        if any(entry.target.confirm_from > 1 for entry in self._scheduler.entries.values()):
            self._chores.wake(_SERVE)
        else:
            self._chores.rest(_SERVE)

    # The node that holds a target

    def succeeded(self, entry: RunningTarget, at: float, took: float) -> None:
        """Record a success at this location."""
        if entry.target.confirm_from > 1:
            self._asks.pop(entry, None)
            self._note(entry, self.location, LocationResult(self._epoch(at), True, took))

    def failed(
        self, entry: RunningTarget, error: str, at: float, took: float
    ) -> Unconfirmed | None:
        """Judge a failed poll, before it is recorded: None if it counts, as far as it would without
        other locations."""
        target, rules = entry.target, self._scheduler.rules
        wanted = target.confirm_from
        if wanted < 2:
            return None
        self._note(entry, self.location, LocationResult(self._epoch(at), False, took, error))
        number, down = entry.failures + 1, entry.down_since is not None
        #: Failures up to this number have no consequences.
        quick = min(rules.confirmations, (target.dead_after or rules.dead_after) - 1)
        if min(wanted, len(self.living)) < 2:
            self._asks.pop(entry, None)
            return None
        if number < quick:
            return None
        ask = self._asks.get(entry)
        if ask is None:
            self._ask(entry, at)
        if number <= quick:
            return None
        verdict = None if ask is None else self._verdict(entry, ask, at)
        if verdict is None:
            soon = min(rules.confirm, entry.strategy.min_interval)
            return None if down else Unconfirmed(soon)  # it stays as it is until there is a verdict
        del self._asks[entry]
        if verdict:
            self._ask(entry, at)  # to see its end, should this location not see it
            return None
        seen = [each for each in (entry.seen_from or SeenFrom()).results.values() if each.ok]
        if seen:
            newest = max(each.at for each in seen) - self._scheduler.offset
            entry.succeeded_at = max(entry.succeeded_at or newest, newest)
        return Unconfirmed(entry.interval, well=True)

    def _verdict(self, entry: RunningTarget, ask: _Ask, at: float) -> bool | None:
        """True if enough locations saw the failure, False if they did not; None if that is open."""
        wanted, others = entry.target.confirm_from, self.living - {self.location}
        needed = min(wanted, len(others) + 1)
        failing = 1 + sum(not ok for ok in ask.answers.values())
        if failing >= needed:
            return True
        if failing + len(others - ask.answers.keys()) < needed:
            return False
        if ask.sent_at is None or at <= self._answered_by(entry, ask):
            return None
        return failing >= min(wanted, 1 + len(ask.answers))  # those that answered decide

    def _answered_by(self, entry: RunningTarget, ask: _Ask) -> float:
        return ask.at + entry.target.timeout + ANSWER_WITHIN

    def _ask(self, entry: RunningTarget, at: float) -> None:
        self._asks[entry] = _Ask(at)
        self._chores.wake(_LOOK)
        self._chores.hasten(_LOOK, 0.0)

    def _note(self, entry: RunningTarget, location: str, result: LocationResult) -> None:
        seen = entry.seen_from
        if seen is None:
            seen = entry.seen_from = SeenFrom()
        seen.note(location, result)
        living = len(self.living)
        seen.living = living if living < entry.target.confirm_from else None

    async def _look(self) -> None:
        """Send the questions, and look for answers."""
        held = self._scheduler.entries
        for entry in list(self._asks):
            lost = entry.until <= self._clock.now()
            if lost or held.get(entry.target.name) is not entry:
                del self._asks[entry]
        unsent = [(entry, ask) for entry, ask in self._asks.items() if ask.sent_at is None]
        if unsent:
            names = [entry.target.name for entry, _ in unsent]
            sent_at = await self._store.ask_locations(names, self.location)
            for _, ask in unsent:
                ask.sent_at = sent_at
        others = self.living - {self.location}
        now = self._clock.now()
        open_asks = {
            entry.target.name: (entry, ask)
            for entry, ask in self._asks.items()
            if others - ask.answers.keys() and now <= self._answered_by(entry, ask) + LOOK_EVERY
        }
        if not open_asks:
            self._chores.rest(_LOOK)
            return
        for answer in await self._store.location_answers(list(open_asks)):
            entry, ask = open_asks[answer.target]
            if ask.sent_at is not None and answer.asked_at >= ask.sent_at:
                ask.answers[answer.location] = answer.ok
                at = self._epoch(now - answer.age)
                result = LocationResult(at, answer.ok, answer.took, answer.error)
                self._note(entry, answer.location, result)

    # A node elsewhere

    async def _serve(self) -> None:
        """Poll what other locations ask for."""
        room = ANSWERS_MAX - len(self.tasks)
        if room <= 0:
            return
        for asked in await self._store.take_asked(self.location, room):
            entry = self._scheduler.entries.get(asked.target)
            if entry is not None:
                task = asyncio.create_task(self._answer(entry, asked))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _answer(self, entry: RunningTarget, asked: LocationAsk) -> None:
        """Poll a target that is held elsewhere once, and send the result."""
        if not await self._token():
            return
        target, now, error = entry.target, self._clock.now, ""
        started = now()
        deadline = started + target.timeout
        try:
            async with asyncio.timeout(target.timeout):
                context = ProbeContext(None, deadline, self._epoch(started))
                entry.ensure_probe()
                Reading.of(await entry.probe(target, context))
        except asyncio.CancelledError:
            raise
        except BaseException as raised:
            if isinstance(raised, TimeoutError) and now() >= deadline:
                limit = short(target.timeout)
                raised = ProbeTimeout(f"no answer within the timeout of {limit}")
            error = text_of(raised)
        answer = LocationAnswer(
            target.name, self.location, asked.asked_at, 0.0, not error, now() - started, error
        )
        self._answers.append(answer)
        await self._send()

    async def _token(self) -> bool:
        """Wait for a token of the budget; False if that takes too long.

        A node that holds no target has no part of the budget; it may answer all the same.
        """
        budget, until = self._scheduler.budget, self._clock.now() + ANSWER_WITHIN
        while budget is not None and budget.tokens.rate:
            now = self._clock.now()
            if budget.tokens.has(now):
                budget.tokens.spend()
                return True
            if now >= until:
                return False
            await self._clock.sleep(min(budget.tokens.ready_at(now), until) - now)
        return True

    async def _send(self) -> None:
        """Send the answers that are there, in one call at a time."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._answers:
                batch, self._answers = self._answers, []
                await self._store.answer_locations(batch)
        finally:
            self._sending = False

    def _epoch(self, at: float) -> float:
        return at + self._scheduler.offset
