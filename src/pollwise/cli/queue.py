"""`pollwise submit`, `pollwise queue …` and `pollwise dead …`: jobs from the outside."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from pollwise.cli.migrating import Sql, print_sql, tell_applied
from pollwise.cli.output import NOTHING, fail, moment, print_json, print_table, say, visible
from pollwise.durations import short
from pollwise.errors import ConfigError, PayloadError
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import DEPTH_MAX, STATES, JobInfo, NewJob
from pollwise.runtime.redact import without_secrets

T = TypeVar("T")

queue_app = typer.Typer(
    help="Look at a queue.\n\nExample: pollwise queue stats sqlite:///jobs.db", no_args_is_help=True
)
dead_app = typer.Typer(
    help="Dead letters: list, retry, drop.\n\nExample: pollwise dead list sqlite:///jobs.db",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="The queue, as in sqlite:///jobs.db?queue=mail")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Limit = Annotated[int, typer.Option(help="At most so many jobs.")]
After = Annotated[str | None, typer.Option(help="Go on after this job id.")]
Kind = Annotated[str | None, typer.Option(help="Only jobs of this kind.")]
Id = Annotated[str, typer.Argument(help="The job's id, as `queue list` shows it.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Job ids; or --all.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")]


def with_queue(url: str, work: Callable[[Queue], Awaitable[T]], *, create: bool = False) -> T:
    """Open a queue, do `work` with it, close it."""

    async def main() -> T:
        async with open_queue(url, create=create) as queue:
            if isinstance(queue, MemoryQueue):
                raise ConfigError(
                    f"{without_secrets(url)!r} is a queue inside a process, and this command would "
                    "look at one of its own; name a store, such as sqlite:///jobs.db"
                )
            return await work(queue)

    return asyncio.run(main())


def submit(
    url: Url,
    kind: Annotated[str, typer.Argument(help="The job's kind; it picks the handler.")],
    payload: Annotated[str, typer.Argument(help="The payload as JSON; - reads stdin.")] = "null",
    key: Annotated[str | None, typer.Option(help="Jobs of one key run in order.")] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    delay: Annotated[str, typer.Option(help="Not before so long: 30s, 5m.")] = "0s",
    unique: Annotated[str | None, typer.Option(help="Put once: a name for this job.")] = None,
    as_json: Json = False,
) -> None:
    """Put one job.

    Example: pollwise submit sqlite:///jobs.db resize '{"image": 7}' --delay 30s
    """
    value = _from_stdin() if payload == "-" else _decoded(payload)
    job = NewJob(kind, value, key=key, priority=priority, delay=delay, unique=unique)
    (job_id,) = with_queue(url, lambda queue: queue.put(job), create=True)
    print_json({"id": job_id}) if as_json else say(job_id)


@queue_app.command("stats")
def stats(url: Url, as_json: Json = False) -> None:
    """Count the jobs by state.

    Example: pollwise queue stats sqlite:///jobs.db
    """
    counts = asdict(with_queue(url, lambda queue: queue.stats()))
    if as_json:
        print_json(counts)
        return
    age = counts.pop("oldest_age")
    rows = [(state, counts[state]) for state in STATES]
    print_table(("state", "jobs"), rows)
    say(f"oldest ready job: {'none' if age is None else 'waiting for ' + short(age)}")


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

    Example: pollwise queue list sqlite:///jobs.db --state ready --limit 10
    """
    page = _page(url, state, kind, limit, after)
    if as_json:
        print_json([_facts(info) for info in page])
        return
    print_table(
        ("id", "state", "kind", "key", "attempt", "run at", "error or payload"),
        [
            (
                info.job.id,
                info.state,
                info.job.kind,
                info.job.key,
                info.job.attempt,
                moment(info.job.run_at),
                _shortened(info.error or _encoded(info.job.payload)),
            )
            for info in page
        ],
        empty="no jobs",
        narrow=("id", "state", "attempt", "run at"),
        cut="error or payload",
    )
    _say_more(page, limit)


@queue_app.command("show")
def show(url: Url, job_id: Id, as_json: Json = False) -> None:
    """Show one job, its payload and its last error.

    Example: pollwise queue show sqlite:///jobs.db 17
    """
    info = with_queue(url, lambda queue: queue.get(job_id))
    if info is None:
        fail(
            f"no job {job_id} in {without_secrets(url)}; it may be done (finished jobs are "
            "deleted unless kept)"
        )
        raise typer.Exit(1)
    facts = _facts(info)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if name == "payload":
            text = _encoded(value)
        elif name in ("created_at", "run_at", "since"):
            text = moment(value)
        else:
            text = NOTHING if value is None else str(value)
        say((f"{name:<11}", "bold"), visible(text))


