"""W3C trace context: from the span of a put, in the headers of its job or record, to the run.

OpenTelemetry's own W3C propagator writes and reads the headers, not the one that the program
configured, which may use another format. Without OpenTelemetry nothing happens here, and headers
pass as they are. A put never imports it: if the program has not, there can be no current span.

`pollwise.runtime.tracing.spans` makes the spans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"


class _OpenTelemetry(NamedTuple):
    propagator: Any
    context: Any
    trace: Any


def current(context: Any = None) -> dict[str, str]:
    """The trace context of the current span as headers; empty if there is no span.

    A span that is not sampled has a context too, and handlers must see that it is not.
    context: of OpenTelemetry, if another one than the current.
    """
    headers: dict[str, str] = {}
    installed = _opentelemetry() if "opentelemetry.trace" in sys.modules else None
    if installed is not None:
        installed.propagator.inject(headers, context)
    return headers


def is_traceparent(text: object) -> bool:
    """True if it is a valid `traceparent` of W3C trace context, of this version or a later one.

    >>> is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    True
    """
    installed = _opentelemetry()
    if not isinstance(text, str) or not text.isprintable() or installed is None:
        return False
    context = installed.propagator.extract({TRACEPARENT: text})
    return bool(installed.trace.get_current_span(context).get_span_context().is_valid)


def is_tracestate(text: object) -> bool:
    """True if it is a valid `tracestate` of W3C trace context."""
    installed = _opentelemetry()
    if not isinstance(text, str) or installed is None:
        return False
    return bool(installed.trace.TraceState.from_header([text]))


def of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace context in the headers of a record, as far as it is valid.

    A `tracestate` without a valid `traceparent` has no meaning.
    """
    found = {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
    if not found or _opentelemetry() is None:
        return found
    if not is_traceparent(found.get(TRACEPARENT)):
        return {}
    if TRACESTATE in found and not is_tracestate(found[TRACESTATE]):
        del found[TRACESTATE]
    return found


def extracted(headers: Mapping[str, str]) -> Any:
    """A context of OpenTelemetry with nothing but the trace context in the headers, if any."""
    installed = _opentelemetry()
    if installed is None:
        return None
    return installed.propagator.extract(headers, installed.context.Context())


@contextmanager
def attached(headers: Mapping[str, str]) -> Iterator[None]:
    """Within this, new spans are children of the span whose context the headers carry.

    Handlers' threads start with a copy of the context, so they see it too.
    """
    installed = _opentelemetry() if TRACEPARENT in headers else None
    if installed is None:
        yield
        return
    extracted = installed.propagator.extract(headers, installed.context.get_current())
    token = installed.context.attach(extracted)
    try:
        yield
    finally:
        installed.context.detach(token)


@cache
def _opentelemetry() -> _OpenTelemetry | None:
    try:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return None
    return _OpenTelemetry(TraceContextTextMapPropagator(), context, trace)
