"""Hints by LISTEN and NOTIFY: one listening connection per process and server, for all queues."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pollwise.errors import StoreUnavailable
from pollwise.runtime.clock import Clock
from pollwise.storage.channel import HintTransport
from pollwise.storage.postgres.connections import Connections
from pollwise.storage.postgres.conninfo import shown
from pollwise.storage.postgres.errors import (
    StatementRefused,
    connecting_error,
    one_line,
    refused_error,
)
from pollwise.storage.postgres.params import text
from pollwise.storage.postgres.schema import quoted
from pollwise.storage.postgres.wire import WireConnection

#: How long the listening connection may take to answer before it is dropped, in seconds.
PATIENCE = 5.0
#: How long sending a message may take, in seconds: hints are not worth more.
SEND_TIMEOUT = 2.0

Heard = Callable[[str], None]


class NotConnected(StoreUnavailable):
    """There is no listening connection."""

    advice = "The listening connection could not be opened; see the reason."


class ListeningLost(StoreUnavailable):
    """The listening connection broke."""

    advice = "It will be opened again; if this continues, check the server's log and the network."


class PostgresTransport(HintTransport):
    """The messages of one queue; or of an outbox, whose functions name its `channel`."""

    advice = (
        "A pooler in transaction or statement mode, such as PgBouncer, swallows LISTEN: give "
        "`listen`, a conninfo that goes to the server directly. Otherwise check the network "
        "to the server."
    )

    def __init__(
        self,
        connections: Connections,
        send: bytes,
        listen: str,
        schema: str,
        queue: str,
        clock: Clock,
        channel: str | None = None,
    ) -> None:
        digest = hashlib.blake2b(f"{schema}\0{queue}".encode(), digest_size=8)
        self.channel: str = channel or f"pollwise_{digest.hexdigest()}"
        self._connections = connections
        self._send = send
        self._listen = listen
        self._where = shown(
            conninfo_to_dict(listen), queue, schema, "outbox" if channel else "queue"
        )
        self._clock = clock

    async def listen(self, heard: Heard, ready: Callable[[], None]) -> None:
        ear = _shared_connection(self._listen)
        ear.users += 1
        try:
            with self._clock.outside():
                await self._add_to(ear, heard)
            ready()
            await asyncio.shield(ear.lost)
        except psycopg.Error as error:
            broke = f"{self._where}: the listening connection broke ({one_line(error)})"
            raise ListeningLost(broke) from None
        finally:
            ear.users -= 1
            with self._clock.outside():
                await ear.remove(self.channel, heard)

    async def _add_to(self, ear: _ListeningConnection, heard: Heard) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await ear.add(self.channel, heard)
        except TimeoutError:
            raise NotConnected(f"{self._where} did not answer within {PATIENCE:g} s") from None
        except StatementRefused as refused:
            raise NotConnected(str(refused_error(refused, self._where))) from None
        except psycopg.Error as error:
            raise NotConnected(str(connecting_error(error, self._where))) from None

    async def send(self, message: str) -> None:
        params = [text(self.channel), text(message)]
        await self._connections.rows(self._send, params, within=SEND_TIMEOUT)

    async def close(self) -> None:
        """Nothing to do: listening ends when it is cancelled, and sending uses the queue's."""


class _ListeningConnection:
    """A connection that listens, shared by all queues of a process on one server."""

    def __init__(self, conninfo: str, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self.lost: asyncio.Future[None] = loop.create_future()
        self._key = (conninfo, loop)
        self._conninfo = conninfo
        self._heard: dict[str, list[Heard]] = {}
        self._turn = asyncio.Lock()
        self._wire: WireConnection | None = None

    async def add(self, channel: str, heard: Heard) -> None:
        async with self._turn:
            try:
                if self._wire is None:
                    self._wire = await WireConnection.connect(self._conninfo, self._hear)
                    self._wire.lost.add_done_callback(self._gone)
                # Also for a channel that is already listened to: a transport that returns because
                # it received nothing learns whether the connection is alive, and else closes it.
                await self._wire.call(f"LISTEN {quoted(channel)}".encode(), ())
            except BaseException:
                self._end()
                raise
            self._heard.setdefault(channel, []).append(heard)

    async def remove(self, channel: str, heard: Heard) -> None:
        ours = self._heard.get(channel, [])
        if heard in ours:
            ours.remove(heard)
        if not self.users:
            self._end()
        elif not ours and not self.lost.done():
            # It may have left because it received nothing. A connection that does not answer this
            # is dead for all.
            try:
                async with asyncio.timeout(SEND_TIMEOUT), self._turn:
                    if self._wire is not None and not self._heard.get(channel):
                        self._heard.pop(channel, None)
                        await self._wire.call(f"UNLISTEN {quoted(channel)}".encode(), ())
            except BaseException:
                self._end()
                raise

    def _hear(self, channel: str, message: str) -> None:
        for heard in tuple(self._heard.get(channel, ())):
            heard(message)

    def _gone(self, wire: asyncio.Future[None]) -> None:
        self._end(None if wire.cancelled() else wire.exception())

    def _end(self, error: BaseException | None = None) -> None:
        _OPEN.pop(self._key, None)
        if not self.lost.done():
            self.lost.set_exception(
                error or psycopg.OperationalError("the listening connection was closed")
            )
            self.lost.exception()  # mark it as retrieved: nobody has to wait for it
        if self._wire is not None:
            wire, self._wire = self._wire, None
            with suppress(Exception):
                wire.drop()


_OPEN: dict[tuple[str, asyncio.AbstractEventLoop], _ListeningConnection] = {}


def _shared_connection(conninfo: str) -> _ListeningConnection:
    loop = asyncio.get_running_loop()
    for key in [key for key in _OPEN if key[1].is_closed()]:
        del _OPEN[key]
    found = _OPEN.get((conninfo, loop))
    if found is None or found.lost.done():
        found = _OPEN[conninfo, loop] = _ListeningConnection(conninfo, loop)
    return found
