"""Connections to a Redis server: one call at a time each, with a time limit and clear errors.

This uses the connections of redis-py but not its client. A client that repeats a call on its own
might put a job twice, so it is decided here what is repeated, and when. Commands are packed with
one join, where redis-py copies each argument. Measured (benchmarks/wire.py): a command with 400
arguments is 2 times as fast as with redis-py's client, and one with few is as fast.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import redis.asyncio.connection as wire
from redis import exceptions as trouble

from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.platforms.sockets import keepalive
from pollwise.runtime.clock import Clock
from pollwise.runtime.home import Home, keep_for_parent, watch_forks
from pollwise.runtime.redact import HIDDEN
from pollwise.runtime.store import CONNECT_WITHIN
from pollwise.storage.redis.scripts import Script

#: The maximum number of open connections of one queue handle.
CONNECTIONS_MAX = 8
#: How often a call follows a cluster to the node that has the queue.
REDIRECTS_MAX = 3
#: After this many idle seconds the kernel checks that the other side is still there.
KEEPALIVE_AFTER = 60

NO_TLS = "The server may not use TLS there; use its TLS port, or redis:// without TLS."

_SCHEMES = ("redis", "rediss", "unix", "redis+unix")


class ConnectionLost(StoreUnavailable):
    """The connection was lost during a call, so its effect is unknown."""


class RedisAddress:
    """The address of a server, read from a URL; prints without credentials.

    prefix: the beginning of all keys, for advice.
    """

    def __init__(self, url: str, prefix: str = "pollwise") -> None:
        self.prefix = prefix
        scheme = url.partition("://")[0] if isinstance(url, str) and "://" in url else ""
        if scheme not in _SCHEMES:
            raise ConfigError(
                f"a Redis URL begins with one of {', '.join(f'{s}://' for s in _SCHEMES)}; "
                "give one like redis://localhost:6379/0"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # its message may contain the password
            raise ConfigError(
                "the Redis URL cannot be read; write redis://user:password@host:6379/0, with "
                "special characters of the password as %XX"
            ) from None
        if parts.query or parts.fragment:
            raise ConfigError(
                "a Redis URL given to RedisQueue takes no '?' and no '#'; give options as "
                "arguments, or use pollwise.open(url)"
            )
        self.options: dict[str, Any] = {
            "db": 0,
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "protocol": 2,
            # Time limits are ours, and redis-py must not repeat or check anything.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "health_check_interval": 0,
        }
        self._scheme = scheme
        self._class: type[wire.AbstractConnection]
        if scheme in ("redis", "rediss"):
            self._class = wire.SSLConnection if scheme == "rediss" else wire.Connection
            self.options["host"] = parts.hostname or "localhost"
            self.options["port"] = port or 6379
            self.options["socket_keepalive"] = True
            self.options["socket_keepalive_options"] = keepalive(KEEPALIVE_AFTER, 15, 4)
            self.options["db"] = _database(parts.path)
        else:
            self._class = wire.UnixDomainSocketConnection
            if len(parts.path) < 2:
                raise ConfigError("the URL does not name a socket; write unix:///run/redis.sock")
            self.options["path"] = unquote(parts.path)

    @property
    def db(self) -> int:
        return int(self.options["db"])

    @property
    def tls(self) -> bool:
        return self._scheme == "rediss"

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for the same server and user, with any database."""
        who = f"{self.options['username']}:{self.options['password']}"
        return self._scheme, self._place, who

    @property
    def _place(self) -> str:
        if "path" in self.options:
            return str(self.options["path"])
        host = str(self.options["host"])
        return f"{f'[{host}]' if ':' in host else host}:{self.options['port']}"

    def move(self, host: str, port: int) -> None:
        """Use another node, because the cluster has the queue there."""
        self.options["host"] = host or self.options["host"]
        self.options["port"] = port

    def connection(self, **changes: Any) -> wire.AbstractConnection:
        return self._class(**(self.options | changes))

    def __str__(self) -> str:
        if "path" in self.options:
            return f"{self._scheme}://{self._place}"
        return f"{self._scheme}://{self._place}/{self.db}"


