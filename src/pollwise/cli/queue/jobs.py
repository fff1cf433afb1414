"""The commands of `pollwise queue` for single jobs: list, cancel, retry and drop them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, cast

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import fail, moment, print_json, print_table, say, visible
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.show import facts_of
from pollwise.cli.queue.text import encoded, shortened
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import ENDED, STATES, State

Limit = Annotated[int, typer.Option(help="Show at most this many jobs.")]
After = Annotated[str | None, typer.Option(help="Continue after this job id.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Only jobs of this kind; may be repeated.")
]
Ids = Annotated[list[str] | None, typer.Argument(help="Job ids; or --all.")]
All = Annotated[bool, typer.Option("--all", help="All dead jobs of the queue.")]
#: What `queue cancel` says about a job, by its state.
CANCELLED = {
    "cancelled": "cancelled",
    "leased": "runs; its worker is asked to stop it",
}


def list_jobs(
    url: Url,
    state: Annotated[str | None, typer.Option(help=f"One of {', '.join(STATES)}.")] = None,
    kind: Kinds = None,
    worker: Annotated[
        str | None, typer.Option(help="Only jobs that this worker holds or has ended.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest jobs first.")] = False,
    limit: Limit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List jobs in the order they were put.

    Example: pollwise queue list sqlite:///jobs.db --state leased --worker box-1 --newest
    """
    page = with_queue(
        url,
        lambda q: q.jobs(
            cast("Any", state),
            kind=kind or None,
            worker=worker,
            newest=newest,
            limit=limit,
            after=after,
        ),
    )
    if as_json:
        print_json([facts_of(info) for info in page])
        return
    time = "died" if state == "dead" else "run at"
    print_table(
        ("id", "state", "kind", "key", "attempt", time, "error or payload"),
        [
            (
                info.job.id,
                info.state,
                info.job.kind,
                info.job.key,
                info.job.attempt,
                moment(info.since if state == "dead" else info.job.run_at),
                shortened(info.error or info.job.unreadable or encoded(info.job.payload)),
            )
            for info in page
        ],
        empty="no jobs",
        narrow=("id", "state", "attempt", time),
        cut="error or payload",
    )
    if len(page) == limit:
        say(f"more may follow: --after {page[-1].job.id}")


def cancel(
    url: Url,
    ids: Annotated[list[str], typer.Argument(help="Job ids.")],
    as_json: Json = False,
) -> None:
    """Cancel jobs. One that waits ends at once; one that runs is stopped by its worker.

    A job that waits is then deleted, unless the URL says how long to keep it, as in ?keep=7d.
    Exits with 1 if a job had ended or does not exist.

    Example: pollwise queue cancel sqlite:///jobs.db 17 18
    """
    states = with_queue(url, lambda queue: queue.cancel(ids))
    if as_json:
        print_json(states)
    else:
        for job_id, state in states.items():
            say(visible(job_id), "  ", CANCELLED.get(state, f"{state}; it had ended"))
    others = [job_id for job_id in dict.fromkeys(ids) if states.get(job_id) not in CANCELLED]
    if others:
        fail(f"not cancelled, because they had ended or do not exist: {', '.join(others)}")
        raise typer.Exit(1)


def retry(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Run dead jobs again, with fresh attempts; by id, also done and cancelled ones.

    Example: pollwise queue retry sqlite:///jobs.db 17 18
    """
    wanted = _chosen(ids, everything)
    _report("retried", *with_queue(url, lambda q: _each(q, wanted, q.retry, ENDED)), as_json)


def drop(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Delete dead jobs permanently.

    Example: pollwise queue drop sqlite:///jobs.db --all
    """
    wanted = _chosen(ids, everything)
    _report("dropped", *with_queue(url, lambda q: _each(q, wanted, q.drop, ("dead",))), as_json)


def _chosen(ids: list[str] | None, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise ConfigError("give job ids or --all, and not both")
    return None if everything else ids


async def _each(
    queue: Queue,
    wanted: list[str] | None,
    act: Callable[[list[str] | None], Awaitable[int]],
    states: Sequence[State],
) -> tuple[int, list[str]]:
    """Retry or drop the jobs named. Returns how many, and the ids of jobs in other states."""
    others = []
    if wanted and not queue.capabilities.views:  # the store can only count them
        count = await act(wanted)
        some = len(set(wanted)) - count
        return count, [f"{some} of {len(set(wanted))}"] if some else []
    for job_id in dict.fromkeys(wanted or ()):
        info = await queue.get(job_id)
        if info is None or info.state not in states:
            others.append(job_id)
    return await act(wanted), others


def _report(what: str, count: int, others: list[str], as_json: bool) -> None:
    """Print the count. An id that could not be used is a failure, so that a script notices."""
    if as_json:
        print_json({what: count})
    else:
        say(f"{what} {count} job(s)")
    if others:
        which = "ended" if what == "retried" else "dead"
        fail(f"not {which} jobs in this queue: {', '.join(others)}")
        raise typer.Exit(1)
