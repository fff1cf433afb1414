"""Sockets between processes of one machine, and options of connections."""

from __future__ import annotations

import select
import socket
from typing import Any

from pollwise.errors import ConfigError


def has_local_sockets() -> bool:
    """True if a socket can have a path of the file system; not in Python on Windows."""
    return hasattr(socket, "AF_UNIX")


def local_datagrams() -> socket.socket:
    """A socket that sends messages to paths."""
    _check()
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def local_datagram_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep the bounds of messages."""
    _check()
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


def _check() -> None:
    if not has_local_sockets():
        raise ConfigError("a local socket needs Linux or macOS; Python has none on this system")


def can_poll() -> bool:
    """True if a thread can wait for one socket whatever its number; not on Windows."""
    return hasattr(select, "poll")


def poller(number: int, *, writable: bool = False) -> Any:
    """A `select.poll` of one socket: until it can be read or, with `writable`, also written."""
    made = select.poll()
    made.register(number, select.POLLIN | (select.POLLOUT if writable else 0))
    return made


def keepalive(after: int, every: int, times: int) -> dict[int, int]:
    """The options that make the system notice a dead connection, as far as it has them.

    after, every: seconds of silence before the first question, and between questions. times: how
    many may stay without an answer.
    """
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # macOS
    wanted = {idle: after, "TCP_KEEPINTVL": every, "TCP_KEEPCNT": times}
    return {getattr(socket, name): n for name, n in wanted.items() if hasattr(socket, name)}
