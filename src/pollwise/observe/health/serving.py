"""`--health-port` and systemd, for the commands that run until they are stopped.

A command with several processes answers for all of them, on one port: its supervisor asks each
process over a pair of sockets. It is ready when all are, and lives while all do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pollwise.observe.health.process import Blocked, KnownHealth, ProcessHealth
from pollwise.observe.health.server import QUESTION_MAX, HealthServer
from pollwise.observe.health.systemd import Notifier
from pollwise.platforms.sockets import local_datagram_pair
from pollwise.runtime.events import Events

logger = logging.getLogger("pollwise")

#: The variable with the file descriptor over which a supervisor asks this process.
ASKED = "_POLLWISE_HEALTH"
#: How long the processes have to answer, in seconds. Shorter than the timeout of a probe.
ANSWER_WITHIN = 0.8
STARTING = "starting"


@contextmanager
def serving_health(events: Events, port: int | None, host: str) -> Iterator[Callable[[], None]]:
    """Serve the health of what emits the events, within the block, if somebody wants to know.

    Yields a function to be called in the event loop to watch.
    """
    asked = os.environ.pop(ASKED, None)  # processes started by handlers must not see it
    supervisor = None if asked is None else socket.socket(fileno=int(asked))
    notifier = Notifier.from_environment()
    port = port if supervisor is None else None
    if port is None and notifier is None and supervisor is None:
        yield lambda: None
        return
    health = ProcessHealth()
    with ExitStack() as stack:
        stack.enter_context(_served(health, port, host, notifier, supervisor))
        stack.callback(health.subscribe(events))

        yield lambda: health.watch(asyncio.get_running_loop())


@contextmanager
def _served(
    health: KnownHealth,
    port: int | None,
    host: str,
    notifier: Notifier | None,
    supervisor: socket.socket | None = None,
) -> Iterator[None]:
    server = HealthServer(health, port, host, notifier, supervisor)
    if server.url:
        what = {"action": "health_served", "fields": {"url": server.url}}
        logger.info("health on %s/readyz", server.url, extra=what)
    try:
        yield
    finally:
        server.close()


class _Process:
    """One process, as its supervisor knows it. speaks: it has begun to answer."""

    def __init__(self, asks: socket.socket | None = None) -> None:
        self.asks = asks
        self.speaks = False
        self.reasons = [STARTING]
        self.blocked: Blocked | None = None
        self.asked: float | None = None  # when the question was sent that it did not answer
        self.answered = threading.Event()

    def ask(self, now: float) -> None:
        self.answered.clear()
        self.asked = self.asked or now
        with suppress(OSError, AttributeError):  # it does not read, or has just ended
            self.asks.send(b"?")  # type: ignore[union-attr]

    def hear(self) -> None:
        with suppress(OSError, AttributeError):
            said = json.loads(self.asks.recv(QUESTION_MAX))  # type: ignore[union-attr]
            self.speaks, self.reasons = True, said["reasons"]
            if "blocked" in said:
                self.blocked = None if said["blocked"] is None else Blocked(*said["blocked"])
                self.asked = None
                self.answered.set()

    def blocked_now(self, until: float) -> Blocked | None:
        """Wait for its answer. A process that gives none is blocked as well."""
        answered = self.answered.wait(max(until - time.monotonic(), 0.0))
        since = self.asked
        if answered or since is None:
            return self.blocked
        return Blocked(time.monotonic() - since)


class ProcessesHealth(KnownHealth):
    """The health of the processes of a supervisor."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._processes = {number: _Process() for number in range(count)}

    @classmethod
    @contextmanager
    def serving(cls, count: int, port: int | None, host: str) -> Iterator[ProcessesHealth | None]:
        """Serve the health of `count` processes within the block; None if nobody wants to know."""
        notifier = Notifier.from_environment()
        if port is None and notifier is None:
            yield None
            return
        health = cls(count)
        with _served(health, port, host, notifier):
            yield health

    @contextmanager
    def of(self, number: int) -> Iterator[socket.socket]:
        """A process lives within this block; yields the socket over which it is asked."""
        ours, theirs = local_datagram_pair()
        ours.setblocking(False)
        process = self._processes[number] = _Process(ours)

        def heard() -> None:
            process.hear()
            self._report()

        loop = asyncio.get_running_loop()
        loop.add_reader(ours, heard)
        self._report()
        try:
            yield theirs
        finally:
            self._processes[number] = _Process()
            process.answered.set()
            loop.remove_reader(ours)
            ours.close()
            self._report()

    def forget(self, number: int) -> None:
        """A process has ended and is not started again."""
        del self._processes[number]
        self._report()

    def blocked(self) -> Blocked | None:
        now = time.monotonic()
        asked = [each for each in list(self._processes.items()) if each[1].speaks]
        for _, each in asked:
            each.ask(now)
        found = [
            Blocked(blocked.seconds, f"process {number}{blocked.by and ', '}{blocked.by}")
            for number, each in asked
            if (blocked := each.blocked_now(now + ANSWER_WITHIN)) is not None
        ]
        return max(found, default=None)

    def _reasons(self) -> list[str]:
        return [
            f"process {number}: {reason}"
            for number, each in sorted(self._processes.items())
            for reason in each.reasons
        ]
