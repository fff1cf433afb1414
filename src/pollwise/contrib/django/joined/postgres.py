"""A queue in a Postgres database of Django."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import Error as DatabaseError
from django.db import connections

from pollwise.contrib.django.conf import QueuePlace
from pollwise.contrib.django.joined.calls import run
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.urls import parse_url, postgres_place
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import NewJob
from pollwise.storage.channel import HintChannel
from pollwise.storage.messages import message_of
from pollwise.storage.postgres.errors import LACKS, StatementRefused, refused_error
from pollwise.storage.postgres.params import Param, text

_PARAMETER = re.compile(r"\$(\d+)")
#: Without what the queue's own statement does to the transaction: this one is the user's.
_NOTIFY = b"SELECT pg_notify($1, $2)"


def open_on_postgres(place: QueuePlace, name: str) -> DjangoPostgresQueue:
    conninfo, options = postgres_place(parse_url(place.url_of(name)))
    return DjangoPostgresQueue(conninfo, str(place.database), **options)


class DjangoConnections:
    """Runs the statements of a queue on Django's connection of this thread."""

    def __init__(self, alias: str, url: str) -> None:
        self._alias = alias
        self._url = url

    async def rows(
        self,
        statement: bytes,
        params: Sequence[Param] = (),
        *,
        safe: bool = False,
        within: float | None = None,
    ) -> list[tuple[Any, ...]]:
        query = _PARAMETER.sub(r"%(p\1)s", statement.decode().replace("%", "%%"))
        values = {
            f"p{place}": None if value is None else value.decode()
            for place, value in enumerate(params, 1)
        }
        try:
            with connections[self._alias].cursor() as cursor:
                cursor.execute(query, values)
                return [tuple(row) for row in cursor.fetchall()]
        except DatabaseError as error:
            cause: Any = error.__cause__
            state = getattr(cause, "sqlstate", None)
            if state not in LACKS:
                raise  # it concerns the user's transaction, and code that repeats it relies on it
            said = StatementRefused(state, str(cause).partition("\n")[0])
            migrate = f"Run `manage.py migrate --database {self._alias}`."
            raise refused_error(said, self._url, migrate) from error


class DjangoChannel(HintChannel):
    """Sends hints in Django's transaction: they arrive with its commit. It does not listen.

    notify: sends a message.
    """

    notify: Callable[[str], None]

    def send_to_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        self.notify(self.message(count, kinds, later=True))

    def _broadcast_to_others(self, kind: str) -> None:
        self.notify(message_of("broadcast", self._id, kind))

    def _others_want(self, kind: str) -> bool:
        return True  # only a listener knows


class DjangoPostgresQueue(PostgresQueue):
    """A queue on Django's connection `alias`."""

    def __init__(self, conninfo: str, alias: str, **options: Any) -> None:
        super().__init__(conninfo, **options)
        self._alias = alias
        ours: Any = DjangoConnections(alias, self.url)
        self.database.connections = self.database._own = ours

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        # The hint travels with the commit. So it is for this process too, as if from another.
        hint = self._channel.message(len(jobs), {job.kind for job in jobs}, later=True)
        return await self._put_all(jobs, hint, None)

    def _put_params(
        self, jobs: Sequence[NewJob], encoded: Sequence[str], message: str | None, *, alone: bool
    ) -> list[Param]:
        alone = not connections[self._alias].in_atomic_block
        return super()._put_params(jobs, encoded, message, alone=alone)

    def _make_hints(self) -> Hints:
        super()._make_hints()
        self._channel = DjangoChannel(self._transport, self.clock)
        self._channel.notify = self._notify
        return self._channel

    def _notify(self, message: str) -> None:
        params = [text(self._transport.channel), text(message)]
        run(self.database.connections.rows(_NOTIFY, params))
