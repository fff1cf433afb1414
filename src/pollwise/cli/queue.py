"""`pollwise queue …`: put jobs, look at them, and retry or drop the dead ones."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar, cast

import typer

from pollwise.cli.migrating import Sql, print_sql, tell_applied
from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, fail, moment, print_json, print_table, say, visible
from pollwise.durations import short
from pollwise.errors import ConfigError, PayloadError
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import DEPTH_MAX, STATES, JobInfo, NewJob
from pollwise.runtime.redact import without_secrets

T = TypeVar("T")

app = typer.Typer(
    help="Put, list, retry and drop jobs.\n\nExample: pollwise queue stats sqlite:///jobs.db",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="The queue, as in sqlite:///jobs.db?queue=mail")]
Limit = Annotated[int, typer.Option(help="Show at most this many jobs.")]
After = Annotated[str | None, typer.Option(help="Continue after this job id.")]
Kind = Annotated[str | None, typer.Option(help="Only jobs of this kind.")]
Id = Annotated[str, typer.Argument(help="The job's id, as `queue list` shows it.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Job ids; or --all.")]
All = Annotated[bool, typer.Option("--all", help="All dead jobs of the queue.")]


def with_queue(url: str, work: Callable[[Queue], Awaitable[T]], *, create: bool = False) -> T:
    """Open a queue, call `work` with it, close it and return the result."""

    async def main() -> T:
        async with open_queue(url, create=create) as queue:
            if isinstance(queue, MemoryQueue):
                raise ConfigError(
                    f"{without_secrets(url)!r} is a queue in this process's memory, which no other "
                    "process can see; name a store, such as sqlite:///jobs.db"
                )
            return await work(queue)

    return asyncio.run(main())


@app.command("put")
def put(
    url: Url,
    kind: Annotated[str, typer.Argument(help="The job's kind; it picks the handler.")],
    payload: Annotated[str, typer.Argument(help="The payload as JSON; - reads stdin.")] = "null",
    key: Annotated[
        str | None, typer.Option(help="Jobs with the same key run one at a time, in order.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    delay: Annotated[
        str, typer.Option(help="Start no earlier than after this time: 30s, 5m.")
    ] = "0s",
    unique: Annotated[
        str | None, typer.Option(help="Put only if no job with this name is in the queue.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Put one job.

    Example: pollwise queue put sqlite:///jobs.db resize '{"image": 7}' --delay 30s
    """
    value = _from_stdin() if payload == "-" else _decoded(payload)
    job = NewJob(kind, value, key=key, priority=priority, delay=delay, unique=unique)
    (job_id,) = with_queue(url, lambda queue: queue.put(job), create=True)
    print_json({"id": job_id}) if as_json else say(job_id)


@app.command("stats")
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


@app.command("list")
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
    page = with_queue(
        url, lambda q: q.jobs(cast("Any", state), kind=kind, limit=limit, after=after)
    )
    if as_json:
        print_json([_facts(info) for info in page])
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
                _shortened(info.error or _encoded(info.job.payload)),
            )
            for info in page
        ],
        empty="no jobs",
        narrow=("id", "state", "attempt", time),
        cut="error or payload",
    )
    if len(page) == limit:
        say(f"more may follow: --after {page[-1].job.id}")


@app.command("show")
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


@app.command("migrate")
def migrate(
    url: Url,
    sql: Sql = False,
    as_json: Json = False,
) -> None:
    """Create or update the tables of a queue. Stores without tables are left as they are.

    Example: pollwise queue migrate 'postgresql://app@db/jobs' --sql | psql
    """
    script = open_queue(url, create=False).migration()
    if sql:
        print_sql(script, url, as_json=as_json)
        return
    applied = with_queue(url, lambda queue: queue.migrate(), create=True)
    tell_applied(applied, as_json=as_json, by_itself=script is None)


@app.command("retry")
def retry(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Make dead jobs ready again, with fresh attempts.

    Example: pollwise queue retry sqlite:///jobs.db 17 18
    """
    wanted = _chosen(ids, everything)
    _report("retried", *with_queue(url, lambda q: _each(q, wanted, q.retry)), as_json)


@app.command("drop")
def drop(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Delete dead jobs permanently.

    Example: pollwise queue drop sqlite:///jobs.db --all
    """
    wanted = _chosen(ids, everything)
    _report("dropped", *with_queue(url, lambda q: _each(q, wanted, q.drop)), as_json)


def _chosen(ids: list[str] | None, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise ConfigError("give job ids or --all, and not both")
    return None if everything else ids


async def _each(
    queue: Queue,
    wanted: list[str] | None,
    act: Callable[[list[str] | None], Awaitable[int]],
) -> tuple[int, list[str]]:
    """Retry or drop the dead jobs named. Returns how many, and the ids that are not dead jobs."""
    others = []
    if wanted and not queue.capabilities.views:  # the store can only count them
        count = await act(wanted)
        some = len(set(wanted)) - count
        return count, [f"{some} of {len(set(wanted))}"] if some else []
    for job_id in dict.fromkeys(wanted or ()):
        info = await queue.get(job_id)
        if info is None or info.state != "dead":
            others.append(job_id)
    return await act(wanted), others


def _report(what: str, count: int, others: list[str], as_json: bool) -> None:
    """Print the count. An id that is not a dead job is a failure, so that a script notices."""
    if as_json:
        print_json({what: count})
    else:
        say(f"{what} {count} job(s)")
    if others:
        fail(f"not dead jobs in this queue: {', '.join(others)}")
        raise typer.Exit(1)


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


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
