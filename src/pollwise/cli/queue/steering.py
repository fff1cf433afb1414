"""The commands of `pollwise queue` that are about a queue and its workers, not about jobs."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import (
    NOTHING,
    fail,
    moment,
    print_json,
    print_table,
    rounded,
    say,
    visible,
)
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.text import progress_text
from pollwise.errors import StoreError, Unsupported
from pollwise.platforms.users import who_am_i
from pollwise.queues.base import Queue
from pollwise.queues.notes import PauseInfo
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import JobInfo

Kind = Annotated[str | None, typer.Argument(help="A kind of jobs; without one, the whole queue.")]


def pause(
    url: Url,
    kind: Kind = None,
    why: Annotated[str, typer.Option(help="Why, shown to others.")] = "",
    by: Annotated[
        str | None, typer.Option(help="Who paused it; by default your user name and this host.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pause a kind of jobs, or the whole queue, for all workers. Running jobs go on to their end.

    Jobs can still be put. They wait until `pollwise queue resume`.

    Example: pollwise queue pause sqlite:///jobs.db mail --why "server down"
    """
    asked_by = user_here() if by is None else by
    with_queue(url, lambda queue: queue.pause(kind, by=asked_by, why=why), create=True)
    print_json({"paused": kind, "by": asked_by}) if as_json else say(f"paused {_what(kind)}")


def resume(url: Url, kind: Kind = None, as_json: Json = False) -> None:
    """End a pause. Workers continue at once. Exits with 1 if there was none.

    Without a kind, the pause of the whole queue ends; kinds that were paused stay paused.

    Example: pollwise queue resume sqlite:///jobs.db mail
    """

    async def work(queue: Queue) -> tuple[bool, dict[str | None, PauseInfo]]:
        return await queue.resume(kind), await queue.paused()

    ended, left = with_queue(url, work)
    if as_json:
        print_json({"resumed": ended, "paused": pause_facts(left)})
    elif ended:
        say(f"resumed {_what(kind)}")
    if not as_json:
        print_pauses(left)
    if not ended:
        fail(f"{_what(kind)} is not paused")
        raise typer.Exit(1)


def close_breaker(
    url: Url,
    kind: Annotated[str, typer.Argument(help="The kind of jobs whose breaker is open.")],
    as_json: Json = False,
) -> None:
    """Close the breaker of a kind, after what its handler depends on works again.

    All workers claim its jobs with their next poll, instead of waiting for a trial. If the jobs
    fail again, the breaker opens again. Exits with 1 if it was closed.

    Example: pollwise queue close-breaker sqlite:///jobs.db mail
    """
    closed = with_queue(url, lambda queue: queue.breakers.close(kind))
    if as_json:
        print_json({"closed": closed, "kind": kind})
    elif closed:
        say(f"closed the breaker of kind {visible(kind)}")
    if not closed:
        fail(f"the breaker of kind {visible(kind)} is not open, as far as its workers stored")
        raise typer.Exit(1)


def set_concurrency(
    url: Url,
    worker: Annotated[str, typer.Argument(help="The worker, as `queue workers` shows it.")],
    concurrency: Annotated[int, typer.Argument(help="How many handlers run at a time: 1 to 1000.")],
    as_json: Json = False,
) -> None:
    """Change how many handlers a running worker runs at a time, until it restarts.

    A worker that receives broadcasts applies it at once, others within about a minute. A lower
    number stops no running job.

    Example: pollwise queue set-concurrency sqlite:///jobs.db box-1-4711-ab12 4
    """
    count = with_queue(url, lambda queue: queue.set_concurrency(worker, concurrency))
    if as_json:
        print_json({"worker": worker, "concurrency": concurrency, "workers": count})
        return
    several = "" if count == 1 else f" ({count} workers have this name)"
    say(f"{visible(worker)} is asked to run {concurrency} at a time{several}")


