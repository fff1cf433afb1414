"""The base of queues and outboxes on Postgres: the database, hints by NOTIFY, and closing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from pollwise.runtime.hints import Hints
from pollwise.runtime.store import IDLE_WITHIN, WorkStore
from pollwise.storage.channel import HintChannel
from pollwise.storage.in_doubt import InDoubt
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.errors import ConnectionLost
from pollwise.storage.postgres.notify import PostgresTransport
from pollwise.storage.postgres.params import Param, number, text

C = TypeVar("C")
S = TypeVar("S")

#: The place of `until` in the rows of a claim.
_UNTIL = 11


class PostgresWorkStore(WorkStore[C], Generic[C, S]):
    """A store in a Postgres database; C is a claim and S a settlement.

    The constructor of a store sets what follows, before it calls `super().__init__`:

    database: the tables.
    _listen: the conninfo for hints.
    _in_doubt: the settlements whose answer was lost.
    """

    database: Database
    _listen: str
    _in_doubt: InDoubt[S]
    _closed = False

    @property
    def url(self) -> str:
        return self.database.url

    @property
    def schema(self) -> str:
        return self.database.schema

    async def migrate(self) -> list[int]:
        return await self.database.migrate()

    def migration(self) -> str:
        return self.database.migration()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self.database.hurry()
            await super().close()
            await self.database.close()

    async def _claimed(
        self, params: Sequence[Param]
    ) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
        """The rows of a claim, and its last row, whose `until` says when more falls due."""
        rows, last = await self._polled("claim", params)
        if last[_UNTIL] is not None:
            self._hints.send_at(self.clock.now() + max(last[_UNTIL], 0.0))
        return rows, last

    async def _polled(
        self, name: str, params: Sequence[Param]
    ) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
        """The rows of a poll, and its last row; a poll after an empty one has less time."""
        within, self._poll_within = self._poll_within, None
        rows = await self.database.rows(name, params, within=within)
        last = rows.pop()
        if not rows:
            self._poll_within = IDLE_WITHIN
        return rows, last

    async def _settled(
        self, batch: Sequence[S], params: Sequence[Param], name: str = "settle"
    ) -> tuple[Any, ...]:
        """The answer to a settlement, which is sent again if the connection breaks."""
        try:
            [row] = await self.database.rows(name, params)
        except ConnectionLost:
            self._in_doubt.note(batch)
            [row] = await self.database.rows(name, params)
        return row

    async def _prune(self, keep: float) -> int:
        return await self._count("prune", number(keep), self.database.now())

    async def _count(self, name: str, *params: Param) -> int:
        [(count,)] = await self.database.rows(name, [text(self.name), *params])
        return int(count)

    def _channel_name(self) -> str | None:
        """The name of the channel for hints; None for the one of a queue."""
        return None

    def _make_hints(self) -> Hints:
        self._transport = PostgresTransport(
            self.database.connections,
            self.database.sql["send"],
            self._listen,
            self.schema,
            self.name,
            self.clock,
            self._channel_name(),
        )
        self._channel = HintChannel(self._transport, self.clock)
        return self._channel
