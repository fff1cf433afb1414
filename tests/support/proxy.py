"""A TCP proxy that breaks connections: it cuts, holds, delays, drips, and loses answers.

    with Proxy(server.port) as proxy:
        queue = open(proxy.through(server.dsn()))
        proxy.lose_answer(to=b"settle")

It runs in a thread of its own and in real time, so tests may block or run under the virtual clock.
Its methods can be called from any thread, and have taken effect when they return.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Self, TypeVar

from tests.support.daemons import HOST, PATIENCE, free_port, wait_until

T = TypeVar("T")
#: Requests go from the client to the server, answers the other way.
Way = Literal["requests", "answers"]
#: What happens to a connection: closed, reset, or left open while nothing passes that way any more.
Fate = Literal["cut", "reset", "silence"]

#: The maximum number of bytes that are forwarded at once.
PIECE = 65536
#: The number of bytes that are remembered of what a client sent, to find a text in them.
TAIL = 1024


@dataclass(frozen=True)
class Order:
    """An order to lose a request that contains `text`, or its answer."""

    lose: Way
    text: bytes
    fate: Fate


@dataclass
class Counts:
    """Counts since the beginning; requests and answers in bytes.

    exchanges: how often an answer followed a request; round trips if each waits for its answer.
    """

    accepted: int = 0
    requests: int = 0
    answers: int = 0
    exchanges: int = 0
    lost: int = 0


@dataclass(eq=False)
class Link:
    """The connection of one client, and its connection to the server."""

    client: asyncio.StreamWriter
    task: asyncio.Task[None]
    server: asyncio.StreamWriter | None = None
    #: What happens to it when the next answer arrives.
    doom: Fate | None = None
    silent: set[Way] = field(default_factory=set)
    #: True if a request passed since the last answer.
    asked: bool = False
    #: The last bytes that the client sent: a text to find may have begun there.
    tail: bytes = b""


class Aside:
    """Something on its own event loop, in a thread, that other threads control."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        async def finish() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # let closed connections release their sockets

        self._await(finish)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await(self, call: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(PATIENCE)

    def _do(self, call: Callable[[], T]) -> T:
        async def done() -> T:
            return call()

        return self._await(done)


class Proxy(Aside):
    """Listens on a port of its own and forwards to `port`; `counts` says how much."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self.port = free_port()
        self.counts = Counts()
        self._target = (host, port)
        self._links: set[Link] = set()
        self._orders: list[Order] = []
        self._cut_after: int | None = None
        self._delay = 0.0
        self._drip = (PIECE, 0.0)
        self._listener: asyncio.Server | None = None
        super().__init__()
        self._gates: dict[Way, asyncio.Event] = self._do(
            lambda: {"requests": asyncio.Event(), "answers": asyncio.Event()}
        )
        self.release()
        self.accept()

    def through(self, url: str) -> str:
        """A server's URL through this proxy."""
        direct = "{}:{}".format(*self._target)
        assert url.count(direct) == 1, f"this proxy stands before {direct}, which {url} is not"
        return url.replace(direct, f"{HOST}:{self.port}")

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._do(lambda: len(self._links))

    # --- faults ---------------------------------------------------------------------------------

    def cut(self, *, reset: bool = False) -> int:
        """Close all connections now; returns how many there were. New ones are accepted."""

        def cut() -> int:
            links = list(self._links)
            for link in links:
                self._drop(link, reset=reset)
            return len(links)

        return self._do(cut)

    def cut_after(self, size: int) -> None:
        """Forward `size` more bytes of answers of all connections, then cut the last one."""

        def set_size() -> None:
            self._cut_after = size

        self._do(set_size)

    def lose_answer(self, to: bytes = b"", *, fate: Fate = "cut") -> None:
        """Forward the next request that contains `to`; lose the answer, and with it the connection.

        The server has done its work when its answer arrives here, if the client waits for each
        answer before it asks again. Called twice, it loses two.
        """
        self._do(lambda: self._orders.append(Order("answers", to, fate)))

    def lose_request(self, containing: bytes = b"", *, fate: Fate = "cut") -> None:
        """Lose the rest of the next request, from this text on, and with it the connection."""
        self._do(lambda: self._orders.append(Order("requests", containing, fate)))

    def await_lost(self, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until this many requests and answers were lost since the beginning."""
        wait_until(lambda: self.counts.lost >= count, f"loss number {count} in the proxy", within)

    def refuse(self) -> None:
        """Refuse new connections, as if nothing listened; open ones stay."""

        async def refuse() -> None:
            if self._listener:
                # asyncio forgets a connection that was accepted just before the end and not yet
                # handed over, and leaves it open. So first accept no more, and let asyncio hand it
                # over.
                for listening in self._listener.sockets:
                    self._loop.remove_reader(listening.fileno())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                self._listener.close()
                self._listener = None

        self._await(refuse)

    def accept(self) -> None:
        """Accept new connections again."""

        async def listen() -> None:
            if self._listener is None:
                self._listener = await asyncio.start_server(self._serve, HOST, self.port)

        self._await(listen)

    def hold(self, only: Way | None = None) -> None:
        """Accept connections and forward nothing, not even the end of a connection."""
        for way, gate in self._gates.items():
            if only in (None, way):
                self._do(gate.clear)

    def release(self) -> None:
        """Forward what was held, and continue."""
        for gate in self._gates.values():
            self._do(gate.set)

    def delay(self, seconds: float) -> None:
        """Delay everything by this much, both ways; 0 ends that."""

        def set_delay() -> None:
            self._delay = seconds

        self._do(set_delay)

    def drip(self, size: int = 1, every: float = 0.01) -> None:
        """Forward answers in pieces of `size` bytes, one each `every` seconds; 0 ends that."""

        def set_drip() -> None:
            self._drip = (size, every) if every else (PIECE, 0.0)

        self._do(set_drip)

    def restore(self) -> None:
        """Forward everything again, and forget faults that have not happened yet."""

        def forget() -> None:
            self._orders.clear()
            self._cut_after = None
            for link in self._links:
                link.doom = None
                link.silent.clear()

        self._do(forget)
        self.delay(0)
        self.drip(every=0)
        self.accept()
        self.release()

    def close(self) -> None:
        self.refuse()
        self.cut()
        super().close()

    # --- forwarding -----------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        link = Link(writer, task)
        self._links.add(link)
        self.counts.accepted += 1
        ways: list[asyncio.Task[None]] = []
        try:
            await self._gates["requests"].wait()
            answers, link.server = await asyncio.open_connection(*self._target)
            for passing in (
                self._pass_on(link, "requests", reader, link.server),
                self._pass_on(link, "answers", answers, writer),
            ):
                ways.append(asyncio.create_task(passing))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # nothing listens there, or the connection was cut
        finally:
            self._links.discard(link)
            for way in ways:
                way.cancel()
            writer.close()
            if link.server:
                link.server.close()

    async def _pass_on(
        self, link: Link, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while True:
            try:
                data = await source.read(PIECE)
            except ConnectionError:
                data = b""  # an end like any other, and held back like one
            if self._delay:
                await asyncio.sleep(self._delay)  # real time: this is the fault asked for
            await self._gates[way].wait()
            if way in link.silent:
                if not data:
                    await asyncio.Event().wait()  # until somebody cuts it
                continue
            if not data:
                return
            passing, fate = self._judge(link, way, data)
            try:
                await self._write(link, way, passing, sink)
            except ConnectionError:
                return
            if fate == "silence":
                link.silent.add(way)
            elif fate:
                self._drop(link, reset=fate == "reset")

    def _judge(self, link: Link, way: Way, data: bytes) -> tuple[bytes, Fate | None]:
        """How much of the data passes, and what happens to the connection then."""
        if way == "requests":
            return self._judge_request(link, data)
        if link.doom:
            fate, link.doom = link.doom, None
            self.counts.lost += 1
            return b"", fate
        if self._cut_after is not None:
            left, self._cut_after = self._cut_after, None
            if len(data) >= left:
                return data[:left], "cut"
            self._cut_after = left - len(data)
        return data, None

    def _judge_request(self, link: Link, data: bytes) -> tuple[bytes, Fate | None]:
        known, link.tail = link.tail, (link.tail + data)[-TAIL:]
        for order in self._orders:
            # It must end in the new data: what passed before the order does not count.
            begin = max(0, len(known) - max(0, len(order.text) - 1))
            at = (known + data).find(order.text, begin)
            if at < 0:
                continue
            self._orders.remove(order)
            if order.lose == "requests":
                self.counts.lost += 1
                return data[: max(0, at - len(known))], order.fate
            link.doom = order.fate
            break
        return data, None

    async def _write(self, link: Link, way: Way, data: bytes, sink: asyncio.StreamWriter) -> None:
        while data:
            size, every = self._drip if way == "answers" else (PIECE, 0.0)
            piece, data = data[:size], data[size:]
            if way == "requests":
                self.counts.requests += len(piece)
                link.asked = True
            else:
                self.counts.answers += len(piece)
                self.counts.exchanges += link.asked
                link.asked = False
            sink.write(piece)
            await sink.drain()
            if data and every:
                await asyncio.sleep(every)  # real time: this is the fault asked for

    def _drop(self, link: Link, *, reset: bool) -> None:
        if reset:
            wire = link.client.get_extra_info("socket")
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for writer in (link.client, link.server):
            if writer:
                writer.transport.abort()
        self._links.discard(link)
        link.task.cancel()
