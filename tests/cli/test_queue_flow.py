"""`pollwise queue flow`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from tests.cli.console import good, pollwise

T = TypeVar("T")
URL = "sqlite:///jobs.db"
HOSTILE = "[red]\x1b[2Jboom[/red]"


def with_queue(work: Callable[[SqliteQueue], Awaitable[T]]) -> T:
    async def main() -> T:
        async with SqliteQueue("jobs.db") as queue:
            return await work(queue)

    return asyncio.run(main())


async def begun(queue: SqliteQueue) -> list[str]:
    """A flow whose first job is done, one is dead, and one runs."""
    fetch = NewJob("fetch")
    parts = [NewJob("resize", after=[fetch]), NewJob("classify", after=[fetch])]
    report = NewJob("report", after=parts)
    alert = NewJob("alert", after=[fetch, *parts], on_failure=True, delay="1h")
    put = await queue.put([fetch, *parts, report, alert])
    [first] = await queue.claim("box", 1, "1h")
    await queue.settle([Settlement.done(first)])
    resize, classify = await queue.claim("box", 2, "1h")
    await queue.renew([classify], "1h", {classify.job.id: Progress(0.4)})
    await queue.settle([Settlement.dead(resize, HOSTILE)])
    return put


def test_a_flow_is_drawn_as_a_tree() -> None:
    ids = with_queue(begun)
    for job_id in ids:
        shown = good("queue", "flow", URL, job_id).out.splitlines()
        assert shown[0].endswith("  5 jobs: 1 delayed, 1 blocked, 1 leased, 1 dead, 1 done")
        assert shown[1:3] == ["fetch 1  done", "├─ resize 2  dead  [red]\\x1b[2Jboom[/red]"]
        assert shown[3].startswith("└─ classify 3  runs  40%  at ")
        assert shown[4:] == [
            "report 4  blocked  after 2, 3",
            "└─ alert 5  delayed  if one is dead: 1, 2, 3",
        ]


def test_a_flow_as_json() -> None:
    ids = with_queue(begun)
    told = good("queue", "flow", URL, ids[3], "--json").json()
    assert told["more"] is False
    assert [
        (each["id"], each["state"], each["after"], each["on_failure"]) for each in told["jobs"]
    ] == [
        ("1", "done", [], False),
        ("2", "dead", ["1"], False),
        ("3", "leased", ["1"], False),
        ("4", "blocked", ["2", "3"], False),
        ("5", "delayed", ["1", "2", "3"], True),
    ]
    assert told["jobs"][1]["error"] == HOSTILE
    assert told["jobs"][2]["progress"]["fraction"] == 0.4


def test_a_large_flow_is_cut_and_shows_the_job_itself() -> None:
    async def large(queue: SqliteQueue) -> list[str]:
        parts = [NewJob("part") for _ in range(1200)]
        return await queue.put([*parts, NewJob("join", after=parts), NewJob("last", after=parts)])

    ids = with_queue(large)
    shown = good("queue", "flow", URL, ids[0]).out.splitlines()
    assert shown[0].endswith("  1000 of its jobs: 1000 ready")
    shown = good("queue", "flow", URL, ids[1200]).out.splitlines()
    assert shown[0].endswith("  1101 of its jobs: 1100 ready, 1 blocked")
    told = good("queue", "flow", URL, ids[1200], "--json").json()
    assert told["more"] is True
    assert [each["id"] for each in told["jobs"]] == [*ids[:1100], ids[1200]]
    assert len(told["jobs"][-1]["after"]) == 1200


def test_a_job_without_a_flow_is_told() -> None:
    good("queue", "put", URL, "alone")
    for job_id in ("1", "7"):
        told = pollwise("queue", "flow", URL, job_id)
        assert told.code == 1
        assert f"job {job_id} in {URL} does not exist (any more), or is in no flow" in told.err


def test_a_dead_job_that_on_failure_has_undone_is_retried_only_anyway() -> None:
    ids = with_queue(begun)
    refused = pollwise("queue", "retry", URL, ids[1])
    assert refused.code == 2
    assert f"job {ids[1]} not retried: its failure has started" in refused.err
    assert "--anyway" in refused.err
    assert good("queue", "retry", URL, "--all").out == "retried 0 job(s)\n"
    assert good("queue", "retry", URL, "--kind", "resize", "--yes").out == "retried 0 job(s)\n"
    assert good("queue", "retry", URL, ids[1], "--anyway").out == "retried 1 job(s)\n"
