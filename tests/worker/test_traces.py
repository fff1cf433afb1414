"""The spans of puts and runs: which there are, how they refer to each other, what they say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import pollwise
from pollwise import Job, NewJob, Worker
from pollwise.core.retry import Retry
from pollwise.errors import ConfigError, Snooze, UniqueConflict
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.tracing import spans
from tests.support.kit import CountedMemory, options, virtually
from tests.support.traces import Traces, header_of, id_of, links_of, parent_of, trace_of
from tests.worker.children import traced

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_run_has_a_link_to_its_put_and_each_retry_too(traces: Traces) -> None:
    seen: list[int] = []

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue("orders", clock=clock)
        worker = Worker(queue, options=options(), clock=clock)

        @worker.handle("ship", retry=Retry.fixed("1s", attempts=2))
        async def ship(job: Job) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if job.attempt == 1:
                raise ValueError("secret text")
            await queue.put(NewJob("bill"))

        @worker.handle("bill")
        def bill(job: Job) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            raise Snooze("1h")

        with traces.tracer.start_as_current_span("request"):
            await queue.put(NewJob("ship", {"to": "payload"}, key="customer-7"))
        async with worker.running():
            await clock.advance(5)

    virtually(main)
    sent, sent_bill = traces.named("send orders")
    first, second, bill = traces.named("process orders")
    assert parent_of(sent) == id_of(traces.one("request"))
    assert (sent.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert links_of(first) == links_of(second) == [id_of(sent)]
    assert first.parent is second.parent is None
    assert len({trace_of(each) for each in (sent, first, second)}) == 3
    assert parent_of(sent_bill) == id_of(second), "a put in a handler goes on with its trace"
    assert links_of(bill) == [id_of(sent_bill)]
    assert seen == [id_of(first), id_of(second), id_of(bill)]
    about = dict(first.attributes or {})
    assert about.pop("pollwise.wait") >= 0  # type: ignore[operator]
    assert about.pop("pollwise.key_hash") == spans.key_hash("customer-7")
    assert about == {
        "messaging.system": "pollwise",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": (sent.attributes or {})["messaging.message.id"],
        "pollwise.kind": "ship",
        "pollwise.attempt": 1,
        "error.type": "ValueError",
    }
    assert first.status.status_code is StatusCode.ERROR
    assert (second.attributes or {})["pollwise.attempt"] == 2
    assert second.status.status_code is bill.status.status_code is StatusCode.UNSET
    told = "".join(span.to_json() for span in (sent, first, second))
    assert not any(secret in told for secret in ("secret text", "payload", "customer-7"))
    assert sorted(set(traces.names())) == ["process orders", "request", "send orders"]


def test_a_run_is_a_child_of_its_put_if_asked_for(traces: Traces) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options=options(trace_context="parent"), clock=clock)
        worker.handle("ship")(lambda job: None)
        await queue.put(NewJob("ship"))
        async with worker.running():
            await clock.advance(5)

    virtually(main)
    sent, ran = traces.one("send default"), traces.one("process default")
    assert parent_of(ran) == id_of(sent)
    assert trace_of(ran) == trace_of(sent)
    assert links_of(ran) == []
    with pytest.raises(ConfigError, match="trace_context = 'child' must be 'link' or 'parent'"):
        options(trace_context="child")


def test_a_batch_has_one_span_with_links(traces: Traces, tmp_path: Path) -> None:
    async def main() -> list[Job]:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            await queue.migrate()
            own = NewJob("ship", headers={"traceparent": PARENT})
            await queue.put([NewJob("ship", 1), NewJob("ship", 2), own])
            await queue.put([own])
            return [each.job for each in await queue.claim("me", 9, 60)]

    jobs = asyncio.run(main())
    batch, passed_on = traces.named("send default")
    assert links_of(batch) == links_of(passed_on) == [0x00F067AA0BA902B7]
    assert (batch.kind, passed_on.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert (batch.attributes or {})["messaging.batch.message_count"] == 3
    mine = header_of(batch)
    assert sorted(job.headers["traceparent"] for job in jobs) == sorted([mine] * 2 + [PARENT] * 2)


def test_a_put_that_blocks_has_its_span(traces: Traces, tmp_path: Path) -> None:
    with pollwise.open_sync(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        queue.migrate()
        with traces.tracer.start_as_current_span("request") as request:
            [job_id] = queue.put(NewJob("ship", headers={"tenant": "eu"}))
        info = queue.get(job_id)
    assert info is not None
    sent = traces.one("send default")
    assert parent_of(sent) == request.get_span_context().span_id
    assert info.job.headers["tenant"] == "eu"
    assert f"{id_of(sent):016x}" in info.job.headers["traceparent"]


def test_a_failed_put_and_a_failed_settle_have_spans_but_an_empty_poll_has_none(
    traces: Traces,
) -> None:
    async def main(clock: VirtualClock) -> None:
        queue: Any = CountedMemory(clock=clock)
        worker = Worker(queue, options=options(), clock=clock)
        worker.handle("ship")(lambda job: None)
        async with worker.running():
            await clock.advance(60)
            assert traces.names() == []
            await queue.put(NewJob("ship", 1, unique="one"))
            with pytest.raises(UniqueConflict):
                await queue.put(NewJob("ship", 2, unique="one"))
            queue.failing = ("settle",)
            await clock.advance(1)
            queue.failing = ()
            await clock.advance(60)

    virtually(main)
    sent, failed = traces.named("send default")
    assert (failed.attributes or {})["error.type"] == "pollwise.errors.UniqueConflict"
    settles = traces.named("settle default")
    assert settles
    for each in settles:
        assert each.kind is SpanKind.CLIENT
        assert (each.attributes or {})["error.type"] == "pollwise.errors.StoreUnavailable"
        assert links_of(each) == [id_of(sent)]


def test_a_handler_in_a_process_goes_on_with_the_trace(traces: Traces) -> None:
    async def main() -> None:
        async with MemoryQueue() as queue:
            worker = Worker(queue, options=options(cpu_processes=1))
            worker.task(process=True)(traced.where)
            worker.handle("fail", process=True, retry=Retry.fixed("1s", attempts=1))(traced.fail)
            async with worker.running():
                [where] = await queue.put(NewJob("where", {}))
                found = await queue.result(where, timeout=240)
                [failing] = await queue.put(NewJob("fail"))
                await queue.wait([failing], timeout=240)
            ran, failed = traces.named("process default")
            assert found == f"{trace_of(ran):032x}-{id_of(ran):016x}"
            assert (failed.attributes or {})["error.type"] == "tests.worker.children.traced.Own"

    asyncio.run(main())


def test_a_provider_that_only_the_environment_names_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    spans._is_named.cache_clear()
    assert spans.tracer() is None
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    spans._is_named.cache_clear()
    try:
        assert spans.tracer() is not None
    finally:
        spans._is_named.cache_clear()


def test_without_a_provider_there_is_no_span_and_no_header() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        [job_id] = await queue.put(NewJob("ship"))
        info = await queue.get(job_id)
        assert info is not None
        assert info.job.headers == {}

    assert spans.tracer() is None
    virtually(main)