def _database(path: str) -> int:
    text = unquote(path).strip("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        shown = HIDDEN if "@" in text else repr(text)  # after a '/' in a password
        raise ConfigError(
            f"{shown} is not a Redis database; it is a number, as 0 in redis://localhost:6379/0"
        )
    return int(text)


class Connections:
    """The connections of one queue handle, opened as calls need them.

    check: called before the first call; if it raises, so does every call.
    """

    def __init__(
        self,
        address: RedisAddress,
        clock: Clock,
        timeout: float,
        check: Callable[[Connections], Awaitable[None]],
    ) -> None:
        self.address = address
        self.closed: bool = False
        self._clock = clock
        self._timeout = timeout
        self._check = check
        self._checked = False
        self._reached = False
        self._home = Home()
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[wire.AbstractConnection] = []
        watch_forks(self)

    async def run(
        self, script: Script, key: str, *args: bytes | str | int, within: float | None = None
    ) -> Any:
        """Run a script within the time limit. key: the tag of all its keys.

        within: a limit below the general timeout.
        """
        limit = self._timeout if within is None else min(within, self._timeout)
        if self.closed:
            raise StoreError(f"the queue at {self.address} is closed; open it again")
        try:
            with self._clock.outside():
                async with asyncio.timeout(limit):
                    if not self._checked:
                        await self._check(self)
                        self._checked = True
                    return await self.run_script(script, key, *args)
        except TimeoutError:
            if not self._reached and self.address.tls:
                # A server without TLS waits for the end of what looks like a command.
                raise StoreUnavailable(
                    f"{self.address} did not answer within {self._timeout:g} s. {NO_TLS}"
                ) from None
            raise StoreUnavailable(
                f"{self.address} did not answer within {limit:g} s, so the call may or may "
                "not have been carried out. Check its load, or raise `timeout`."
            ) from None

    async def send(self, *command: bytes | str | int, within: float) -> Any:
        """Send one command within this many seconds, without the check before the first call."""
        limit = min(within, self._timeout)
        try:
            with self._clock.outside():
                async with asyncio.timeout(limit):
                    return await self.command(*command)
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.address} did not answer within {limit:g} s; check its load"
            ) from None

    async def run_script(self, script: Script, key: str, *args: bytes | str | int) -> Any:
        try:
            return await self.command("EVALSHA", script.sha, 1, key, *args)
        except _ScriptMissing:
            return await self.command("EVAL", script.text, 1, key, *args)

    async def command(self, *command: bytes | str | int) -> Any:
        """Send one command and follow a cluster to the node that has the queue."""
        for _ in range(REDIRECTS_MAX):
            try:
                return await self._on_a_connection(command)
            except _MovedToNode as moved:
                self.address.move(moved.host, moved.port)
                await self._drop_all()
        raise StoreUnavailable(
            f"{self.address}: the cluster keeps redirecting to other nodes; check its state"
        )

    async def _on_a_connection(self, command: tuple[bytes | str | int, ...]) -> Any:
        self._come_home()
        async with self._places:
            connection = await self._a_connection()
            sent = False
            try:
                if not connection.is_connected:
                    await self._open(connection)
                sent = self._reached = True
                await connection.send_packed_command(pack(command))
                answer = await connection.read_response()
            except trouble.ResponseError as error:
                if sent:
                    self._idle.append(connection)
                else:
                    await connection.disconnect(nowait=True)
                raise explained(error, self.address, sent) from error
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, (trouble.RedisError, OSError)):
                    await self._drop_all()  # the others are likely broken, too
                    raise explained(error, self.address, sent) from error
                raise
            self._idle.append(connection)
            return answer

    async def _open(self, connection: wire.AbstractConnection) -> None:
        limit = asyncio.timeout(CONNECT_WITHIN)
        try:
            async with limit:
                await connection.connect()  # type: ignore[no-untyped-call]
        except TimeoutError:
            if not limit.expired():
                raise
            advice = NO_TLS if self.address.tls else "Check the network, and that the server runs."
            raise StoreUnavailable(
                f"{self.address} opened no connection within {CONNECT_WITHIN:g} s. {advice}"
            ) from None

    async def _a_connection(self) -> wire.AbstractConnection:
        """An open connection, as far as can be known without asking, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            reader: asyncio.StreamReader | None = getattr(connection, "_reader", None)
            if reader is not None and not reader.at_eof() and reader.exception() is None:
                return connection
            await connection.disconnect(nowait=True)
        return self.address.connection()

    def _come_home(self) -> None:
        """Connections belong to an event loop; those of an earlier one are dropped."""
        if self._home.enter(f"the queue at {self.address}"):
            self._places = asyncio.Semaphore(CONNECTIONS_MAX)
            self._idle.clear()

    def after_fork(self) -> None:
        keep_for_parent(*self._idle)
        self._idle = []

    async def close(self) -> None:
        self.closed = True
        if self._home.here():
            await self._drop_all()
        self._idle.clear()  # those of an earlier event loop cannot be closed

    async def _drop_all(self) -> None:
        while self._idle:
            with suppress(trouble.RedisError, OSError):
                await self._idle.pop().disconnect(nowait=True)


class _ScriptMissing(StoreError):
    """The server does not know the script (any more)."""


class _MovedToNode(StoreError):
    """A cluster has the queue at another node."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        super().__init__(f"moved to {host}:{port}")


