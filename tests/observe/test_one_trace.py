"""One order in one trace: from a request through outbox, RabbitMQ and queue to an agent's command.

The spans are exported as in production: OTLP over HTTP, to a receiver in this test.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import aio_pika
import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pollwise import Job, NewJob, Worker
from pollwise.agent.folder import AgentFolder
from pollwise.agent.job import AgentJob, AgentRun
from pollwise.agent.link import ControllerLink
from pollwise.agent.options import AgentOptions
from pollwise.outbox import Outbox, OutboxRunOptions
from pollwise.outbox.publishers import RabbitPublisher
from pollwise.queues.http.client import ControllerClient, TokenSource
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import Clock
from tests.controller.farm import Farm, farm_on
from tests.support.brokers import RabbitMQ
from tests.support.daemons import PATIENCE
from tests.support.kit import options

#: A command of an agent that makes a span, as any program that reads TRACEPARENT.
COMMAND = """
import os, sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[1])))
parent = TraceContextTextMapPropagator().extract({"traceparent": os.environ["TRACEPARENT"]})
provider.get_tracer("command").start_span("print label", parent).end()
"""


@contextmanager
def receiver(spans: list[Span]) -> Iterator[str]:
    """A collector: keeps the spans that are sent to its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        finally:
            server.shutdown()


class Deaf(ControllerLink):
    """Takes logs, and forgets them."""

    async def log(self, job_id: str, offset: int, data: bytes) -> tuple[int, bool]:
        return offset + len(data), True


async def run_command(given: dict[str, Any], folder: Path, collector: str) -> None:
    """Run what a controller handed out as an agent does."""
    clock = Clock()
    link = Deaf(ControllerClient("http://controller", clock), TokenSource("none"), clock)
    command = [sys.executable, "-c", COMMAND, collector]
    chosen = AgentOptions("http://controller", command, folder=folder)
    root = AgentFolder(chosen.folder, "test")
    try:
        report = await AgentRun(AgentJob.of(given), chosen, root, link, clock).run()
        assert report is not None
        assert report["state"] == "done", report
    finally:
        root.close()


async def follow_an_order(farm: Farm, rabbitmq: RabbitMQ, folder: Path, collector: str) -> None:
    tracer = trace.get_tracer("shop")
    database = folder / "shop.db"
    name = f"orders-{uuid4()}"
    outbox = Outbox(
        f"sqlite:///{database}", options=OutboxRunOptions(signals=False, trace_context="parent")
    )
    await outbox.store.migrate()
    outbox.handle("*")(RabbitPublisher(rabbitmq.url(), exchange="", routing_key=name))
    app = FastAPI()

    @app.post("/orders")
    def order() -> dict[str, Any]:
        with tracer.start_as_current_span("place order"):
            connection = sqlite3.connect(database)
            with connection:
                connection.execute("BEGIN")
                outbox.put(connection, "order.placed", {"id": 17}, key="order-17")
            connection.close()
        return {}

    queue = MemoryQueue("shipping")
    worker = Worker(queue, options=options(trace_context="parent"))
    shipped = asyncio.Event()

    @worker.handle("ship")
    async def ship(job: Job) -> None:
        await farm.controller.put("label", job.payload)
        shipped.set()

    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
        await aio_pika.connect(rabbitmq.url()) as connection,
        asyncio.timeout(PATIENCE),
    ):
        channel = await connection.channel()
        bound = await channel.declare_queue(name, exclusive=True)
        assert (await client.post("/orders")).status_code == 200
        async with outbox.running(), bound.iterator() as messages:
            message = await anext(messages)
            await message.ack()
        found = {key: str(value) for key, value in message.headers.items()}
        context = TraceContextTextMapPropagator().extract(found)
        with tracer.start_as_current_span("consume", context):
            await queue.put(NewJob("ship", {"order": 17}))
        async with worker.running():
            await shipped.wait()
        agent = await farm.register()
        work = await agent.job()
        await run_command(work, folder / "agent", collector)
    await outbox.close()


def test_one_order_is_one_trace(
    rabbitmq: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[Span] = []

    async def main(collector: str) -> None:
        queue, clock = MemoryQueue("labels", keep="7d"), Clock()
        async with queue, farm_on(queue, clock, tmp_path) as farm:
            await follow_an_order(farm, rabbitmq, tmp_path, collector)

    with receiver(spans) as collector:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector)))
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
        asyncio.run(main(collector))
        provider.shutdown()
    by_name = {span.name: span for span in spans}
    last = by_name["print label"]
    path = [last]
    by_id = {span.span_id: span for span in spans}
    while path[-1].parent_span_id:
        path.append(by_id[path[-1].parent_span_id])
    expected = [
        "place order",
        "send outbox:default",
        "process outbox:default",
        "consume",
        "send shipping",
        "process shipping",
        "send labels",
        "print label",
    ]
    # FastAPI makes spans of its own around ours, in versions that can.
    assert [span.name for span in reversed(path) if span.name in expected] == expected
    assert {span.trace_id for span in path} == {last.trace_id}
