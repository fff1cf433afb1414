"""The health of a process, made from its events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pollwise.observe.health import process as module
from pollwise.observe.health.process import (
    ERROR_MAX,
    NOT_POLLED,
    STOPPING,
    KnownHealth,
    ProcessHealth,
)
from pollwise.runtime.events import (
    ChoreFailed,
    ChoreRecovered,
    Event,
    Events,
    FleetStarted,
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
    RelayStopping,
    WorkerStarted,
    WorkerStopping,
)


def polled(source: str = "mail") -> PollFinished:
    return PollFinished(source, 0, 10, 0.01, 1.0, 1.0, 0.0, False)


def started(source: str = "mail") -> WorkerStarted:
    return WorkerStarted(source, "w", ("greet",), 4, "adaptive")


def failed(failures: int, error: str = "OSError: gone", source: str = "mail") -> PollFailed:
    return PollFailed(source, error, failures, 1.0)


def after(*events: Event) -> list[str]:
    """Why a process with these events is not ready."""
    health, bus = ProcessHealth(), Events(quiet=True)
    health.subscribe(bus)
    for each in events:
        bus.emit(each)
    return health.not_ready()


def chore(failures: int, *, needed: bool = True) -> ChoreFailed:
    return ChoreFailed("fleet", "renew", "OSError: gone", failures, needed)


FLEET = FleetStarted("fleet", 3, 10, "freshness", None)
STANDS_BY = RelayStandsBy("outbox:a", "r", "newer", ("mail", "log"))
RELAY = RelayStarted("outbox:a", "r", ("mail",), 4, "batch-fill")


@pytest.mark.parametrize(
    ("events", "reasons"),
    [
        ([], [NOT_POLLED]),
        ([started()], [NOT_POLLED]),
        ([started(), polled()], []),
        ([polled(), started()], []),
        ([started(), started("other"), polled()], [NOT_POLLED]),
        ([polled(), failed(1), failed(2)], []),
        ([failed(1), failed(2)], [NOT_POLLED]),
        ([polled(), failed(3)], ["the last 3 polls failed: OSError: gone"]),
        ([failed(7)], ["the last 7 polls failed: OSError: gone"]),
        ([polled(), failed(3), polled()], []),
        ([polled(), failed(3), polled("other")], ["the last 3 polls failed: OSError: gone"]),
        (
            [polled(), PlacesTaken("mail", 4)],
            ["all places are occupied by 4 threads of handlers that timed out"],
        ),
        ([polled(), PlacesTaken("mail", 4), PlacesFree("mail", 3)], []),
        (
            [RELAY, polled("outbox:a"), STANDS_BY],
            ["stands by: the newer relay newer has handlers that this one lacks: mail, log"],
        ),
        ([RELAY, polled("outbox:a"), STANDS_BY, RelayResumed("outbox:a", "r")], []),
        ([FLEET], []),
        ([FLEET, chore(2)], []),
        ([FLEET, chore(3)], ["could not renew 3 times in a row: OSError: gone"]),
        ([FLEET, chore(3), ChoreRecovered("fleet", "renew", 3)], []),
        ([FLEET, chore(3, needed=False)], []),
        ([polled(), failed(3), WorkerStopping("mail", "w", 2, 30.0)], [STOPPING]),
        ([polled("outbox:a"), RelayStopping("outbox:a", "r", 2, 30.0)], [STOPPING]),
        ([FleetStarted("f", 3, 10, "x", None), FleetStopping("f", 2, 5.0)], [STOPPING]),
    ],
)
def test_why_it_is_not_ready(events: list[Event], reasons: list[str]) -> None:
    assert after(*events) == reasons


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("cannot reach redis://:hunter2@cache:6379/0", "cannot reach redis://:***@cache:6379/0"),
        ("postgresql://app:hunter2@db/shop is down", "postgresql://app:***@db/shop is down"),
        ("host=db password='hunter2 b' is down", "host=db password=*** is down"),
        ("GET https://x/q?token=hunter2&a=1 failed", "GET https://x/q?token=*** failed"),
        ("two\n\tlines", "two lines"),
    ],
)
def test_a_reason_is_one_line_without_secrets(error: str, shown: str) -> None:
    assert after(failed(3, error)) == [f"the last 3 polls failed: {shown}"]


def test_a_reason_is_short() -> None:
    (reason,) = after(failed(3, "x" * 10_000))
    assert len(reason) < ERROR_MAX + 50
    assert reason.endswith("x…")


def test_changes_are_told_once() -> None:
    health, bus, told = ProcessHealth(), Events(quiet=True), list[list[str]]()
    end = health.subscribe(bus)
    health.when_changed(lambda each: told.append(each.reasons()))
    for event in (started(), started(), polled(), polled(), failed(3), polled()):
        bus.emit(event)
    down = "the last 3 polls failed: OSError: gone"
    assert told == [[NOT_POLLED], [], [down], []]
    health.stop()
    assert told[-1] == [STOPPING]
    end()
    assert not bus.wants(PollFinished)


@contextmanager
def running_loop(health: ProcessHealth) -> Iterator[asyncio.AbstractEventLoop]:
    """A real event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    health.watch(loop)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_blocked_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    health, bus, go = ProcessHealth(), Events(quiet=True), threading.Event()
    health.subscribe(bus)
    bus.emit(polled())
    assert health.not_live() is None, "it is starting"
    with running_loop(health) as loop:
        assert health.blocked() is None
        monkeypatch.setattr(module, "SIGN_WITHIN", 0.05)
        loop.call_soon_threadsafe(go.wait)
        first = health.blocked()
        assert first is not None
        assert health.not_live() is None, "only for a moment so far"
        bus.emit(LoopBlocked("mail", "job 7", 0.1))
        second = health.blocked()
        assert second is not None
        assert (second.seconds > first.seconds, second.by) == (True, "job 7")
        monkeypatch.setattr(module, "BLOCKED_LIMIT", 0.0)
        said = "the event loop has been blocked for 0 s by job 7"
        assert health.not_live() == said
        assert health.not_ready() == [said]
        go.set()
        monkeypatch.setattr(module, "SIGN_WITHIN", 60.0)
        assert health.not_live() is None
        assert health.not_ready() == []
        bus.emit(LoopResumed("mail", "job 7", 0.1))
        go.clear()
        monkeypatch.setattr(module, "SIGN_WITHIN", 0.05)
        loop.call_soon_threadsafe(go.wait)
        assert health.not_live() == "the event loop has been blocked for 0 s"
        go.set()
    assert health.blocked() is None, "it is closed"


def test_stopping_counts_more_than_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownHealth, "not_live", lambda _: "blocked")
    health = ProcessHealth()
    assert health.not_ready() == ["blocked", NOT_POLLED]
    health.stop()
    assert health.not_ready() == [STOPPING]
