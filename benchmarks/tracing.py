"""What OpenTelemetry's traces cost a job: if nothing is configured, if sampled out, if exported.

    python benchmarks/tracing.py [--quick] [--json FILE]

The CPU time to put a single job and to run its empty handler, on a queue in memory: there is no
store whose work would hide the difference. Each figure is compared with the same program whose
check for a provider is replaced by a function that returns None, in turns, in one process. First
OpenTelemetry is not imported; then its SDK is, without a provider; last, there is a provider. It
exports nothing: what an exporter costs is not measured.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, number  # noqa: E402
from pollwise import NewJob, Worker, WorkerRunOptions  # noqa: E402
from pollwise.queues.memory import MemoryQueue  # noqa: E402
from pollwise.runtime.events import Events  # noqa: E402
from pollwise.runtime.tracing import spans  # noqa: E402

#: Jobs of a round, and rounds of each side.
JOBS, ROUNDS = 2_000, 25
JOBS_QUICK, ROUNDS_QUICK = 1_000, 11
#: The maximum cost of the check, as a ratio of CPU time.
UNCONFIGURED = 1.03


def without_check() -> None:
    return None


async def cpu(jobs: int) -> float:
    """Seconds of CPU time for one job."""
    queue = MemoryQueue("bench")
    options = WorkerRunOptions(concurrency=100, signals=False, seed=1)
    worker = Worker(queue, events=Events(quiet=True), options=options)

    @worker.handle("empty")
    async def empty(job: Any) -> None: ...

    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for _ in range(jobs):
            await queue.put(NewJob("empty"))
        await worker.run_once()
        return (time.process_time() - began) / jobs
    finally:
        gc.enable()


def compared(jobs: int, rounds: int) -> tuple[float, float]:
    """The µs of a job without the check and with it, each in its fastest round: other programs on
    the machine can only slow it down."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds + 1):
        for checks in (False, True) if turn % 2 else (True, False):
            tracer: Callable[[], Any] = spans.tracer if checks else without_check
            with mock.patch.object(spans, "tracer", tracer):
                took = asyncio.run(cpu(jobs)) * 1e6
            if turn:  # the first one only warms up
                found[checks].append(took)
    return min(found[False]), min(found[True])


def main() -> None:
    options = common.options(__doc__ or "")
    size = (JOBS_QUICK, ROUNDS_QUICK) if options.quick else (JOBS, ROUNDS)
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    others = common.Others()
    assert "opentelemetry" not in sys.modules
    found = {"not imported": compared(*size)}

    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor as Processor
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    class Nobody(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    found["imported, no provider"] = compared(*size)
    on = TracerProvider()
    on.add_span_processor(Processor(Nobody()))
    for what, provider in (("sampled out", TracerProvider(ALWAYS_OFF)), ("exported", on)):
        with mock.patch.object(trace, "_TRACER_PROVIDER", provider):
            found[what] = compared(*size)
    common.heading("CPU time of a job, put and run, in µs")
    rows = [
        (what, number(without), number(checked), f"{checked / without:.3f}")
        for what, (without, checked) in found.items()
    ]
    common.table(("OpenTelemetry is", "without the check", "with it", "ratio"), rows)
    facts: common.Plain = {"machine": machine, "versions": versions, "found": found}
    facts["others_busy"] = others.show()
    goals = [
        Goal(f"a job where OpenTelemetry is {what}", checked / without, UNCONFIGURED, "×")
        for what, (without, checked) in list(found.items())[:2]
    ]
    common.finish(facts, goals, options.json)


if __name__ == "__main__":
    main()
