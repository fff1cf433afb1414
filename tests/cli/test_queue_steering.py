"""`pollwise queue pause`, `resume`, `workers`, `running`, `set-concurrency`, `stats` and `top`."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from pollwise.cli.queue import top
from pollwise.queues.breakers import OpenBreaker
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.notes import Note, PauseInfo, Topic
from pollwise.queues.presence import RunningJob, WorkerInfo
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.views import Stats, summed
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob, Progress
from tests.cli.console import Screen, good, pollwise

URL = "sqlite:///jobs.db"


def info(name: str = "box-1", **facts: object) -> WorkerInfo:
    now = time.time()
    made = WorkerInfo(
        name=name,
        instance=f"i{name.replace('-', '')}",
        host="box.example",
        pid=4711,
        version="1.2",
        kinds=("mail",),
        concurrency=8,
        busy=1,
        waiting=0,
        running=(RunningJob("1", "mail", now - 5),),
        started_at=now - 100,
        seen_at=now - 7,
        strategy="Adaptive('100ms', '5s')",
        interval=0.1,
        hints=True,
        breakers=(),
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def record(*infos: WorkerInfo) -> None:
    async def main() -> None:
        async with SqliteQueue("jobs.db") as queue:
            for each in infos:
                await queue.record_worker(each, 180.0)

    asyncio.run(main())


def claim(kind: str, by: str) -> None:
    async def main() -> None:
        async with SqliteQueue("jobs.db") as queue:
            assert await queue.claim(by, 1, 60.0, kinds=[kind])

    asyncio.run(main())


def test_a_kind_is_paused_and_resumed() -> None:
    good("queue", "put", URL, "mail")
    assert good("queue", "pause", URL, "mail", "--why", "down").out == "paused kind mail\n"
    assert good("queue", "pause", URL, "--by", "ann").out == "paused the whole queue\n"
    facts = good("queue", "stats", URL, "--json").json()["paused"]
    assert [(each["kind"], each["why"]) for each in facts] == [(None, ""), ("mail", "down")]
    assert facts[0]["by"] == "ann"
    assert "@" in facts[1]["by"]
    shown = good("queue", "stats", URL).out
    assert "paused: the whole queue by ann at 20" in shown
    assert "paused: kind mail by " in shown
    assert "Z: down\n" in shown
    ended = good("queue", "resume", URL).out
    assert ended.startswith("resumed the whole queue\npaused: kind mail by ")
    assert good("queue", "resume", URL, "mail").out == "resumed kind mail\n"
    again = pollwise("queue", "resume", URL, "mail")
    assert (again.code, again.out) == (1, "")
    assert again.err == "error: kind mail is not paused\n"
    assert "paused" not in good("queue", "stats", URL).out


def test_a_breaker_is_closed() -> None:
    async def open_it() -> None:
        async with SqliteQueue("jobs.db") as queue:
            now = queue.clock.epoch()
            opened = OpenBreaker("mail", 1, now, now + 60, "box-1").to_note()
            assert (await queue.breakers.swap("mail", None, opened))[0]

    good("queue", "put", URL, "mail")
    again = pollwise("queue", "close-breaker", URL, "mail")
    assert (again.code, again.out) == (1, "")
    assert "the breaker of kind mail is not open" in again.err
    asyncio.run(open_it())
    shown = good("queue", "close-breaker", URL, "mail").out
    assert shown == "closed the breaker of kind mail\n"
    asyncio.run(open_it())
    assert good("queue", "close-breaker", URL, "mail", "--json").json()["closed"] is True


def test_hostile_reasons_are_not_interpreted() -> None:
    good("queue", "pause", URL, "mail", "--why", "[red]x \x1b[31m", "--by", "\x1b[2J")
    shown = good("queue", "stats", URL).out
    assert "\x1b" not in shown
    assert "[red]x \\x1b[31m" in shown


def test_workers_are_listed() -> None:
    assert good("queue", "put", URL, "mail").out
    assert good("queue", "workers", URL).out == "no worker is running\n"
    record(info(), info("box-2", kinds=None, breakers=("mail",), alone="7"))
    shown = good("queue", "workers", URL).out.splitlines()
    assert shown[0].split() == [
        "worker", "host", "pid", "version", "up", "for", "busy", "kinds", "polls", "seen",
    ]  # fmt: skip
    assert "box.example  4711" in shown[1]
    assert "1/8" in shown[1]
    assert "Adaptive every 0.1s, hinted" in shown[1]
    assert " any " in shown[2]
    assert shown[3] == "box-2 does not claim mail: the breaker is open"
    assert shown[4].startswith("box-2 runs job 7 alone for up to a minute")
    facts = good("queue", "workers", URL, "--json").json()
    assert [each["name"] for each in facts] == ["box-1", "box-2"]
    assert facts[0]["running"][0]["kind"] == "mail"


def test_kinds_without_a_handler_are_marked() -> None:
    for kind in ("mail", "mial"):
        good("queue", "put", URL, kind)
    record(info())
    shown = good("queue", "stats", URL, "--by-kind").out.splitlines()
    assert shown[1].split()[-1] == "1"
    assert shown[2].split()[-1] == "none"
    assert shown[3] == "no running worker handles: mial"
    facts = good("queue", "stats", URL, "--by-kind", "--json").json()
    assert [(facts[k]["workers"], facts[k]["unhandled"]) for k in ("mail", "mial")] == [
        (1, False),
        (0, True),
    ]
    record(info("box-2", kinds=None))
    assert "handles" not in good("queue", "stats", URL, "--by-kind").out


def test_running_jobs_are_listed() -> None:
    assert good("queue", "put", URL, "mail").out
    assert good("queue", "running", URL).out == "no job runs\n"

    async def main() -> None:
        async with SqliteQueue("jobs.db") as queue:
            await queue.put(NewJob("mail", 2))
            [claim] = await queue.claim("box-1", 1, "1m")
            await queue.renew([claim], "1m", {claim.job.id: Progress(0.25, "page 2")})

    asyncio.run(main())
    [_, row] = good("queue", "running", URL).out.splitlines()
    assert row.split()[:4] == ["1", "mail", "box-1", "1"]
    assert "25%  page 2" in row
    [facts] = good("queue", "running", URL, "--json").json()
    assert (facts["worker"], facts["progress"]["fraction"]) == ("box-1", 0.25)
    assert facts["since"] <= time.time()


def test_concurrency_is_set() -> None:
    good("queue", "put", URL, "mail")
    record(info())
    said = good("queue", "set-concurrency", URL, "box-1", 4).out
    assert said == "box-1 is asked to run 4 at a time\n"

    async def main() -> int | None:
        async with SqliteQueue("jobs.db") as queue:
            return await queue.record_worker(info(), 180.0)

    assert asyncio.run(main()) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bax-1", 4), "no worker 'bax-1' is running; did you mean 'box-1'?"),
        (("box-1", 0), "pause the queue or a kind instead"),
        (("box-1", 1001), "must be a whole number from 1 to 1000"),
    ],
)
def test_bad_orders_are_refused(words: tuple[object, ...], says: str) -> None:
    good("queue", "put", URL, "mail")
    record(info())
    refused = pollwise("queue", "set-concurrency", URL, *words)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.err


# top


def snapshot(kinds: int, workers: int, pauses: int) -> top.QueueSnapshot:
    counts = Stats(3, 1, 0, 2, 1, 0, 0, 12.5)
    by_kind = {f"kind {n}": counts for n in range(kinds)}
    return top.QueueSnapshot(
        "jobs",
        time.time(),
        summed(by_kind.values()),
        by_kind,
        {f"kind {n}": PauseInfo("ann", "why " * 40, 1.0) for n in range(pauses)},
        [info(f"box-{n}-{'x' * 40}") for n in range(workers)],
    )


@pytest.mark.parametrize(("columns", "rows"), [(40, 8), (60, 5), (80, 24), (100, 12), (200, 60)])
@pytest.mark.parametrize("amounts", [(0, 0, 0), (1, 1, 1), (50, 50, 50), (0, 9, 0), (9, 0, 3)])
def test_top_fits_any_terminal(columns: int, rows: int, amounts: tuple[int, int, int]) -> None:
    screen = Console(width=columns, file=io.StringIO(), highlight=False)
    screen.print(top.frame(snapshot(*amounts), rows, columns, live=True))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert lines[-1].startswith("q quits")


def test_top_is_a_live_view() -> None:
    for kind in ("mail", "mial"):
        good("queue", "put", URL, kind)
    record(info(busy=0, running=()))  # a record is up to a minute old; what runs is read
    claim("mail", by="box-1")
    good("queue", "put", URL, "mail")
    with Screen(120, 24, "queue", "top", URL, "--every", "100ms", env={}) as screen:
        screen.until(r"default · 2 ready · .* 1 worker, 1/8 busy")
        screen.until("no running worker handles: mial")
        screen.until(r"mial +1 .* nobody")
        screen.until(r"box-1 +box.example +1/8 .* Adaptive every 0.1s, hinted +mail")
        screen.until(r"\ds +1 +mail +box-1")
        good("queue", "put", URL, "mail")
        screen.until(r"mail +2 .* 1 worker")  # it looks again
        screen.press("q")
        assert screen.end() == 0
        assert "\x1b[?1049l" in screen.raw


def test_a_pipe_gets_one_look() -> None:
    good("queue", "put", URL, "mail")
    good("queue", "pause", URL)
    lines = good("queue", "top", URL).out.splitlines()
    assert lines[0].startswith("default · 1 ready · ")
    assert lines[0].endswith(" · no worker")
    assert lines[2].startswith("paused: the whole queue by ")
    assert lines[-1].split() == ["mail", "1", *"0000", lines[-1].split()[6], "paused"]
    facts = good("queue", "top", URL, "--json").json()
    assert facts["counts"]["ready"] == facts["kinds"]["mail"]["ready"] == 1
    assert (facts["unhandled"], facts["workers"]) == (["mail"], [])
    assert pollwise("queue", "top", URL, "--every", "0s").code == 2


def test_notes_are_not_read_for_every_update() -> None:
    class Counted(MemoryQueue):
        reads = 0

        async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
            self.reads += 1
            return await super()._read_notes(topics)

    async def main(clock: VirtualClock) -> None:
        queue = Counted(clock=clock)
        watcher = top.QueueWatcher(queue)
        for _ in range(20):
            await watcher.take()
            await clock.advance(0.5)
        assert queue.reads == 2 * 2, "pauses and workers, each twice in ten seconds"

    clock = VirtualClock()
    clock.run(main(clock))
