"""Handlers of records: which functions receive which kinds, and how their failures are retried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.durations import Duration
from pollwise.errors import HandlerError
from pollwise.outbox.records import DEFAULT_LANE, PROGRESS_BYTES_MAX, Record
from pollwise.outbox.typed import takes_payload
from pollwise.runtime.executor.handlers import (
    Handler,
    Proceed,
    call_of,
    check_signature,
    handler_for,
    is_async,
    takes,
)
from pollwise.runtime.executor.threads import HandlerThreads
from pollwise.runtime.jobs import checked_name

#: How a failing handler is retried by default: for 11 to 15 minutes, so that a broker may be down
#: for ten.
RECORD_RETRY = Retry.exponential("2s", max_delay="60s", attempts=20)
#: The size of a handler's progress without its name and error, in bytes.
HANDLER_PROGRESS_BYTES = 100
#: The maximum number of kinds whose handlers are cached.
_KINDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """What a fallback receives: the record, and the error of the handler's last attempt."""

    record: Record
    error: str

    @property
    def kind(self) -> str:
        return self.record.kind


@dataclass(frozen=True, slots=True)
class RecordHandler:
    """A function for the records whose kind a pattern matches.

    name: the name under which its progress is stored; keep it when the function is renamed.
    fallback: called when the handler gives up; if it returns, the record counts as handled.
    lane: records go through each lane at its own pace.
    given: the functions as registered; those with an `aclose` are closed with the relay.
    """

    name: str
    patterns: tuple[str, ...]
    main: Handler
    fallback: Handler | None
    given: tuple[object, ...]
    lane: str = DEFAULT_LANE

    @property
    def retry(self) -> Retry:
        return self.main.retry

    @property
    def breaker(self) -> Breaker | None:
        return self.main.breaker


def check_patterns(patterns: Sequence[object]) -> None:
    """Refuse values that are not patterns, such as the function in `@outbox.handle`."""
    if not patterns or callable(patterns[0]):
        raise HandlerError("give a pattern: @outbox.handle('order.*'), or '*' for every record")
    for pattern in patterns:
        checked_name(pattern, "pattern", HandlerError)


def record_handler(
    patterns: Sequence[str],
    function: Callable[..., Any],
    *,
    name: str | None,
    retry: Retry | None,
    timeout: Duration | None,
    fallback: Callable[..., Any] | None,
    breaker: Breaker | None,
    lane: str = DEFAULT_LANE,
) -> RecordHandler:
    """Check a function and make a handler of it. A publisher has a breaker of its own."""
    breaker = breaker or getattr(function, "breaker", None)
    called = name or getattr(function, "name", None) or getattr(function, "__name__", None)
    call = takes_payload(str(called), function)
    main = handler_for(patterns[0], call, retry or RECORD_RETRY, timeout, breaker, "record")
    if called is None:
        raise HandlerError(f"{function!r} has no name; give one as in handle(…, name='publish')")
    checked_name(called, "the name of a handler", HandlerError)
    checked_name(lane, "lane", HandlerError)
    last = None if fallback is None else _fallback(patterns[0], fallback, timeout)
    return RecordHandler(
        str(called), tuple(dict.fromkeys(patterns)), main, last, (function, fallback), lane
    )


def _fallback(pattern: str, function: Callable[..., Any], timeout: Duration | None) -> Handler:
    """A fallback takes the record, or the record and the error."""
    try:
        two = takes(function, 2)
    except (TypeError, ValueError):
        two = False
    if not two:
        check_signature(pattern, function, "record")

    def call(failed: FailedRecord) -> Any:
        return function(failed.record, failed.error) if two else function(failed.record)

    made = handler_for(pattern, call, Retry.never(), timeout, None, "record")
    return Handler(pattern, call, not is_async(function), made.retry, made.timeout, None)


def matcher(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern: `*` matches any text, dots included.

    >>> bool(matcher("order.*").fullmatch("order.line.added"))
    True
    >>> bool(matcher("order.*").fullmatch("order"))
    False
    """
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


class RecordHandlers:
    """The handlers of an outbox, in the order they were registered."""

    def __init__(self) -> None:
        self.handlers: dict[str, RecordHandler] = {}
        self._patterns: dict[str, list[re.Pattern[str]]] = {}
        self._by_kind: dict[str, tuple[RecordHandler, ...]] = {}

    @property
    def lanes(self) -> set[str]:
        """The lanes of the handlers; empty if none names a lane."""
        lanes = {handler.lane for handler in self.handlers.values()}
        return set() if lanes <= {DEFAULT_LANE} else lanes

    def by_lane(self, kind: str) -> dict[str, list[str]]:
        """The names of the handlers of a kind, by lane."""
        lanes: dict[str, list[str]] = {}
        for handler in self.matching(kind):
            lanes.setdefault(handler.lane, []).append(handler.name)
        return lanes

    def add(self, handler: RecordHandler) -> None:
        names = (*self.handlers, handler.name)
        if sum(len(name.encode()) + HANDLER_PROGRESS_BYTES for name in names) > PROGRESS_BYTES_MAX:
            raise HandlerError(
                f"{len(names)} handlers are too many, or their names are too long: their progress "
                f"must fit into {PROGRESS_BYTES_MAX} bytes per record"
            )
        if handler.name in self.handlers:
            raise HandlerError(
                f"a handler named {handler.name!r} already exists; give this one another name: "
                "handle(…, name='…')"
            )
        self.handlers[handler.name] = handler
        self._patterns[handler.name] = [matcher(pattern) for pattern in handler.patterns]
        self._by_kind.clear()

    def matching(self, kind: str) -> tuple[RecordHandler, ...]:
        """The handlers of a kind, in order."""
        found = self._by_kind.get(kind)
        if found is None:
            if len(self._by_kind) >= _KINDS_MAX:  # writers may invent kinds without limit
                self._by_kind.clear()
            found = tuple(
                handler
                for name, handler in self.handlers.items()
                if any(pattern.fullmatch(kind) for pattern in self._patterns[name])
            )
            self._by_kind[kind] = found
        return found

    def named(self, names: Iterable[str]) -> tuple[RecordHandler, ...]:
        """The handlers with these names, as far as they exist."""
        return tuple(self.handlers[name] for name in names if name in self.handlers)

    def patterns(self) -> dict[str, tuple[str, ...]]:
        """The patterns of each handler, by name."""
        return {name: handler.patterns for name, handler in self.handlers.items()}

    def unmatched(self, kinds: Iterable[str]) -> list[tuple[str, str]]:
        """The handlers' names and patterns that match none of these kinds."""
        known = list(kinds)
        return [
            (name, pattern)
            for name, handler in self.handlers.items()
            for pattern in handler.patterns
            if not any(matcher(pattern).fullmatch(kind) for kind in known)
        ]

    def calls(
        self, threads: HandlerThreads, timeout: float | None
    ) -> dict[str, tuple[Proceed, Proceed | None]]:
        """Each handler and its fallback as awaitable calls, by the handler's name."""
        return {
            name: (
                call_of(handler.main, threads, timeout),
                None if handler.fallback is None else call_of(handler.fallback, threads, timeout),
            )
            for name, handler in self.handlers.items()
        }