def explained(error: BaseException, address: RedisAddress, sent: bool = True) -> StoreError:
    """An error of redis-py as ours, with what to do about it."""
    text = _SCRIPT.sub("", str(error)).strip().rstrip(".") or type(error).__name__
    if isinstance(error, trouble.NoScriptError):
        return _ScriptMissing(text)
    if isinstance(error, trouble.MovedError):
        return _MovedToNode(error.host, error.port)
    if moved := re.match(r"MOVED \d+ (\S*):(\d+)", text):
        return _MovedToNode(moved[1], int(moved[2]))
    for kind, advices in _EXPLANATIONS.items():
        for pattern, advice in advices.items():
            if re.search(pattern, f"{type(error).__name__} {text}"):
                return kind(f"{address}: {text}. {advice.replace('PREFIX', address.prefix)}")
    if isinstance(error, (trouble.ConnectionError, trouble.TimeoutError, OSError)):
        if sent:
            return ConnectionLost(
                f"{address}: the connection was lost during a call ({text}), which may or may not "
                "have been carried out"
            )
        return StoreUnavailable(
            f"{address} cannot be reached: {text}. Check that the server runs, and the host."
        )
    return StoreError(f"{address}: {text} ({type(error).__name__})")


#: The position of an error in our script, which does not help the reader.
_SCRIPT = re.compile(
    r"\s*script:( \S+,)? on @\w+:\d+|^Error running script \(call to \S+\): |@user_script: ?\d+: -?"
)

#: Errors are recognised by words in their text, or by redis-py's class.
_EXPLANATIONS: dict[type[StoreError], dict[str, str]] = {
    StoreError: {
        # Without a full stop, which would look like part of the pattern.
        r"NOPERM|NoPermission|no permissions":
            "Allow this user what the scripts do: +@all -@dangerous +info ~{PREFIX:* &{PREFIX:*",
        r"NOAUTH|Authentication required":
            "The server needs a password: redis://:password@host:6379/0.",
        r"WRONGPASS|Authentication(Error|Wrong)|invalid password|any password|no password is set":
            "Correct the user and the password in the URL.",
        r"DB index|invalid first argument|SELECT is not allowed|Invalid Database":
            "Correct the database's number, the last part of the URL.",
        r"unknown command|[Uu]nknown Redis command":
            "Pollwise needs Redis 6.2 or newer, with scripts (EVALSHA) allowed.",
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|record layer failure|wrong version number":
            NO_TLS,
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed":
            "Use rediss:// with a certificate that this machine trusts, or redis:// without TLS.",
    },
    SchemaError: {
        r"WRONGTYPE":
            "These keys belong to another program; choose another `prefix`.",
    },
    StoreUnavailable: {
        r"BusyLoadingError|\bLOADING\b":
            "The server is loading its data from disk; wait until it is done.",
        r"READONLY|ReadOnlyError|read only replica":
            "This server is a replica; name the primary, or wait for the failover to end.",
        r"\bOOM\b|OutOfMemoryError":
            "The server's memory is full; raise maxmemory or work off the queue.",
        r"MISCONF|No space left":
            "The server cannot write to its disk; free some space.",
        r"MASTERDOWN|MasterDown":
            "The primary is down; wait for a failover.",
        r"CLUSTERDOWN|ClusterDown|TRYAGAIN|TryAgain|AskError|\bASK \d":
            "The cluster is being rearranged; check its state if this lasts.",
        r"\bBUSY\b|NOREPLICAS|max number of clients":
            "The server is busy; this may pass.",
    },
}  # fmt: skip


def pack(command: tuple[bytes | str | int, ...]) -> list[bytes]:
    """A command in the wire format, by one join; redis-py copies each argument."""
    return [b"".join(_parts(command))]


def _parts(command: tuple[bytes | str | int, ...]) -> Iterator[bytes]:
    yield b"*%d\r\n" % len(command)
    for part in command:
        data = part if isinstance(part, bytes) else str(part).encode()
        yield b"$%d\r\n%b\r\n" % (len(data), data)
