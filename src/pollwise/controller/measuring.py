"""The metrics of a controller: jobs, workers and held polls are counted when a sink asks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from pollwise.runtime.events import ChoreFailed, ControllerCounted
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.jobs import STATES

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.observe.otel import OtelSink
    from pollwise.observe.prometheus import PrometheusSink

#: How long a reader of OpenTelemetry waits for the counts, in seconds.
COUNT_WITHIN = 5.0
#: Readings of gauges within this many seconds use the same counts.
COUNTS_LAST = 1.0
#: The gauges that are counted when they are read.
COUNTED = ("jobs", "workers", "held_polls")
#: The name of the counting, in the event that it failed.
COUNT = "count"


class ControllerMetrics:
    """Counts for the sinks of one controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._prometheus: PrometheusSink | None = None
        self._failing = False

    def prometheus(self) -> PrometheusSink:
        """The sink that Prometheus scrapes; raises `MissingExtra` without the extra `metrics`."""
        if self._prometheus is None:
            from pollwise.observe.prometheus import PrometheusSink

            self._prometheus = PrometheusSink()
            self._prometheus.subscribe(self._controller.events)
        return self._prometheus

    async def scraped(self) -> tuple[bytes, str]:
        """The text of a scrape, and its content type."""
        sink = self.prometheus()
        await self._count()
        return sink.exposed()

    def send_to(self, sink: OtelSink) -> None:
        """As `Controller.send_metrics`."""
        loop, home = asyncio.get_running_loop(), threading.get_ident()
        counted_at = float("-inf")

        def count() -> None:
            nonlocal counted_at
            # The event loop cannot count while its own thread waits here.
            in_loop = threading.get_ident() == home
            if in_loop or not loop.is_running() or time.monotonic() - counted_at < COUNTS_LAST:
                return
            counting = asyncio.run_coroutine_threadsafe(self._try_to_count(), loop)
            try:
                counting.result(COUNT_WITHIN)
            except TimeoutError:
                counting.cancel()
            counted_at = time.monotonic()

        sink.subscribe(self._controller.events)
        sink.before_reading([f"pollwise_controller_{name}" for name in COUNTED], count)

    async def _try_to_count(self) -> None:
        """Count; an error is emitted once, until the store has answered."""
        try:
            await self._count()
        except Exception as error:
            if not self._failing:
                event = ChoreFailed(self._controller.source, COUNT, text_of(error))
                self._controller.events.emit(event)
            self._failing = True
        else:
            self._failing = False

    async def _count(self) -> None:
        controller = self._controller
        workers, online = await controller.count_workers()
        counted = await controller.queue.stats()
        jobs = tuple((state, getattr(counted, state)) for state in STATES)
        held = controller.poller.held
        controller.events.emit(
            ControllerCounted(controller.source, jobs, online, workers - online, held)
        )
