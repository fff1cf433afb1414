"""Puts from code without an event loop, in the calling thread.

Hints are sent as by the async put: in the transaction of a put now and then, and otherwise
separately, by the queue's event loop. That loop is woken at most every SEND_EVERY, whatever the
number of puts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pollwise.platforms.sockets import can_poll
from pollwise.queues.postgres.puts import is_plain, more_params, statement_of
from pollwise.runtime.home import watch_forks
from pollwise.runtime.jobs import NewJob
from pollwise.storage.channel import RIDE_EVERY, SEND_EVERY, HintChannel
from pollwise.storage.postgres.blocking import BlockingConnections

if TYPE_CHECKING:
    from pollwise.queues.postgres.queue import PostgresQueue

#: The maximum bytes of payloads that are put in the calling thread.
HERE_BYTES = 1024 * 1024


class BlockingPuts:
    """Puts jobs of a queue in the calling thread, over connections of their own."""

    def __init__(self, queue: PostgresQueue, channel: HintChannel) -> None:
        self._queue = queue
        self._database = queue.database
        self._connections = BlockingConnections(queue.database.connections)
        self._channel = channel
        self._rode_at = 0.0
        self._changing = threading.Lock()
        self._unsent = 0
        self._unsent_kinds: set[str] = set()
        self._sending = False
        watch_forks(self)

    def put(self, jobs: Sequence[NewJob], loop: asyncio.AbstractEventLoop) -> list[str] | None:
        """Put jobs; None if the event loop has to do it."""
        if (
            not self._database.fits  # the first call checks the tables
            or not can_poll()
            or any(job.unique is not None for job in jobs)
            or sum([job.size for job in jobs]) > HERE_BYTES
        ):
            return None
        kinds = {job.kind for job in jobs}
        message = self._ride(len(jobs), kinds)
        rows: list[tuple[object, ...]] | None = [(None,)]
        if message is None and is_plain(jobs):
            rows = self._rows("put_one", self._queue._one_params(jobs[0]))
        if rows == [(None,)]:
            encoded = [job.encoded for job in jobs]
            name = statement_of(jobs)
            params = self._queue._put_params(jobs, encoded, message, alone=True)
            rows = self._rows(name, params + more_params(name, jobs, self._queue.keep))
        if rows is None:
            return None
        ids = str(rows[0][0]).split(",")
        if message is None:
            self._hint(len(jobs), kinds, loop)
        return ids

    def _rows(self, name: str, params: Sequence[bytes | None]) -> list[tuple[object, ...]] | None:
        return self._connections.rows(self._database.sql[name], params)

    def close(self) -> None:
        """Close the connections, and send the last hints. Called in the event loop."""
        self._connections.close()
        self._send()

    # Hints

    def _ride(self, count: int, kinds: set[str]) -> str | None:
        """The message that a put sends inside its own transaction, if it is time for one."""
        now = time.monotonic()
        if now < self._rode_at + RIDE_EVERY:
            return None
        self._rode_at = now
        return self._channel.message(count, kinds)

    def _hint(self, count: int, kinds: set[str], loop: asyncio.AbstractEventLoop) -> None:
        with self._changing:
            self._unsent += count
            self._unsent_kinds |= kinds
            waking, self._sending = not self._sending, True
        if waking:
            loop.call_soon_threadsafe(self._send_and_wait, loop)

    def _send_and_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the unsent hints, and check again after SEND_EVERY."""
        if self._send():
            loop.call_later(SEND_EVERY, self._send_and_wait, loop)

    def _send(self) -> bool:
        with self._changing:
            count, kinds = self._unsent, self._unsent_kinds
            self._unsent, self._unsent_kinds = 0, set()
            self._sending = count > 0
        if count:
            self._channel.send_to_others(count, kinds)
        return count > 0

    def after_fork(self) -> None:
        self._changing = threading.Lock()
        self._unsent, self._unsent_kinds, self._sending = 0, set(), False
