"""The metrics of a controller in OpenTelemetry: counted when a reader asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pollwise import Controller
from pollwise.controller import measuring
from pollwise.observe.otel import OtelSink
from pollwise.queues.views import Stats
from pollwise.runtime.events import ChoreFailed
from tests.observe.test_otel import read
from tests.support.kit import Seen

READY = ("pollwise.controller.jobs", frozenset({("queue", "agents"), ("state", "ready")}))


def test_gauges_are_counted_when_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "COUNTS_LAST", 0.0)

    async def main() -> None:
        seen, reader = Seen(), InMemoryMetricReader()
        store = f"sqlite:///{tmp_path}/jobs.db"
        async with Controller(store, events=seen.events) as controller:
            controller.send_metrics(OtelSink(MeterProvider([reader])))
            await controller.put("build")
            assert READY not in read(reader)  # in the event loop's own thread nothing is counted
            found = await asyncio.to_thread(read, reader)
            assert found[READY].value == 1
            online = frozenset({("queue", "agents"), ("state", "online")})
            assert found["pollwise.controller.workers", online].value == 0
            await controller.put("build")
            assert (await asyncio.to_thread(read, reader))[READY].value == 2
            assert read(reader)[READY].value == 2

            async def broken(most: int = 0) -> Stats:
                raise OSError("the store is away")

            await controller.put("build")
            with monkeypatch.context() as patched:
                patched.setattr(controller.queue, "stats", broken)
                for _ in range(2):
                    assert (await asyncio.to_thread(read, reader))[READY].value == 2
            [failed] = seen.of(ChoreFailed)
            assert "the store is away" in failed.error
            assert (await asyncio.to_thread(read, reader))[READY].value == 3
        await asyncio.to_thread(read, reader)  # after its end, nothing fails
        assert len(seen.of(ChoreFailed)) <= 2

    asyncio.run(main())


def test_after_the_event_loop_a_reader_gets_the_last_counts(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()

    async def main() -> None:
        async with Controller(f"sqlite:///{tmp_path}/jobs.db") as controller:
            controller.send_metrics(OtelSink(MeterProvider([reader])))
            await controller.put("build")
            await asyncio.to_thread(read, reader)

    asyncio.run(main())
    assert read(reader)[READY].value == 1
