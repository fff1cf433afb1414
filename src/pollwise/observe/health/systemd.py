"""Messages to systemd from a service with `Type=notify`: ready, stopping, alive, and a short text.

They are datagrams to the socket that `NOTIFY_SOCKET` names. Without that variable nothing happens.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import suppress

from pollwise.observe.health.process import KnownHealth
from pollwise.platforms.sockets import has_local_sockets, local_datagrams

SOCKET, WATCHDOG, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
#: A sign of life is sent at this share of the time after which systemd ends the service, so that
#: a busy event loop may miss one.
SHARE = 0.25
#: The longest status, in characters.
STATUS_MAX = 200


class Notifier:
    """Sends messages to the socket of systemd.

    every: seconds between two signs of life; None if systemd asked for none.
    """

    def __init__(self, address: str, every: float | None = None) -> None:
        # An abstract socket is written with an @.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = local_datagrams()
        self._socket.setblocking(False)
        self._ready = False
        self.every = every

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Notifier | None:
        """The notifier that the environment asks for; None without NOTIFY_SOCKET.

        The variables are removed: programs that handlers start must not speak for the service.
        """
        address, microseconds, pid = (
            environ.pop(name, None) for name in (SOCKET, WATCHDOG, WATCHDOG_PID)
        )
        if not address or address[0] not in "/@" or not has_local_sockets():
            return None
        every = None
        mine = pid is None or pid == str(os.getpid())
        if mine and microseconds is not None and microseconds.isdecimal() and int(microseconds):
            every = int(microseconds) / 1e6 * SHARE
        return cls(address, every)

    def send(self, *lines: str) -> None:
        """Send a message. A socket that is full or gone must not disturb the service."""
        with suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)

    def changed(self, health: KnownHealth) -> None:
        """Say what the health of this process is now."""
        reasons = health.reasons()
        lines = [_status(f"not ready: {'; '.join(reasons)}" if reasons else "polling")]
        if health.stopping:
            lines = ["STOPPING=1", _status("stopping")]
        elif not reasons and not self._ready:
            self._ready = True
            lines.insert(0, "READY=1")
        self.send(*lines)

    def alive(self) -> None:
        self.send("WATCHDOG=1")

    def close(self) -> None:
        self._socket.close()


def _status(text: str) -> str:
    line = " ".join(text.split())
    return f"STATUS={line if len(line) <= STATUS_MAX else line[: STATUS_MAX - 1] + '…'}"
