"""What a handler logs carries its job: async, in a thread, in a process, and in an outbox."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import structlog
from opentelemetry import trace

from pollwise.observe import logs
from pollwise.outbox import Outbox
from pollwise.outbox.records import NewRecord
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.events import Event, action_of, all_events, log
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker

SHOP = logging.getLogger("shop")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What a handler with the format of the commands writes, for the logger "shop"."""
    handler = logs._handler("json", "%(message)s")
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    handler.setStream(stream)
    SHOP.addHandler(handler)
    SHOP.setLevel("INFO")
    yield stream
    SHOP.removeHandler(handler)
    SHOP.setLevel("NOTSET")


def said(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def in_process(job: Any) -> None:
    logging.getLogger("shop").warning("packed")


async def in_process_async(job: Any) -> None:
    logging.getLogger("shop").warning("packed")


def ran(function: Any, **options: Any) -> str:
    """Run one job with this handler; its id."""

    async def main() -> str:
        queue = MemoryQueue("mail")
        worker = Worker(queue)
        worker.handle("pack", **options)(function)
        (job,) = await queue.put([NewJob("pack", {"card": "4111"})])
        assert (await worker.run_once()).failed == 0
        return job

    return asyncio.run(main())


async def plain_async(job: Any) -> None:
    SHOP.info("packed")


def plain_thread(job: Any) -> None:
    SHOP.info("packed")


@pytest.mark.parametrize(
    ("function", "process"),
    [(plain_async, False), (plain_thread, False), (in_process, True), (in_process_async, True)],
)
def test_a_handlers_record_carries_its_job(
    function: Any, process: bool, stream: io.StringIO
) -> None:
    job = ran(function, process=process)
    SHOP.info("outside")
    inside, outside = said(stream)
    assert inside["message"] == "packed"
    carried = {name: inside[name] for name in logs.RUN_FIELDS if name in inside}
    assert carried == {"job": job, "queue": "mail", "kind": "pack", "attempt": 1}
    assert not set(logs.RUN_FIELDS) & set(outside)
    assert "4111" not in stream.getvalue()


def test_the_current_span_and_ones_own_fields(stream: io.StringIO) -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))
    with trace.use_span(span):
        SHOP.info("outside", extra={"kind": "my own"})
    (entry,) = said(stream)
    assert (entry["trace_id"], entry["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert entry["kind"] == "my own"


def test_text_has_the_fields_behind_the_message(stream: io.StringIO) -> None:
    SHOP.handlers[-1].setFormatter(logs.TextLines("%(levelname)s %(message)s"))
    job = ran(plain_async)
    assert stream.getvalue() == f"INFO packed job={job} queue=mail kind=pack attempt=1\n"


def test_a_record_of_an_outbox(stream: io.StringIO) -> None:
    seen: list[str] = []

    async def main() -> None:
        store = MemoryOutboxStore()
        outbox = Outbox(store)

        @outbox.handle("order.*")
        async def publish(record: Any) -> None:
            seen.append(record.id)
            SHOP.info("published")
            outbox.stop()

        await store.put([NewRecord("order.paid", {"card": "4111"}, key="alice")])
        await outbox.run()

    asyncio.run(main())
    (entry,) = said(stream)
    carried = {name: entry[name] for name in logs.RUN_FIELDS if name in entry}
    about = {"kind": "order.paid", "attempt": 1}
    assert carried == {"record": seen[0], "outbox": "default", **about}


def test_structlog() -> None:
    logger = structlog.wrap_logger(
        structlog.testing.CapturingLogger(),
        processors=[logs.add_run_fields, structlog.processors.JSONRenderer()],
    )

    async def pack(job: Any) -> None:
        logger.info("packed", kind="my own")

    job = ran(pack)
    logger.info("outside")
    inside, outside = (json.loads(call.args[0]) for call in logger._logger.calls)
    assert inside == {
        "event": "packed", "job": job, "queue": "mail", "kind": "my own", "attempt": 1,
    }  # fmt: skip
    assert outside == {"event": "outside"}


def test_a_format_of_ones_own() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("[%(job)s] %(message)s"))
    handler.addFilter(logs.RunFields())
    SHOP.addHandler(handler)
    SHOP.setLevel("INFO")
    try:
        job = ran(plain_thread)
        SHOP.info("outside")
    finally:
        SHOP.removeHandler(handler)
        SHOP.setLevel("NOTSET")
    assert stream.getvalue() == f"[{job}] packed\n[] outside\n"


@pytest.mark.parametrize("kind", all_events(), ids=lambda kind: kind.__name__)
def test_every_event_is_one_record_with_its_action(
    kind: type[Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("pollwise")
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level("DEBUG", "pollwise")
    values: dict[str, Any] = {each.name: "x" for each in fields(kind)}
    log(kind(**values))
    (record,) = caplog.records
    entry = json.loads(logs.JsonLines().format(record))
    assert entry["action"] == action_of(kind)
    assert set(values) <= set(entry)
    assert record.levelno == kind.level