@queue_app.command("migrate")
def migrate(
    url: Url,
    sql: Sql = False,
    as_json: Json = False,
) -> None:
    """Make or renew the tables of a queue. Stores that need no such step are left as they are.

    Example: pollwise queue migrate 'postgresql://app@db/jobs' --sql | psql
    """
    script = open_queue(url, create=False).migration()
    if sql:
        print_sql(script, url, as_json=as_json)
        return
    applied = with_queue(url, lambda queue: queue.migrate(), create=True)
    tell_applied(applied, as_json=as_json, by_itself=script is None)


@dead_app.command("list")
def dead_list(
    url: Url, kind: Kind = None, limit: Limit = 50, after: After = None, as_json: Json = False
) -> None:
    """List dead letters with the reason of each.

    Example: pollwise dead list sqlite:///jobs.db
    """
    page = _page(url, "dead", kind, limit, after)
    if as_json:
        print_json([_facts(info) for info in page])
        return
    print_table(
        ("id", "kind", "key", "attempt", "died", "error"),
        [
            (
                info.job.id,
                info.job.kind,
                info.job.key,
                info.job.attempt,
                moment(info.since),
                _shortened(info.error or NOTHING),
            )
            for info in page
        ],
        empty="no dead letters",
        narrow=("id", "attempt", "died"),
        cut="error",
    )
    _say_more(page, limit)


@dead_app.command("retry")
def dead_retry(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Make dead jobs ready again, with fresh attempts.

    Example: pollwise dead retry sqlite:///jobs.db 17 18
    """
    wanted = _chosen(ids, everything)
    _report("retried", *with_queue(url, lambda q: _each(q, wanted, q.retry)), as_json)


@dead_app.command("drop")
def dead_drop(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Delete dead jobs for good.

    Example: pollwise dead drop sqlite:///jobs.db --all
    """
    wanted = _chosen(ids, everything)
    _report("dropped", *with_queue(url, lambda q: _each(q, wanted, q.drop)), as_json)


def _chosen(ids: list[str] | None, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise ConfigError("give job ids or --all, one of the two")
    return None if everything else ids


async def _each(
    queue: Queue,
    wanted: list[str] | None,
    act: Callable[[list[str] | None], Awaitable[int]],
) -> tuple[int, list[str]]:
    """Do it to the dead letters named; how many it was done to, and which ids are none."""
    strangers = []
    if wanted and not queue.capabilities.views:  # such a store can only count them
        count = await act(wanted)
        some = len(set(wanted)) - count
        return count, [f"{some} of {len(set(wanted))}"] if some else []
    for job_id in dict.fromkeys(wanted or ()):
        info = await queue.get(job_id)
        if info is None or info.state != "dead":
            strangers.append(job_id)
    return await act(wanted), strangers


def _report(what: str, count: int, strangers: list[str], as_json: bool) -> None:
    """Say how many; an id that is no dead letter is a failure, so that a script notices."""
    if as_json:
        print_json({what: count})
    else:
        say(f"{what} {count} job(s)")
    if strangers:
        fail(f"these ids are no dead letters here: {', '.join(strangers)}")
        raise typer.Exit(1)


def _page(url: str, state: Any, kind: str | None, limit: int, after: str | None) -> list[JobInfo]:
    return with_queue(url, lambda queue: queue.jobs(state, kind=kind, limit=limit, after=after))


def _say_more(page: list[JobInfo], limit: int) -> None:
    if len(page) == limit:
        say(f"more may follow: --after {page[-1].job.id}")


def _facts(info: JobInfo) -> dict[str, Any]:
    return {
        **asdict(info.job),
        "state": info.state,
        "since": info.since,
        "worker": info.worker,
        "error": info.error,
    }


def _from_stdin() -> Any:
    try:
        return _decoded(sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        raise PayloadError(f"the payload is not JSON: {error}. JSON is UTF-8.") from None


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise PayloadError(
            f"the payload {_shortened(text)} is not JSON: {error}. "
            "Quote it for the shell, as in '{\"image\": 7}'."
        ) from None
    except RecursionError:
        raise PayloadError(
            f"the payload {_shortened(text)} nests deeper than {DEPTH_MAX} levels; make it flatter"
        ) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _encoded(payload: Any) -> str:
    return json.dumps(payload, ensure_ascii=False)


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
