"""Trace context from the writer's span to the handler's: with OpenTelemetry itself."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from pollwise.runtime.tracing import w3c

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def provider() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    provider, spans = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider, spans
    provider.shutdown()


Traced = tuple[TracerProvider, InMemorySpanExporter]


def test_a_handlers_span_is_the_child_of_the_writers(provider: Traced) -> None:
    tracer = provider[0].get_tracer("test")
    with tracer.start_as_current_span("write") as writer:
        headers = w3c.current()
    assert w3c.current() == {}

    async def handle() -> None:
        with w3c.attached(headers):
            await asyncio.sleep(0)
            with tracer.start_as_current_span("handle"):
                # As the threads of handlers do.
                context = contextvars.copy_context()
                await asyncio.to_thread(context.run, in_thread)
        assert w3c.current() == {}

    def in_thread() -> None:
        tracer.start_span("thread").end()

    asyncio.run(handle())
    spans = {span.name: span for span in provider[1].get_finished_spans()}
    parent = spans["handle"].parent
    assert parent is not None
    assert parent.is_remote
    assert parent.span_id == writer.get_span_context().span_id
    assert {span.context.trace_id for span in spans.values()} == {parent.trace_id}
    assert spans["thread"].parent == spans["handle"].context


def test_handlers_that_run_at_once_do_not_mix_up_their_traces(provider: Traced) -> None:
    tracer = provider[0].get_tracer("test")

    async def handle(number: int) -> None:
        parent = f"00-{number:032x}-{number:016x}-01"
        with w3c.attached({"traceparent": parent}):
            await asyncio.sleep(0)
            with tracer.start_as_current_span(str(number)):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(handle(n) for n in range(1, 20)))

    asyncio.run(main())
    for span in provider[1].get_finished_spans():
        assert span.parent is not None
        assert span.context.trace_id == span.parent.span_id == int(span.name)


def test_a_span_that_is_not_sampled_stays_so() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    with provider.get_tracer("test").start_as_current_span("write"):
        headers = w3c.current()
    assert not int(headers["traceparent"][-2:], 16) & 1
    with w3c.attached(headers):
        assert not trace.get_current_span().get_span_context().trace_flags.sampled


def test_the_state_is_carried_along() -> None:
    state = "rojo=00f067aa0ba902b7,tenant@vendor=t61rcWkgMzE"
    with w3c.attached({"traceparent": PARENT, "tracestate": state}):
        assert w3c.current() == {"traceparent": PARENT, "tracestate": state}
    with w3c.attached({"traceparent": PARENT, "tracestate": "=broken"}):
        assert w3c.current() == {"traceparent": PARENT}


@pytest.mark.parametrize("headers", [{}, {"traceparent": "broken"}, {"tracestate": "a=1"}])
def test_headers_without_a_trace_change_nothing(headers: dict[str, str], provider: Traced) -> None:
    with provider[0].get_tracer("test").start_as_current_span("outer") as outer:
        with w3c.attached(headers):
            assert trace.get_current_span() is outer


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (PARENT, True),
        (PARENT[:-2] + "00", True),
        ("cc" + PARENT[2:], True),
        ("cc" + PARENT[2:] + "-what-comes-later", True),
        (PARENT + "-more", False),  # not in this version
        ("cc" + PARENT[2:] + ".more", False),
        ("ff" + PARENT[2:], False),
        (PARENT.upper(), False),
        (PARENT[:-1], False),
        (PARENT + "\n", False),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", False),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", False),
        ("", False),
        (None, False),
        (7, False),
    ],
)
def test_a_traceparent_is_what_w3c_says(text: object, valid: bool) -> None:
    assert w3c.is_traceparent(text) is valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a=1", True),
        ("a=1,b=2", True),
        ("a=1 , ,\tb=2", True),
        ("0tenant@sys=x y", True),
        (",".join(f"k{n}=1" for n in range(32)), True),
        (",".join(f"k{n}=1" for n in range(33)), False),
        ("a=1,a=2", False),
        ("A=1", False),
        ("0a=1", False),
        ("a=", False),
        ("a", False),
        ("a=ü", False),
        ("a=b=c", False),
        ("a=" + "x" * 257, False),
        ("", False),
        (None, False),
    ],
)
def test_a_tracestate_is_what_w3c_says(text: object, valid: bool) -> None:
    assert w3c.is_tracestate(text) is valid


def test_nothing_of_opentelemetry_is_imported_by_a_writer_without_it() -> None:
    code = (
        "import sys; from pollwise.runtime.tracing import w3c; assert w3c.current() == {};"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_context_in_headers_is_checked() -> None:
    headers: dict[str, object] = {"traceparent": PARENT, "tracestate": "a=1"}
    assert w3c.of({**headers, "tenant": "eu"}) == headers
    assert w3c.of({**headers, "tracestate": "a"}) == {"traceparent": PARENT}
    assert w3c.of({**headers, "traceparent": "x\0y"}) == w3c.of({"traceparent": 7}) == {}
