"""W3C trace context: from the span of a put, in the headers of its job or record, to the run.

OpenTelemetry's own W3C propagator writes and reads the headers, not the one that the program
configured, which may use another format. Nothing here imports OpenTelemetry before the program has.

Headers come from anywhere, so they are checked here, also where OpenTelemetry is not installed.

`pollwise.runtime.tracing.spans` makes the spans.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

#: How many members a `tracestate` has at most.
_MEMBERS_MAX = 32
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MEMBER = re.compile(
    r"([a-z][_0-9a-z*/-]{0,255}|[0-9a-z][_0-9a-z*/-]{0,240}@[a-z][_0-9a-z*/-]{0,13})"
    r"=[ -+.-<>-~-]{0,255}[!-+.-<>-~-]"
)


def current(context: Any = None) -> dict[str, str]:
    """The trace context of the current span as headers; empty if there is no span.

    A span that is not sampled has a context too, and handlers must see that it is not.
    context: of OpenTelemetry, if another one than the current.
    """
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        _propagator().inject(headers, context)
    return headers


def is_traceparent(text: object) -> bool:
    """True if it is a valid `traceparent` of W3C trace context, of this version or a later one.

    >>> is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    True
    """
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        return False
    found = _PARENT.match(text)
    if found is None:
        return False
    more = text[found.end() :]
    return not more or (more[0] == "-" and not text.startswith("00"))


def is_tracestate(text: object) -> bool:
    """True if it is a valid `tracestate` of W3C trace context."""
    if not isinstance(text, str):
        return False
    members = [each.strip(" \t") for each in text.split(",")]
    found = [_MEMBER.fullmatch(each) for each in members if each]
    names = {each[1] for each in found if each is not None}
    return 0 < len(found) <= _MEMBERS_MAX and len(names) == len(found)


def of(headers: Mapping[str, Any]) -> dict[str, str]:
    """The trace context in the headers of a job or a record, as far as it is valid.

    A `tracestate` without a valid `traceparent` has no meaning.
    """
    parent, state = headers.get(TRACEPARENT), headers.get(TRACESTATE)
    if not is_traceparent(parent):
        return {}
    return {TRACEPARENT: parent, **({TRACESTATE: state} if is_tracestate(state) else {})}  # type: ignore[dict-item]


def extracted(headers: Mapping[str, str]) -> Any:
    """A context of OpenTelemetry with nothing but the trace context in the headers, if any."""
    empty = sys.modules["opentelemetry.context"].Context()
    return _propagator().extract(of(headers), empty)


@contextmanager
def attached(headers: Mapping[str, str]) -> Iterator[None]:
    """Within this, new spans are children of the span whose context the headers carry.

    Does nothing if the program does not use OpenTelemetry.
    """
    if not headers or "opentelemetry.trace" not in sys.modules:
        yield
        return
    context = sys.modules["opentelemetry.context"]
    token = context.attach(_propagator().extract(of(headers), context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
