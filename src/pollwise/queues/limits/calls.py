"""`queue.limits`: set, list and remove the limits of kinds, and see how they are used.

Limits are kept in the store, and every claim reads them there: a change applies to all workers from
their next claim. Jobs that run already go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pollwise.errors import ConfigError
from pollwise.queues.limits.record import KindLimits, Limit, kind_limits, limits_from
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.notes import EVERYBODY, NOTES_MAX, NewNote
from pollwise.runtime.jobs import checked_name

if TYPE_CHECKING:
    from pollwise.queues.base import Queue

#: How many groups of a kind are shown by default.
GROUPS_SHOWN = 20
#: The maximum number of groups of a kind that are shown.
GROUPS_SHOWN_MAX = 1000


class Limits:
    """The limits of the kinds of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def set(
        self,
        kind: str,
        limit: Limit | Iterable[Limit] = (),
        *,
        fair_by: str | None = None,
        weights: Mapping[str, int] | None = None,
    ) -> KindLimits:
        """Set the limits of a kind, which replace its present limits; return them.

        limit: a `Concurrency` or a `Rate`, or a list of them: one of each for the kind, and one of
            each with `by`.
        fair_by: groups take turns, even without a limit for each group. `by` and `fair_by` name the
            argument of the task that is the limit group, for people: see `NewJob.limit_group`.
        weights: how many jobs a group gets in each turn; 1 if it is not named.

        Jobs that have no group are in the group "". Jobs of the kind that already run without a
        group may not count. If a worker has other limits for the kind in its code, they replace
        these when the next such worker starts.
        """
        self.check()
        now = self._queue.clock.epoch()
        return await self.keep(
            kind_limits(kind, limit, fair_by=fair_by, weights=weights, set_at=now)
        )

    async def keep(self, limits: KindLimits) -> KindLimits:
        """Store checked limits, for `set` and for workers with limits in their code."""
        self.check()
        made = limits
        if not limits.set_at:
            made = replace(limits, set_at=self._queue.clock.epoch())
        written = await self._queue._write_note(NewNote("limits", limits.kind, made.to_note()))
        if not written.done:
            raise ConfigError(
                f"{self._queue.url} has limits for {NOTES_MAX['limits']} kinds, which is the "
                "limit; remove some"
            )
        self._queue._give_hints(EVERYBODY, {limits.kind})
        return made

    async def remove(self, kind: str) -> bool:
        """Remove the limits of a kind; False if it has none.

        Limits that workers have in their code come back when the next of them starts.
        """
        self.check()
        name = checked_name(kind, "kind", ConfigError)
        removed = (await self._queue._write_note(NewNote("limits", name, None))).done
        if removed:
            self._queue._give_hints(EVERYBODY, {kind})
        return removed

    async def use(  # before `list`, which hides the type of this name
        self, kind: str | None = None, *, groups: int = GROUPS_SHOWN
    ) -> list[LimitUse]:
        """How the limits of one kind, or of all kinds, are used. Empty if there are none.

        groups: how many groups of a kind are returned at most.
        """
        if not 0 <= groups <= GROUPS_SHOWN_MAX:
            raise ConfigError(f"groups = {groups!r} must be from 0 to {GROUPS_SHOWN_MAX}")
        if kind is not None:
            checked_name(kind, "kind", ConfigError)
        chosen = [each for each in await self.list() if kind in (None, each.kind)]
        return [await self._queue._limit_use(each, groups) for each in chosen]

    async def list(self) -> list[KindLimits]:
        """The limits of all kinds that have some, by kind."""
        self.check()
        notes = await self._queue._read_notes(["limits"])
        found = (limits_from(note.name, note.value) for note in notes)
        return sorted((each for each in found if each is not None), key=lambda each: each.kind)

    def check(self) -> None:
        """Refuse a store that cannot keep limits."""
        if not self._queue.capabilities.limits:
            raise self._queue._cannot("keep limits")