def workers(
    url: Url,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many workers.")] = 100,
    as_json: Json = False,
) -> None:
    """List the running workers. One whose record is older than three minutes is left out.

    A record is as old as the column "seen" says; `pollwise queue running` is up to date. With
    --json, all workers are listed.

    Example: pollwise queue workers sqlite:///jobs.db
    """
    found, now = with_queue(url, _workers_and_time)
    if as_json:
        print_json([info.to_value() for info in found])
        return
    print_table(
        ("worker", "host", "pid", "version", "up for", "busy", "kinds", "polls", "seen"),
        [worker_row(info, now) for info in found[:limit]],
        empty="no worker is running",
        narrow=("pid", "up for", "busy", "seen"),
    )
    if len(found) > limit:
        say(f"and {len(found) - limit} more; --limit {len(found)} shows them all")
    for info in found[:limit]:
        if info.breakers:
            kinds = visible(", ".join(info.breakers))
            say(f"{visible(info.name)} does not claim {kinds}: the breaker is open")
        if info.alone:
            say(
                f"{visible(info.name)} runs job {visible(info.alone)} alone for up to a minute, "
                "because its last workers died or lost its lease; other jobs wait"
            )


async def _workers_and_time(queue: Queue) -> tuple[list[WorkerInfo], float]:
    return await queue.workers(), queue.clock.epoch()


def worker_row(info: WorkerInfo, now: float) -> tuple[object, ...]:
    """A worker as a row of a table."""
    return (
        info.name,
        info.host,
        info.pid,
        info.version,
        rounded(now - info.started_at),
        f"{info.busy}/{info.concurrency}",
        "any" if info.kinds is None else ", ".join(info.kinds),
        pace_text(info),
        f"{rounded(now - info.seen_at)} ago",
    )


def pace_text(info: WorkerInfo) -> str:
    """How a worker polls."""
    hinted = ", hinted" if info.hints else ""
    return f"{info.strategy.partition('(')[0]} every {rounded(info.interval)}{hinted}"


def running(
    url: Url,
    limit: Annotated[int, typer.Option(help="Show at most this many jobs.")] = 50,
    as_json: Json = False,
) -> None:
    """List the running jobs: who runs them, since when, and their progress.

    Example: pollwise queue running sqlite:///jobs.db
    """

    async def work(queue: Queue) -> tuple[list[JobInfo], float]:
        page = await queue.page(JobFilter("leased", limit=limit))
        return page.jobs, queue.clock.epoch()

    page, now = with_queue(url, work)
    if as_json:
        print_json([running_facts(info) for info in page])
        return
    print_table(
        ("id", "kind", "worker", "attempt", "for", "progress"),
        [
            (
                info.job.id,
                info.job.kind,
                info.worker,
                info.job.attempt,
                rounded(now - (info.claimed_at or info.since)),
                NOTHING if info.progress is None else progress_text(info.progress),
            )
            for info in page
        ],
        empty="no job runs",
        narrow=("id", "attempt", "for"),
        cut="progress",
    )
    if len(page) == limit:
        say(f"more may run: --limit {2 * limit}")


def running_facts(info: JobInfo) -> dict[str, Any]:
    """A job that runs, for JSON."""
    return {
        "id": info.job.id,
        "kind": info.job.kind,
        "worker": info.worker,
        "attempt": info.job.attempt,
        "since": info.claimed_at or info.since,
        "progress": None if info.progress is None else asdict(info.progress),
        "cancel": info.cancel,
    }


async def pauses_of(queue: Queue) -> dict[str | None, PauseInfo]:
    """What is paused; nothing where the store or an older controller cannot say."""
    with suppress(Unsupported, StoreError):
        return await queue.paused()
    return {}


async def workers_of(queue: Queue) -> list[WorkerInfo] | None:
    """The running workers; None where the store or an older controller cannot say."""
    with suppress(Unsupported, StoreError):
        return await queue.workers()
    return None


def pause_facts(pauses: Mapping[str | None, PauseInfo]) -> list[dict[str, Any]]:
    return [{"kind": kind, **asdict(each)} for kind, each in pauses.items()]


def print_pauses(pauses: Mapping[str | None, PauseInfo]) -> None:
    for kind, each in pauses.items():
        say((pause_text(kind, each), "yellow"))


def pause_text(kind: str | None, pause: PauseInfo) -> str:
    """A pause as one line: what, by whom, since when, why."""
    what = "the whole queue" if kind is None else f"kind {visible(kind)}"
    by = f" by {visible(pause.by)}" if pause.by else ""
    why = f": {visible(pause.why)}" if pause.why else ""
    return f"paused: {what}{by} at {moment(pause.at)}{why}"


def _what(kind: str | None) -> str:
    return "the whole queue" if kind is None else f"kind {visible(kind)}"


def user_here() -> str:
    """Who runs this command, and where."""
    return f"{who_am_i()}@{socket.gethostname()}"
