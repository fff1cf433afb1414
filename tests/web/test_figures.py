"""The figures of a queue: rates, polls saved, and costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.rollups import EMPTY, Histogram, HistoryPoint
from pollwise.web.pages.queues.figures import figures_of, polls_saved, total_figures
from pollwise.web.sources import Sources
from tests.web.test_queue import WORKER

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("waits", "hints", "strategy", "polls", "saved"),
    [
        # 3600 s of one worker. Median wait 0.1 s: fixed polling needs 0.2 s, so 18,000 polls.
        (Histogram.of([0.1] * 9), False, "Adaptive(min_interval=0.1, max_interval=5.0)", 1800, 0.9),
        # A shorter wait than the strategy can promise: its shortest interval.
        (
            Histogram.of([0.001] * 9),
            True,
            "Adaptive(min_interval=0.1, max_interval=5.0)",
            360,
            0.99,
        ),
        # A backlog: waits say nothing beyond the longest interval.
        (Histogram.of([900.0] * 9), False, "Adaptive(min_interval=0.1, max_interval=5.0)", 72, 0.9),
        (EMPTY, True, "Worth(p95_wait=2.0, min_interval=0.01, max_interval=60.0)", 3600, 0.99),
        (EMPTY, False, "Adaptive(min_interval=0.1, max_interval=5.0)", 36, None),
        (Histogram.of([0.25] * 9), False, "Fixed(interval=0.5, hold=0.0)", 7200, None),
        (Histogram.of([0.25] * 9), False, "nonsense", 7200, None),
    ],
)
def test_polls_saved_against_fixed_polling_that_is_as_quick(
    waits: Histogram, hints: bool, strategy: str, polls: int, saved: float | None
) -> None:
    point = HistoryPoint(0, 3600, polls=polls, worker_seconds=3600.0, waits=waits)
    share, why = polls_saved(point, [replace(WORKER, hints=hints, strategy=strategy)])
    assert share == (None if saved is None else pytest.approx(saved, abs=0.03))
    assert bool(why) == (saved is not None)


def test_rates_are_of_the_time_that_is_known() -> None:
    source = Sources().add_queue(MemoryQueue())
    points = [HistoryPoint(NOW - 600, 60, "mail", done=50, failed=50, polls=100)]
    figures = figures_of(source, points, [], NOW)
    assert figures.done_per_minute == pytest.approx(5.0)
    assert figures.polls_per_hour == pytest.approx(600.0)
    assert figures.failed_share == 0.5
    assert figures.dollars is None
    assert len(figures.spark) == 36
    nothing = figures_of(source, [], [], NOW)
    assert nothing.done_per_minute is None
    assert nothing.failed_share is None
    assert total_figures([figures, nothing]).failed_share == 0.5
    assert total_figures([]).done_per_minute is None


def test_polls_of_a_store_that_bills_them_have_a_price() -> None:
    source = Sources().add_queue(MemoryQueue())
    source.place = "s3://bucket/jobs"
    figures = figures_of(source, [HistoryPoint(NOW - 3600, 60, polls=3600)], [], NOW)
    assert figures.dollars == pytest.approx(30 * 86400 * 0.005 / 1000)
    assert "S3 LIST" in figures.dollars_why
