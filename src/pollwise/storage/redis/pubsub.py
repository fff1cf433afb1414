"""Hints by pub/sub: one listening connection per process and server, for all queues.

Only subscriptions are sent over it, so an idle process is quiet. Whether messages still arrive is
proven by the channel's own checks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import redis.asyncio.connection as wire
from redis import exceptions as trouble

from pollwise.errors import StoreUnavailable
from pollwise.runtime.clock import Clock
from pollwise.storage.channel import HintTransport
from pollwise.storage.redis.connections import Connections, RedisAddress, explained, pack

Heard = Callable[[str], None]

#: How long subscribing may take, in seconds.
SUBSCRIBE_TIMEOUT = 10.0
#: How long sending a message may take, in seconds: hints are not worth more.
SEND_TIMEOUT = 2.0


class NotConnected(StoreUnavailable):
    """There is no listening connection."""

    advice = "The listening connection could not be opened; see the reason."


class RedisTransport(HintTransport):
    """The messages of one pub/sub channel."""

    def __init__(
        self, address: RedisAddress, channel: str, connections: Connections, clock: Clock
    ) -> None:
        self.advice: str = (
            "Check that the server answers, that this user may use the queue's channels "
            f"(ACL: &{{{address.prefix}:*), and that a proxy in between carries pub/sub."
        )
        self._address = address
        self._channel = channel
        self._connections = connections
        self._clock = clock

    async def listen(self, heard: Heard, ready: Callable[[], None]) -> None:
        switchboard = ListeningConnection.at(self._address)
        subscription = Subscription(self._address, self._channel, heard, ready)
        try:
            with self._clock.outside():
                async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
                    await switchboard.join(subscription)
            await subscription.over
        except TimeoutError:
            late = NotConnected(
                f"{self._address} did not answer a subscription within {SUBSCRIBE_TIMEOUT:g} s"
            )
            await switchboard.give_up(late)
            raise late from None
        finally:
            await switchboard.leave(subscription)

    async def send(self, message: str) -> None:
        await self._connections.send("PUBLISH", self._channel, message, within=SEND_TIMEOUT)

    async def close(self) -> None:
        """Nothing to do: the connections are the queue's, and `listen` leaves by itself."""


class Subscription:
    """One listener; `over` ends with the error when the connection is lost."""

    def __init__(
        self, address: RedisAddress, channel: str, heard: Heard, ready: Callable[[], None]
    ) -> None:
        self.address = address
        self.channel = channel
        self.heard = heard
        self.ready = ready
        self.subscribed: asyncio.Event = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over.add_done_callback(self._end)

    def _end(self, over: asyncio.Future[None]) -> None:
        self.subscribed.set()  # ends the wait for a subscription that will not come
        if not over.cancelled():
            over.exception()  # mark it as retrieved: nobody has to wait for it


class ListeningConnection:
    """The one connection of an event loop to a server, on which all its queues listen.

    It opens with the first subscription and closes with the last.
    """

    _open: ClassVar[dict[tuple[object, ...], ListeningConnection]] = {}

    def __init__(self, address: RedisAddress, place: tuple[object, ...]) -> None:
        self._address = address
        self._place = place
        self._members: list[Subscription] = []
        self._asked: deque[str] = deque()  # subscriptions without an answer yet
        self._connection: wire.AbstractConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @classmethod
    def at(cls, address: RedisAddress) -> ListeningConnection:
        loop = asyncio.get_running_loop()
        for place in [place for place in cls._open if place[0].is_closed()]:  # type: ignore[attr-defined]
            del cls._open[place]
        place = (loop, *address.identity)
        if place not in cls._open:
            cls._open[place] = cls(address, place)
        return cls._open[place]

    async def join(self, member: Subscription) -> None:
        """Subscribe; returns when the server has confirmed it, or the connection is lost."""
        self._members.append(member)
        try:
            async with self._lock:
                if self._connection is None:
                    self._connection = connection = await self._connect()
                    self._reading = asyncio.get_running_loop().create_task(self._read(connection))
                # Also for a channel that is already listened to: the answer makes it ready.
                self._asked.append(member.channel)
                await self._say("SUBSCRIBE", member.channel)
        except (trouble.RedisError, OSError) as error:
            raise NotConnected(str(explained(error, member.address, sent=False))) from error
        await member.subscribed.wait()

    async def leave(self, member: Subscription) -> None:
        if member in self._members:
            self._members.remove(member)
        if not self._members:
            await self._close()
        elif all(other.channel != member.channel for other in self._members):
            with suppress(trouble.RedisError, OSError):
                await self._say("UNSUBSCRIBE", member.channel)

    async def give_up(self, error: StoreUnavailable) -> None:
        """End all subscriptions: a connection that does not answer one of them is dead."""
        for member in self._members:
            if not member.over.done():
                member.over.set_exception(error)
        await self._close()

    async def _connect(self) -> wire.AbstractConnection:
        connection = self._address.connection(db=0)  # messages are not bound to a database
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _say(self, *command: str) -> None:
        if self._connection is not None:
            await self._connection.send_packed_command(pack(command))

    async def _read(self, connection: wire.AbstractConnection) -> None:
        """Deliver messages; when the connection is lost, end all subscriptions."""
        try:
            while True:
                try:
                    word, channel, data = await connection.read_response()
                except trouble.ResponseError as error:  # this user may not listen there
                    self._end(error, self._asked.popleft() if self._asked else None)
                else:
                    self._pass(word, channel.decode(), data)
        except (trouble.RedisError, OSError) as error:
            self._forget()
            self._end(error)
            with suppress(trouble.RedisError, OSError):
                await connection.disconnect(nowait=True)

    def _pass(self, word: bytes, channel: str, data: object) -> None:
        if word == b"subscribe" and self._asked:
            self._asked.popleft()
        for member in [member for member in self._members if member.channel == channel]:
            if word == b"subscribe":
                if not member.subscribed.is_set():
                    member.subscribed.set()
                    member.ready()
            elif word == b"message" and isinstance(data, bytes):
                member.heard(data.decode("utf-8", "replace"))

    def _end(self, error: Exception, channel: str | None = None) -> None:
        """End the subscriptions of a channel, or all."""
        for member in self._members:
            if channel in (None, member.channel) and not member.over.done():
                member.over.set_exception(explained(error, member.address, sent=False))

    def _forget(self) -> None:
        self._connection = self._reading = None
        if self._open.get(self._place) is self:
            del self._open[self._place]

    async def _close(self) -> None:
        connection, reading = self._connection, self._reading
        self._forget()
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        if connection is not None:
            with suppress(trouble.RedisError, OSError):
                await connection.disconnect(nowait=True)
