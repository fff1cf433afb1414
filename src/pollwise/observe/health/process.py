"""Whether a process lives and can work, made from its events: for `/livez`, `/readyz` and systemd.

It lives unless its event loop is blocked for too long. It is ready while its polls succeed. Any
thread may ask, so that a blocked event loop can still be reported. Nothing here calls a store, and
nothing runs unless somebody asks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from pollwise.runtime.chores import trouble_of
from pollwise.runtime.events import (
    ChoreFailed,
    ChoreRecovered,
    Event,
    Events,
    FleetStarted,
    FleetStopped,
    FleetStopping,
    LoopBlocked,
    LoopResumed,
    PlacesFree,
    PlacesTaken,
    PollFailed,
    PollFinished,
    RelayResumed,
    RelayStandsBy,
    RelayStarted,
    RelayStopped,
    RelayStopping,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pollwise.runtime.redact import without_secrets_inside

#: After this many failed polls in a row, a process is not ready.
FAILED_POLLS = 3
#: A process whose event loop is blocked for this many seconds does not count as alive.
BLOCKED_LIMIT = 10.0
#: How long a question waits for a sign of life of the event loop, in seconds. Shorter than the
#: timeout of a probe: Kubernetes waits for 1 s.
SIGN_WITHIN = 0.5
#: The longest text of an error in a reason, in characters.
ERROR_MAX = 300

NOT_POLLED = "not polled yet"
STOPPING = "stopping"


class Blocked(NamedTuple):
    """An event loop gives no sign of life. by: the job or record that blocks it, if known."""

    seconds: float
    by: str = ""


class KnownHealth(ABC):
    """What can be asked about the health of one process, or of several.

    stopping: it finishes what runs, and is not ready any more.
    """

    def __init__(self) -> None:
        self.stopping: bool = False
        self._reported: list[str] | None = None
        self._on_change: list[Callable[[KnownHealth], None]] = []

    @abstractmethod
    def blocked(self) -> Blocked | None:
        """None if the event loop gives a sign of life now. Waits a moment for it."""

    @abstractmethod
    def _reasons(self) -> list[str]:
        """Why it cannot work now, unless it stops."""

    def reasons(self) -> list[str]:
        """As `not_ready`, as far as events say: without a question to the event loop."""
        return [STOPPING] if self.stopping else self._reasons()

    def not_ready(self) -> list[str]:
        """Why it cannot work now; empty if it can."""
        blocked = None if self.stopping else self.not_live()
        return [*([] if blocked is None else [blocked]), *self.reasons()]

    def not_live(self) -> str | None:
        """Why the process should be replaced: its event loop is blocked. None if it lives."""
        blocked = self.blocked()
        if blocked is None or blocked.seconds < BLOCKED_LIMIT:
            return None
        by = f" by {blocked.by}" if blocked.by else ""
        return f"the event loop has been blocked for {blocked.seconds:.0f} s{by}"

    def stop(self) -> None:
        """Not ready any more."""
        self.stopping = True
        self._report()

    def when_changed(self, call: Callable[[KnownHealth], None]) -> None:
        """Call this whenever the reasons change, in the event loop."""
        self._on_change.append(call)

    def _report(self) -> None:
        if not self._on_change:
            return
        reasons = self.reasons()
        if reasons != self._reported:
            self._reported = reasons
            for call in self._on_change:
                call(self)


class ProcessHealth(KnownHealth):
    """The health of what runs in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._asked: float | None = None  # when the sign of life was asked for that did not come
        self._signed = threading.Event()
        self._blocker: LoopBlocked | None = None
        # The rest is changed in the event loop, by source: workers may share the events.
        self._polled: set[str] = set()
        self._unpolled: set[str] = set()  # started, and not polled yet
        self._failing: dict[str, PollFailed] = {}
        self._taken: dict[str, PlacesTaken] = {}
        self._standing_by: dict[str, RelayStandsBy] = {}
        self._chores: dict[tuple[str, str], ChoreFailed] = {}
        self._react: dict[type[Event], Callable[[Any], object]] = {
            WorkerStarted: self._started,
            RelayStarted: self._started,
            FleetStarted: self._note_success,  # what a target answers says nothing about the fleet
            ChoreFailed: lambda event: self._chores.update({(event.source, event.chore): event}),
            ChoreRecovered: lambda event: self._chores.pop((event.source, event.chore), None),
            PollFinished: self._note_success,
            PollFailed: lambda event: self._failing.update({event.source: event}),
            PlacesTaken: lambda event: self._taken.update({event.source: event}),
            PlacesFree: lambda event: self._taken.pop(event.source, None),
            RelayStandsBy: lambda event: self._standing_by.update({event.source: event}),
            RelayResumed: lambda event: self._standing_by.pop(event.source, None),
            **dict.fromkeys((WorkerStopping, RelayStopping, FleetStopping), self._stops),
            **dict.fromkeys((WorkerStopped, RelayStopped, FleetStopped), self._stops),
        }

    def subscribe(self, bus: Events) -> Callable[[], None]:
        """Subscribe to events; returns a function that unsubscribes."""
        ends = [
            bus.subscribe(self, *self._react),
            bus.subscribe(self._loop_changed, LoopBlocked, LoopResumed),
        ]

        def unsubscribe() -> None:
            for end in ends:
                end()

        return unsubscribe

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop that must not be blocked. Before this call, the process is starting."""
        self._loop = loop

    def blocked(self) -> Blocked | None:
        loop = self._loop
        with self._lock:
            if loop is None or loop.is_closed():
                return None
            if self._asked is None:
                try:
                    loop.call_soon_threadsafe(self._sign)
                except RuntimeError:  # closed since
                    return None
                self._asked = time.monotonic()
                self._signed.clear()
        if self._signed.wait(SIGN_WITHIN):
            return None
        with self._lock:
            if self._asked is None:
                return None
            return Blocked(
                time.monotonic() - self._asked, self._blocker.work if self._blocker else ""
            )

    def _sign(self) -> None:
        with self._lock:
            self._asked = None
            self._signed.set()

    def _reasons(self) -> list[str]:
        reasons = [
            f"the last {each.failures} polls failed: {error_shown(each.error)}"
            for each in tuple(self._failing.values())
            if each.failures >= FAILED_POLLS
        ]
        trouble = [each for each in map(trouble_of, tuple(self._chores.values())) if each]
        reasons += map(error_shown, trouble)
        if not reasons and (self._unpolled or not self._polled):
            reasons.append(NOT_POLLED)
        reasons += [
            f"all places are occupied by {each.threads} threads of handlers that timed out"
            for each in tuple(self._taken.values())
        ]
        reasons += [
            f"stands by: the newer relay {each.newer} has handlers that this one lacks: "
            f"{', '.join(each.missing)}"
            for each in tuple(self._standing_by.values())
        ]
        return reasons

    # Events

    def __call__(self, event: Event) -> None:
        self._react[type(event)](event)
        self._report()

    def _started(self, event: Event) -> None:
        if event.source not in self._polled:
            self._unpolled.add(event.source)

    def _note_success(self, event: Event) -> None:
        self._polled.add(event.source)
        self._unpolled.discard(event.source)
        self._failing.pop(event.source, None)

    def _stops(self, _: Event) -> None:
        self.stopping = True

    def _loop_changed(self, event: LoopBlocked | LoopResumed) -> None:
        """What the watchdog of the executor noticed, in its thread."""
        self._blocker = event if isinstance(event, LoopBlocked) else None


def error_shown(text: str) -> str:
    """An error as a reason may show it: one short line without secrets."""
    line = " ".join(without_secrets_inside(text).split())
    return line if len(line) <= ERROR_MAX else f"{line[: ERROR_MAX - 1]}…"
