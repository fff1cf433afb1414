"""Spans of OpenTelemetry for puts, runs and requests, by its semantic conventions for messaging.

There are none unless the program has configured a tracer provider: `tracer()` is the one check, and
it imports nothing. A span never holds a payload, a key or the text of an error.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from hashlib import blake2s
from typing import Any, Generic, Literal, TypeVar

from pollwise.errors import Cancelled, Snooze
from pollwise.runtime.jobs import MAX_HEADER_BYTES, NewJob
from pollwise.runtime.tracing import w3c
from pollwise.version import __version__

SYSTEM = "pollwise"
#: The version of the semantic conventions that names and attributes of spans follow.
CONVENTIONS = "https://opentelemetry.io/schemas/1.44.0"
#: The length of the hash of a key, in bytes.
KEY_HASH_BYTES = 6
#: How many links a span has at most.
LINKS_MAX = 128

#: How the span of a run refers to the span of the put. "link": it has a link to it, in a trace of
#: its own. "parent": it is its child, in one trace.
TraceContext = Literal["link", "parent"]
TRACE_CONTEXTS: tuple[TraceContext, ...] = ("link", "parent")

T = TypeVar("T")

_known: tuple[Any, Any] = (None, None)  # the last provider, and its tracer


def tracer() -> Any:
    """The tracer of the program's provider; None if it has configured none."""
    global _known
    trace = sys.modules.get("opentelemetry.trace")
    # `get_tracer_provider` takes 2 µs to find that there is none, which each put and run pays.
    if trace is None or (getattr(trace, "_TRACER_PROVIDER", trace) is None and not _is_named()):
        return None
    provider_of = getattr(trace, "get_tracer_provider", None)
    if provider_of is None:  # another thread is importing it
        return None
    provider, found = _known
    if (now := provider_of()) is not provider:
        off = isinstance(now, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
        found = None if off else now.get_tracer("pollwise", __version__, CONVENTIONS)
        _known = now, found
    return found


@cache
def _is_named() -> bool:
    """True if the environment names a provider: OpenTelemetry loads it when it is asked for one."""
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


def key_hash(key: str) -> str:
    """A short hash of a key: spans of one key can be found, but do not show it."""
    return blake2s(key.encode(), digest_size=KEY_HASH_BYTES).hexdigest()


class SendSpan(Generic[T]):
    """The producer span of one put, of one or more jobs or records.

    queue: the name of the queue or the outbox.
    headers: whether the store keeps headers, in which the context travels.
    add: returns a copy of a job or record with more headers.
    """

    def __init__(
        self,
        tracer: Any,
        queue: str,
        add: Callable[[T, Mapping[str, str]], T],
        *,
        headers: bool = True,
    ) -> None:
        self._tracer = tracer
        self._queue = queue
        self._add = add
        self._headers = headers
        self._span: Any = None

    def begin(self, items: list[T]) -> list[T]:
        """Begin the span; return the items with its context, where they have none of their own."""
        trace = sys.modules["opentelemetry.trace"]
        attributes = _about(self._queue, "send")
        if len(items) == 1:
            attributes |= _of_item(items[0])
        else:
            attributes["messaging.batch.message_count"] = len(items)
        own = [each for each in items if w3c.TRACEPARENT in _headers(each)]
        passed_on = len(own) == len(items)  # somebody else's span created them
        self._span = self._tracer.start_span(
            f"send {self._queue}",
            kind=trace.SpanKind.CLIENT if passed_on else trace.SpanKind.PRODUCER,
            attributes=attributes,
            links=_links(map(_headers, own)),
        )
        context = w3c.current(trace.set_span_in_context(self._span))
        if passed_on or not self._headers or not context:
            return items
        return [
            each if w3c.TRACEPARENT in _headers(each) else self._add(each, context)
            for each in items
        ]

    def end(self, ids: Sequence[str]) -> None:
        """End the span of a put that was done."""
        if self._span is not None:
            if len(ids) == 1:
                self._span.set_attribute("messaging.message.id", ids[0])
            self._span.end()

    def fail(self, error: BaseException) -> None:
        """End the span of a put that failed."""
        if self._span is not None:
            mark_failed(self._span, error)
            self._span.end()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Ends the span if the block raises."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def around(self, call: Callable[[], Any]) -> Any:
        """Call something that returns ids, or an awaitable of ids, and end the span after it."""
        with self.ended():
            made = call()
        if inspect.isawaitable(made):
            return self._awaited(made)
        self.end(made)
        return made

    async def _awaited(self, made: Any) -> Any:
        with self.ended():
            ids = await made
        self.end(ids)
        return ids


def send_span(tracer: Any, queue: str, *, headers: bool) -> SendSpan[NewJob]:
    """The span of a put of jobs."""
    return SendSpan(tracer, queue, with_headers, headers=headers)


def with_headers(job: NewJob, headers: Mapping[str, str]) -> NewJob:
    """A copy of a job with more headers; the job itself if they do not fit."""
    both = {**job.headers, **headers}
    text = json.dumps(both, ensure_ascii=False)
    if len(text.encode()) > MAX_HEADER_BYTES:
        return job
    more = copy(job)
    more.headers, more.encoded_headers = both, text
    return more


@contextmanager
def process_span(
    tracer: Any, queue: str, item: Any, attempt: int, wait: float, relation: TraceContext
) -> Iterator[Any]:
    """The consumer span of one run, current within the block.

    item: the job or the record. wait: how long it had been due, in seconds.
    relation: to the span of the put; see `TraceContext`.
    """
    parent = relation == "parent"
    trace, context = sys.modules["opentelemetry.trace"], sys.modules["opentelemetry.context"]
    attributes = _about(queue, "process") | _of_item(item)
    attributes |= {
        "messaging.message.id": item.id,
        "pollwise.attempt": attempt,
        "pollwise.wait": round(wait, 6),
    }
    links = _links([item.headers])
    span = tracer.start_span(
        f"process {queue}",
        # Not the context of the task: a worker may have been started within a span.
        context=w3c.extracted(item.headers) if parent else context.Context(),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=() if parent else links,
    )
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield span
    except BaseException as error:
        if not isinstance(error, (Snooze, Cancelled, asyncio.CancelledError)):
            mark_failed(span, error)
        raise
    finally:
        context.detach(token)
        span.end()


def settle_failed(
    queue: str, took: float, error: str, headers: Iterable[Mapping[str, str]], count: int
) -> None:
    """Record the span of a settle call that failed, or that lost leases; others have none.

    took: how long the call took, in seconds. error: the type of the error.
    count: how many claims it concerns; headers: of their jobs.
    """
    if (found := tracer()) is None:
        return
    trace = sys.modules["opentelemetry.trace"]
    now = time.time_ns()
    span = found.start_span(
        f"settle {queue}",
        kind=trace.SpanKind.CLIENT,
        attributes={**_about(queue, "settle"), "messaging.batch.message_count": count},
        links=_links(headers),
        start_time=now - int(took * 1e9),
    )
    _mark(span, error)
    span.end(now)


class RequestSpan:
    """The client span of an HTTP request.

    url: without secrets; None if it is not known to have none.
    """

    def __init__(self, tracer: Any, method: str, host: str, port: int, url: str | None) -> None:
        self._trace = sys.modules["opentelemetry.trace"]
        about = {"http.request.method": method, "server.address": host, "server.port": port}
        about |= {} if url is None else {"url.full": url}
        kind = self._trace.SpanKind.CLIENT
        self._span = tracer.start_span(method, kind=kind, attributes=about)

    def headers(self) -> dict[str, str]:
        """The headers with its context."""
        return w3c.current(self._trace.set_span_in_context(self._span))

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            _mark(self._span, str(status))

    def __enter__(self) -> RequestSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is not None:
            mark_failed(self._span, error)
        self._span.end()


def mark_failed(span: Any, error: BaseException) -> None:
    """Say in a span that it failed, and with which type of error; not its text."""
    _mark(span, type_of(error))


def type_of(error: BaseException) -> str:
    """The name of the class of an error, with its module; also of one in another process."""
    kind = type(error)
    name = getattr(error, "remote_type", f"{kind.__module__}.{kind.__qualname__}")
    return name.removeprefix("builtins.")


def _mark(span: Any, error: str) -> None:
    trace = sys.modules["opentelemetry.trace"]
    span.set_attribute("error.type", error)
    span.set_status(trace.StatusCode.ERROR)


def _about(queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _of_item(item: Any) -> dict[str, Any]:
    found = {"pollwise.kind": item.kind}
    if item.key is not None:
        found["pollwise.key_hash"] = key_hash(item.key)
    return found


def _headers(item: Any) -> Mapping[str, str]:
    found: Mapping[str, str] = item.headers
    return found


def _links(headers: Iterable[Mapping[str, str]]) -> list[Any]:
    """Links to the contexts in the headers of jobs or records, each once."""
    trace = sys.modules["opentelemetry.trace"]
    distinct = {each[w3c.TRACEPARENT]: each for each in headers if w3c.TRACEPARENT in each}
    spans = (
        trace.get_current_span(w3c.extracted(each)).get_span_context()
        for each in list(distinct.values())[:LINKS_MAX]
    )
    return [trace.Link(each) for each in spans if each.is_valid]
