"""The commands of `pollwise queue` for single jobs: list, cancel, retry and drop them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import fail, moment, print_json, print_table, say, visible, warn
from pollwise.cli.queue.bulk import (
    ErrorText,
    Key,
    Kinds,
    NewerThan,
    OlderThan,
    StateOf,
    Yes,
    act_on_all,
    filter_of,
)
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.show import facts_of
from pollwise.cli.queue.text import encoded, shortened
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import ENDED, State

Limit = Annotated[int, typer.Option(help="Show at most this many jobs.")]
After = Annotated[
    str | None, typer.Option(help="Continue at this place, which the page before printed.")
]
Ids = Annotated[list[str] | None, typer.Argument(help="Job ids; or --all, or a filter.")]
All = Annotated[bool, typer.Option("--all", help="All dead jobs of the queue.")]
Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Also dead jobs whose failure has started jobs of on_failure."),
]
#: What `queue cancel` says about a job, by its state.
CANCELLED = {
    "cancelled": "cancelled",
    "leased": "runs; its worker is asked to stop it",
}


def list_jobs(
    url: Url,
    state: StateOf = None,
    kind: Kinds = None,
    key: Key = None,
    error: ErrorText = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    worker: Annotated[
        str | None, typer.Option(help="Only jobs that this worker holds or ended.")
    ] = None,
    limit: Limit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List jobs: running ones, then waiting ones (the next to run first), then ended ones (the
    newest first). Redis, buckets and memory show the newest put first.

    A list reads a limited number of jobs at a time, and prints how to continue.

    Example: pollwise queue list sqlite:///jobs.db --state dead --error timeout
    """
    chosen = filter_of(
        state, kind, key, error, older_than, newer_than, worker=worker, limit=limit, after=after
    )
    found = with_queue(url, lambda queue: queue.page(chosen))
    page, more = found.jobs, found.next
    if as_json:
        print_json([facts_of(info) for info in page])
        if more is not None:
            warn(f"more may follow: --after {more}")
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
    if more is not None:
        say(f"more may follow: --after {more}")


def cancel(
    url: Url,
    ids: Annotated[list[str] | None, typer.Argument(help="Job ids; or a filter.")] = None,
    state: StateOf = None,
    kind: Kinds = None,
    key: Key = None,
    error: ErrorText = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs. A waiting job ends at once; a running job is stopped by its worker.

    A waiting job is then deleted, unless the URL says how long to keep it, as in ?keep=7d. Exits
    with 1 if a job had ended or does not exist. With a filter instead of ids, it cancels all jobs
    that match and have not ended; it asks first.

    Example: pollwise queue cancel sqlite:///jobs.db 17 18
    """
    chosen = filter_of(state, kind, key, error, older_than, newer_than, live=True)
    if ids is None or not ids:
        _check_given(chosen, JobFilter(live=True), "job ids or a filter, such as --kind")
        options = {"yes": yes, "as_json": as_json}
        with_queue(url, lambda q: act_on_all(q, q.cancel, chosen, "cancelled", **options))
        return
    _only_ids(chosen, JobFilter(live=True))
    states = with_queue(url, lambda queue: queue.cancel(ids))
    if as_json:
        print_json(states)
    else:
        for job_id, now in states.items():
            say(visible(job_id), "  ", CANCELLED.get(now, f"{now}; it had ended"))
    others = [job_id for job_id in dict.fromkeys(ids) if states.get(job_id) not in CANCELLED]
    if others:
        fail(f"not cancelled, because they had ended or do not exist: {', '.join(others)}")
        raise typer.Exit(1)


def retry(
    url: Url,
    ids: Ids = None,
    everything: All = False,
    state: StateOf = None,
    kind: Kinds = None,
    key: Key = None,
    error: ErrorText = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    anyway: Anyway = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run dead jobs again, with fresh attempts; by id, also done and cancelled ones.

    With a filter instead of ids, it retries all dead jobs that match; with --state done or
    --state cancelled, those instead. It asks first.

    If the failure of a job has started jobs of on_failure, a retry would go on with a flow that
    these may have undone: it is refused, or left out of --all and of filters, without --anyway.

    Example: pollwise queue retry sqlite:///jobs.db --error timeout --newer-than 1d
    """
    chosen = filter_of(state, kind, key, error, older_than, newer_than)
    _act_on_ended(url, "retry", ids, everything, chosen, yes, as_json, anyway)


def drop(
    url: Url,
    ids: Ids = None,
    everything: All = False,
    state: StateOf = None,
    kind: Kinds = None,
    key: Key = None,
    error: ErrorText = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete dead jobs permanently.

    With a filter instead of ids, it deletes all dead jobs that match; with --state done or
    --state cancelled, those instead. It asks first.

    Example: pollwise queue drop sqlite:///jobs.db --state done --older-than 7d
    """
    chosen = filter_of(state, kind, key, error, older_than, newer_than)
    _act_on_ended(url, "drop", ids, everything, chosen, yes, as_json)


def _act_on_ended(
    url: str,
    verb: Literal["retry", "drop"],
    ids: list[str] | None,
    everything: bool,
    chosen: JobFilter,
    yes: bool,
    as_json: bool,
    anyway: bool = False,
) -> None:
    """Retry or drop jobs by their ids, all dead ones, or those that a filter matches."""

    def act(queue: Queue) -> Callable[[Any], Awaitable[Any]]:
        return partial(queue.retry, anyway=anyway) if verb == "retry" else queue.drop

    done: str = {"retry": "retried", "drop": "dropped"}[verb]
    states: Sequence[State] = ENDED if verb == "retry" else ("dead",)
    if chosen != JobFilter():
        _no_ids(ids, everything)
        dead = replace(chosen, state=chosen.state or "dead")
        options = {"yes": yes, "as_json": as_json}
        with_queue(url, lambda q: act_on_all(q, act(q), dead, done, **options))
        return
    wanted = _chosen(ids, everything)
    _report(done, *with_queue(url, lambda q: _each(q, wanted, act(q), states)), as_json)


def _no_ids(ids: list[str] | None, everything: bool) -> None:
    if ids or everything:
        raise ConfigError("give job ids, --all or a filter, and only one of them")


def _only_ids(chosen: JobFilter, empty: JobFilter) -> None:
    if chosen != empty:
        raise ConfigError("give job ids or a filter, and not both")


def _check_given(chosen: JobFilter, empty: JobFilter, what: str) -> None:
    if chosen == empty:
        raise ConfigError(f"give {what}")


def _chosen(ids: list[str] | None, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise ConfigError("give job ids, --all or a filter, and only one of them")
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
