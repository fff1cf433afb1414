"""`pollwise queue history` and `pollwise outbox history`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from pollwise.cli.queue.history import sparkline
from pollwise.outbox.records import writer_of
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.rollups import Histogram, HistoryPoint
from pollwise.runtime.rollups.rows import BY_WORKER, HistoryRow, encoded
from tests.cli.console import good, pollwise
from tests.cli.test_queue_steering import info

QUEUE, OUTBOX = "sqlite:///jobs.db", "sqlite:///shop.db"


def rows(writer: str) -> list[HistoryRow]:
    now = int(time.time() // 60 * 60)
    return [
        HistoryRow(BY_WORKER, now - minute * 60, writer, encoded(figures(float(minute))))
        for minute in range(50)
    ]


def figures(minute: float) -> Sequence[HistoryPoint]:
    waits = Histogram.of([0.01, 0.02, 3.0])
    return (
        HistoryPoint(0, polls=4, empty_polls=2, worker_seconds=60, interval_low=0.1),
        HistoryPoint(0, kind="mail", done=30, failed=1, found=31, waits=waits),
        HistoryPoint(0, kind="\x1b[31mred", done=1 if minute < 3 else 0, found=1),
    )


def write(url: str) -> None:
    async def main() -> None:
        if url == QUEUE:
            async with SqliteQueue("jobs.db") as queue:
                await queue.record_worker(info(), 180.0, rows(info().note_name))
        else:
            async with SqliteOutboxStore("shop.db") as store:
                await store.migrate()
                await store.announce_handlers("r#1", {"a": ["*"]}, 0.0, rows(writer_of("r#1")))

    asyncio.run(main())


@pytest.mark.parametrize(("command", "url"), [("queue", QUEUE), ("outbox", OUTBOX)])
def test_history(command: str, url: str) -> None:
    write(url)
    shown = good(command, "history", url, "--since", "1h").out
    lines = shown.splitlines()
    assert lines[0].startswith("done     ")
    assert "highest" in lines[0]
    assert any(line.startswith("mail") and "1500  50" in line for line in lines)
    assert "\x1b" not in shown
    assert "200 polls, 50% empty" in shown
    assert "polling every 0.1s would have made 30,000" in shown
    asked = ("--by", "minute", "--kind", "mail", "--json")
    points = good(command, "history", url, *asked).json()
    assert len(points["points"]) == 50
    assert points["points"][0]["waits"]["p95"] == pytest.approx(3.0, rel=0.2)
    by_hour = good(command, "history", url, "--kind", "mail", "--by", "hour").out
    assert "polls" not in by_hour


def test_no_history_and_bad_options() -> None:
    good("queue", "put", QUEUE, "mail")
    assert "no history of the last 24h" in good("queue", "history", QUEUE).out
    for options in (("--by", "day"), ("--since", "soon"), ("--since", "0s")):
        ended = pollwise("queue", "history", QUEUE, *options)
        assert ended.code == 2
        assert options[1] in ended.err


def test_bars() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▂▅█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""
