"""`pollwise queue show --follow`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import Claim, NewJob, Progress, Settlement
from tests.cli.console import Command, Screen, good, plain, pollwise

T = TypeVar("T")
URL = "sqlite:///jobs.db?keep=1d"
HOSTILE = "[red]page\x1b[2J[/red]"


def with_queue(work: Callable[[SqliteQueue], Awaitable[T]], keep: str | None = "1d") -> T:
    async def main() -> T:
        async with SqliteQueue("jobs.db", keep=keep) as queue:
            return await work(queue)

    return asyncio.run(main())


def claimed() -> Claim:
    async def claim(queue: SqliteQueue) -> Claim:
        [found] = await queue.claim("box-1", 1, "1h")
        return found

    return with_queue(claim)


def renew(claim: Claim, *progress: object) -> None:
    told = {claim.job.id: Progress(*progress)}  # type: ignore[arg-type]
    with_queue(lambda queue: queue.renew([claim], "1h", told))


def settle(settlement: Settlement) -> None:
    with_queue(lambda queue: queue.settle([settlement]))


def test_lines_tell_how_far_a_job_is() -> None:
    good("queue", "put", URL, "export")
    with Command("queue", "show", URL, "1", "--follow") as follow:
        follow.out.until("^export 1  ready$")
        claim = claimed()
        follow.out.until("^export 1  runs$")
        renew(claim, 0.4, HOSTILE)
        follow.out.until(r"^export 1  runs  40%  \[red\]page\\x1b\[2J\[/red\]  at \d{4}-")
        with_queue(lambda queue: queue.cancel(["1"]))
        follow.out.until("^export 1  runs, asked to cancel  40%")
        settle(Settlement.done(claim, {"pages": 8}))
        assert follow.end() == 0
        assert follow.out.all[-1] == 'export 1  done  {"pages": 8}'
        assert follow.err.all == []


def test_a_terminal_shows_a_bar() -> None:
    good("queue", "put", URL, "export")
    claim = claimed()
    with Screen(100, 20, "queue", "show", URL, "1", "--follow", env={}) as screen:
        screen.until(r"export 1  runs ━+")  # without a fraction, it moves
        renew(claim, 0.4, HOSTILE)
        screen.until(r"export 1  runs ━+[╸╺]?━* +40% \[red\]page")
        assert "\x1b[2J" not in screen.raw
        settle(Settlement.dead(claim, "no paper"))
        assert screen.end() == 1
        assert plain(screen.raw).rstrip().endswith("export 1  dead  no paper")
        assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")  # a cursor again


@pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
def test_the_exit_code_tells_how_it_ended(state: str) -> None:
    with_queue(lambda queue: queue.put(NewJob("export")))
    claim = claimed()
    ends = {"done": Settlement.done(claim, 7), "dead": Settlement.dead(claim, "broken")}
    settle(ends.get(state) or Settlement.cancelled(claim))
    result = pollwise("queue", "show", URL, "1", "--follow")
    assert result.code == (0 if state == "done" else 1)
    text = {"done": "done  7", "dead": "dead  broken", "cancelled": "cancelled"}[state]
    assert result.out == f"export 1  {text}\n"
    document = pollwise("queue", "show", URL, "1", "--follow", "--json").out
    assert json.loads(document)["state"] == state


def test_a_result_that_outlives_its_job_tells_how_it_ended() -> None:
    async def run(queue: SqliteQueue) -> None:
        await queue.put(NewJob("export"))
        [claim] = await queue.claim("box-1", 1, "1h")
        await queue.settle([Settlement.done(claim, "8 pages", keep="1h")])

    with_queue(run, keep=None)
    result = pollwise("queue", "show", "sqlite:///jobs.db", "1", "--follow")
    assert (result.code, result.out) == (0, 'export 1  done  "8 pages"\n')


def test_a_job_that_is_gone_is_exit_code_1() -> None:
    good("queue", "put", URL, "export")
    result = pollwise("queue", "show", URL, "7", "--follow")
    assert (result.code, result.out) == (1, "")
    assert "no job 7 in sqlite:///jobs.db?keep=1d; it may be done" in result.err
