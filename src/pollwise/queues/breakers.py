"""`queue.breakers`: the breakers of kinds that are not closed, as workers share them.

A worker counts failures itself. The one whose breaker opens stores a note of the topic "breakers"
with the kind as its name; other workers adopt it when they start, and when a job of the kind fails.
The note is replaced only if it is unchanged, so one worker takes the trial of a half-open breaker.
A breaker that is closed has no note, so it costs nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pollwise.errors import ConfigError
from pollwise.queues.notes import EVERYBODY, NOTES_MAX, TIME_MAX, NewNote, ScheduleSwap
from pollwise.runtime.jobs import checked_name, storable

if TYPE_CHECKING:
    from pollwise.queues.base import Queue

#: How long the note of a breaker outlasts its opening, in seconds. After that nobody tried a job of
#: the kind for so long that its breaker is closed again.
BREAKER_KEPT = 86400.0
#: The longest name of a worker in a note, in characters.
_WORKER_MAX = 200


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """The breaker of a kind that is open or half-open. Times are seconds since 1970.

    openings: how often it opened since it was closed.
    since: when it opened first. retry_at: when one job may be tried.
    worker: whose jobs failed.
    trial_by, trial_until: the worker that tries a job, and until when no other does; "" and 0 if
        none does.
    """

    kind: str
    openings: int
    since: float
    retry_at: float
    worker: str
    trial_by: str = ""
    trial_until: float = 0.0

    def state(self, now: float) -> str:
        return "open" if now < self.retry_at else "half-open"

    def to_note(self) -> str:
        values = {
            "openings": self.openings,
            "since": self.since,
            "retry_at": self.retry_at,
            "worker": self.worker[:_WORKER_MAX],
            "trial_by": self.trial_by[:_WORKER_MAX],
            "trial_until": self.trial_until,
        }
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    def without_trial(self) -> OpenBreaker:
        return replace(self, trial_by="", trial_until=0.0)


class SharedBreakers:
    """The breakers of one queue that are not closed."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def list(self) -> list[OpenBreaker]:
        """The breakers that are open or half-open, by kind."""
        found = await self.read()
        breakers = (breaker_from(kind, value) for kind, value in sorted(found.items()))
        return [each for each in breakers if each is not None]

    async def close(self, kind: str) -> bool:
        """Close the breaker of a kind: all workers claim its jobs again. False if it was closed.

        Workers learn of it with their next poll. If jobs fail again, the breaker opens again.
        """
        self.check()
        name = checked_name(kind, "kind", ConfigError)
        closed = (await self._queue._write_note(NewNote("breakers", name, None))).done
        if closed:
            self._queue._give_hints(EVERYBODY, {kind})
        return closed

    async def read(self) -> dict[str, str]:
        """The notes as they are stored, by kind."""
        self.check()
        return {note.name: note.value for note in await self._queue._read_notes(["breakers"])}

    async def swap(
        self, kind: str, expected: str | None, value: str | None
    ) -> tuple[bool, str | None]:
        """Replace the note of a kind if it is as expected. None: there is none, it is closed.

        Returns whether it was replaced, and the note that is there now.
        """
        self.check()
        ttl = None
        if value is not None:
            made = checked_breaker(kind, value)
            now = self._queue.clock.epoch()
            ttl = max(made.retry_at, made.trial_until, now) - now + BREAKER_KEPT
            if expected is None and len(await self.read()) >= NOTES_MAX["breakers"]:
                most = NOTES_MAX["breakers"]
                raise ConfigError(f"{self._queue.url} has {most} open breakers, which is the limit")
        swap = ScheduleSwap(kind, expected, value, ttl=ttl, topic="breakers")
        done, now_value, _ = await self._queue._swap_schedule(swap)
        return done, now_value

    def check(self) -> None:
        """Refuse a store that cannot keep breakers."""
        if not self._queue.capabilities.breakers:
            raise self._queue._cannot("keep breakers")


def breaker_from(kind: str, text: str | None) -> OpenBreaker | None:
    """A breaker from its note, which another process wrote; None if it is not valid."""
    try:
        return None if text is None else checked_breaker(kind, text)
    except ConfigError:
        return None


def checked_breaker(kind: str, text: str) -> OpenBreaker:
    """Read a note that somebody sends. Raises ConfigError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the breaker of {kind!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"the breaker of {kind!r} must be a JSON object")
    openings = value.get("openings")
    if type(openings) is not int or not 1 <= openings < 2**31:
        raise ConfigError(f"openings = {openings!r} of the breaker of {kind!r} must be 1 or more")
    since, retry_at, trial_until = (
        _time_in(kind, value, name) for name in ("since", "retry_at", "trial_until")
    )
    worker, trial_by = (
        storable(str(value.get(name) or ""), _WORKER_MAX) or "" for name in ("worker", "trial_by")
    )
    return OpenBreaker(kind, openings, since, retry_at, worker, trial_by, trial_until)


def _time_in(kind: str, value: dict[str, Any], name: str) -> float:
    at = value.get(name, 0.0)
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < TIME_MAX:
        raise ConfigError(f"{name} = {at!r} of the breaker of {kind!r} must be seconds since 1970")
    return float(at)
