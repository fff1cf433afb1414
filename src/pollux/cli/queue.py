"""`pollux submit`, `pollux queue …` and `pollux dead …`: jobs from the outside."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from pollux.cli.output import fail, moment, out, print_json, print_table
from pollux.durations import short
from pollux.errors import ConfigError, PayloadError
from pollux.jobs import STATES, JobInfo, NewJob
from pollux.queues.base import Queue
from pollux.queues.urls import open_queue

T = TypeVar("T")

queue_app = typer.Typer(help="Look at a queue.", no_args_is_help=True)
dead_app = typer.Typer(help="Dead letters: list, retry, drop.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="The queue, as in sqlite:///jobs.db?queue=mail")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Limit = Annotated[int, typer.Option(help="At most so many jobs.")]
After = Annotated[str | None, typer.Option(help="Go on after this job id.")]
Kind = Annotated[str | None, typer.Option(help="Only jobs of this kind.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Job ids.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")]


def with_queue(url: str, work: Callable[[Queue], Awaitable[T]], *, create: bool = False) -> T:
    """Open a queue, do `work` with it, close it."""

    async def main() -> T:
        async with open_queue(url, create=create) as queue:
            return await work(queue)

    return asyncio.run(main())


def submit(
    url: Url,
    kind: Annotated[str, typer.Argument(help="The job's kind; it picks the handler.")],
    payload: Annotated[str, typer.Argument(help="The payload as JSON; - reads it.")] = "null",
    key: Annotated[str | None, typer.Option(help="Jobs of one key run in order.")] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    delay: Annotated[str, typer.Option(help="Not before so long: 30s, 5m.")] = "0s",
    unique: Annotated[str | None, typer.Option(help="Put once.")] = None,
    as_json: Json = False,
) -> None:
    """Put one job.

    Example: pollux submit sqlite:///jobs.db resize '{"image": 7}' --delay 30s
    """
    text = sys.stdin.read() if payload == "-" else payload
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise PayloadError(
            f"the payload {_shortened(text)} is not JSON: {error}. "
            "Quote it for the shell, as in '{\"image\": 7}'."
        ) from None
    job = NewJob(kind, value, key=key, priority=priority, delay=delay, unique=unique)
    (job_id,) = with_queue(url, lambda queue: queue.put(job), create=True)
    print_json({"id": job_id}) if as_json else out.print(job_id)


@queue_app.command("stats")
def stats(url: Url, as_json: Json = False) -> None:
    """Count the jobs by state.

    Example: pollux queue stats sqlite:///jobs.db
    """
    counts = asdict(with_queue(url, lambda queue: queue.stats()))
    if as_json:
        print_json(counts)
        return
    age = counts.pop("oldest_age")
    rows = [(state, counts[state]) for state in STATES]
    print_table(("state", "jobs"), rows)
    out.print(f"oldest ready job: {'none' if age is None else 'waiting for ' + short(age)}")


@queue_app.command("list")
def list_jobs(
    url: Url,
    state: Annotated[str | None, typer.Option(help=f"One of {', '.join(STATES)}.")] = None,
    kind: Kind = None,
    limit: Limit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List jobs in the order they were put.

    Example: pollux queue list sqlite:///jobs.db --state ready --limit 10
    """
    _print_jobs(url, state, kind, limit, after, as_json)


@queue_app.command("show")
def show(url: Url, job_id: str, as_json: Json = False) -> None:
    """Show one job, its payload and its last error.

    Example: pollux queue show sqlite:///jobs.db 17
    """
    info = with_queue(url, lambda queue: queue.peek(job_id))
    if info is None:
        fail(f"no job {job_id} in {url}; it may be done (finished jobs are deleted unless kept)")
        raise typer.Exit(1)
    facts = _facts(info)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        shown = moment(value) if name in ("created_at", "run_at", "since") else value
        text = json.dumps(shown, ensure_ascii=False) if name == "payload" else shown
        out.print(f"{name:<11}{text}", markup=False)


@dead_app.command("list")
def dead_list(
    url: Url, kind: Kind = None, limit: Limit = 50, after: After = None, as_json: Json = False
) -> None:
    """List dead letters with the reason of each.

    Example: pollux dead list sqlite:///jobs.db
    """
    _print_jobs(url, "dead", kind, limit, after, as_json)


@dead_app.command("retry")
def dead_retry(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Make dead jobs ready again, with fresh attempts.

    Example: pollux dead retry sqlite:///jobs.db 17 18
    """
    wanted = _chosen(ids, everything)
    _report("retried", with_queue(url, lambda queue: queue.redrive(wanted)), wanted, as_json)


@dead_app.command("drop")
def dead_drop(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Delete dead jobs for good.

    Example: pollux dead drop sqlite:///jobs.db --all
    """
    wanted = _chosen(ids, everything)
    _report("dropped", with_queue(url, lambda queue: queue.drop(wanted)), wanted, as_json)


def _chosen(ids: list[str] | None, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise ConfigError("give job ids or --all, one of the two")
    return None if everything else ids


def _report(what: str, count: int, wanted: list[str] | None, as_json: bool) -> None:
    """Say how many; fewer than were named is a failure, so that a script notices."""
    if as_json:
        print_json({what: count})
    else:
        out.print(f"{what} {count} job(s)")
    if wanted is not None and count < len(set(wanted)):
        fail(f"{len(set(wanted)) - count} of the ids are not dead letters of this queue")
        raise typer.Exit(1)


def _print_jobs(
    url: str, state: Any, kind: str | None, limit: int, after: str | None, as_json: bool
) -> None:
    page = with_queue(url, lambda queue: queue.list(state, kind=kind, limit=limit, after=after))
    if as_json:
        print_json([_facts(info) for info in page])
        return
    columns = ("id", "state", "kind", "key", "attempt", "run at", "error or payload")
    rows = [
        (
            info.job.id,
            info.state,
            info.job.kind,
            info.job.key,
            info.job.attempt,
            moment(info.job.run_at),
            _shortened(info.error or json.dumps(info.job.payload, ensure_ascii=False)),
        )
        for info in page
    ]
    print_table(columns, rows, empty="no jobs")
    if len(page) == limit:
        out.print(f"more may follow: --after {page[-1].job.id}")


def _facts(info: JobInfo) -> dict[str, Any]:
    return {
        **asdict(info.job),
        "state": info.state,
        "since": info.since,
        "worker": info.worker,
        "error": info.error,
    }


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
