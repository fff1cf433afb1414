"""The limits of a queue in Postgres: its claims keep them, in 0010_limits.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pollwise.errors import SchemaError
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import GroupUse, LimitUse
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import flag, number, text

#: How many limit groups of kinds without limits one prune deletes at most.
GROUPS_PRUNED = 10_000


class PostgresLimits:
    """The limits of one queue.

    limited: the kinds that limit how many of their jobs run, as the last claims saw them.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._used = False
        self._pruned_to = "", ""  # the groups up to this one were examined
        self.limited: frozenset[str] = frozenset()

    def note(self, asked: Sequence[str] | None, found: str | None) -> None:
        """Note what a claim says about the kinds it asked for; None: the queue has no limits."""
        if found is None:
            self.limited = frozenset()
            return
        self._used = True
        others = frozenset() if asked is None else self.limited.difference(asked)
        self.limited = others.union(json.loads(found))

    async def use(self, limits: KindLimits, groups: int) -> LimitUse:
        """How the limits of a kind are used."""
        params = [
            text(self._name), text(limits.kind), flag(limits.grouped), number(groups),
            self._database.now(),
        ]  # fmt: skip
        rows = await self._database.rows("limit_use", params, safe=True)
        [(_, running, waiting, full_at, now), *found] = rows
        rate, each = limits.rate, limits.rate_each
        return LimitUse(
            limits,
            running,
            waiting,
            None if rate is None else rate.next_start(full_at or 0.0, now),
            tuple(
                GroupUse(
                    name,
                    group_running,
                    group_waiting,
                    None if each is None else each.next_start(group_full_at or 0.0, at),
                )
                for name, group_running, group_waiting, group_full_at, at in found
            ),
        )

    async def prune(self) -> None:
        """Delete rows that are no longer needed.

        Those of rates only if claims of this process saw limits.
        """
        try:
            await self._database.rows("prune_circle", [text(self._name), number(GROUPS_PRUNED)])
        except SchemaError:  # tables before version 10
            return
        if not self._used:
            return
        params = [text(self._name), *map(text, self._pruned_to), self._database.now()]
        rows = await self._database.rows("prune_limits", params)
        self._pruned_to = next(iter(rows), ("", ""))
