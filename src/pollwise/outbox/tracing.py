"""W3C trace context: from the span of the writer, along with the record, to the spans of handlers.

A writer imports nothing for it: where the program has not loaded OpenTelemetry, no span can be
current. The headers are written and read here, not by the program's propagator, which may be set to
another format.
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

_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-[ -~]*)?"
)
#: A list member: a key of one or two parts, and a value.
_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MEMBERS_MAX = 32


def current() -> dict[str, str]:
    """The trace context of the current span as headers; none where there is no span.

    A span that is not sampled has a context too: whoever follows it must know that.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    headers = {
        TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    }
    state = context.trace_state.to_header()
    if state and is_tracestate(state):
        headers[TRACESTATE] = state
    return headers


def is_traceparent(text: object) -> bool:
    """Is it a `traceparent` of W3C trace context, of this version or a later one?

    >>> is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    True
    """
    return _parsed(text) is not None


def is_tracestate(text: object) -> bool:
    """Is it a `tracestate` of W3C trace context?"""
    if not isinstance(text, str):
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    named = [member for member in members if member]
    keys = {member.partition("=")[0] for member in named}
    return (
        0 < len(named) <= _MEMBERS_MAX
        and len(keys) == len(named)
        and all(_MEMBER.fullmatch(member) for member in named)
    )


def of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace context among the headers of a record, as far as it is valid.

    By the rules, a `tracestate` without a valid `traceparent` is nothing.
    """
    parent = headers.get(TRACEPARENT)
    if not is_traceparent(parent):
        return {}
    found = {TRACEPARENT: str(parent)}
    state = headers.get(TRACESTATE)
    if is_tracestate(state):
        found[TRACESTATE] = str(state)
    return found


@contextmanager
def attached(headers: Mapping[str, str]) -> Iterator[None]:
    """Within this, new spans are children of the span whose context the headers carry.

    Changes nothing where the headers carry none, or OpenTelemetry is not installed. Threads that
    are started with a copy of the context, as those of handlers are, see it too.
    """
    parent = _parsed(headers.get(TRACEPARENT))
    installed = _opentelemetry() if parent else None
    if parent is None or installed is None:
        yield
        return
    trace, context = installed
    state = headers.get(TRACESTATE)
    remote = trace.SpanContext(
        trace_id=int(parent["trace"], 16),
        span_id=int(parent["span"], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(parent["flags"], 16)),
        trace_state=trace.TraceState.from_header([state]) if is_tracestate(state) else None,
    )
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(remote)))
    try:
        yield
    finally:
        context.detach(token)


@cache
def _opentelemetry() -> tuple[Any, Any] | None:
    try:
        from opentelemetry import context, trace
    except ImportError:
        return None
    return trace, context


def _parsed(text: object) -> re.Match[str] | None:
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if found and found["version"] == "00" and found["more"]:
        return None  # only later versions may say more
    return found
