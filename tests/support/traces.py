"""Spans that a test looks at: a provider of OpenTelemetry with its exporter in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Traces:
    """The spans that the program's provider got."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans with this name that have ended, the first first."""
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self._spans.get_finished_spans()]


def header_of(span: ReadableSpan) -> str:
    """Its `traceparent`."""
    assert span.context is not None
    flags = span.context.trace_flags
    return f"00-{trace_of(span):032x}-{id_of(span):016x}-{flags:02x}"


def links_of(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it has links to."""
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.trace_id
    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id
