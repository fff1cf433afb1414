"""`pollwise queue …`: put jobs, look at them, cancel them, and retry or drop the dead ones."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar, cast

import typer

from pollwise.cli.migrating import Sql, print_sql, tell_applied
from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, fail, moment, print_json, print_table, say, visible
from pollwise.durations import short
from pollwise.errors import ConfigError, PayloadError
from pollwise.queues.base import Queue, Stats
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import DEPTH_MAX, ENDED, STATES, JobInfo, NewJob, Progress, State
from pollwise.runtime.redact import without_secrets

T = TypeVar("T")

app = typer.Typer(
    help="Put, list, cancel, retry and drop jobs.\n\nExample: pollwise queue stats sqlite:///jobs.db",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="The queue, as in sqlite:///jobs.db?queue=mail")]
Limit = Annotated[int, typer.Option(help="Show at most this many jobs.")]
After = Annotated[str | None, typer.Option(help="Continue after this job id.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Only jobs of this kind; may be repeated.")
]
Id = Annotated[str, typer.Argument(help="The job's id, as `queue list` shows it.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Job ids; or --all.")]
All = Annotated[bool, typer.Option("--all", help="All dead jobs of the queue.")]

#: The facts of a job that are times.
TIMES = ("created_at", "run_at", "since", "claimed_at")
#: What `queue cancel` says about a job, by its state.
CANCELLED = {
    "cancelled": "cancelled",
    "leased": "runs; its worker stops it at the next renewal of its lease",
}


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
    header: Annotated[
        list[str] | None,
        typer.Option(help="A header of the job, as name=value; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put one job.

    Example: pollwise queue put sqlite:///jobs.db resize '{"image": 7}' --delay 30s
    """
    value = _from_stdin() if payload == "-" else _decoded(payload)
    headers = _headers(header or [])
    job = NewJob(
        kind, value, key=key, priority=priority, delay=delay, unique=unique, headers=headers
    )
    (job_id,) = with_queue(url, lambda queue: queue.put(job), create=True)
    print_json({"id": job_id}) if as_json else say(job_id)


@app.command("stats")
def stats(
    url: Url,
    by_kind: Annotated[bool, typer.Option("--by-kind", help="Count each kind by itself.")] = False,
    as_json: Json = False,
) -> None:
    """Count the jobs by state.

    Example: pollwise queue stats sqlite:///jobs.db --by-kind
    """
    if by_kind:
        _print_kinds(with_queue(url, lambda queue: queue.stats_by_kind()), as_json)
        return
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
                _shortened(info.error or info.job.unreadable or _encoded(info.job.payload)),
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
    """Show one job: its payload, its headers, who ran it, how far it is, and how it ended.

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
        for n, text in enumerate(_lines(info, name, value)):
            say((f"{'' if n else name:<11}", "bold"), visible(text))


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


@app.command("cancel")
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


@app.command("retry")
def retry(url: Url, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """Run dead jobs again, with fresh attempts; by id, also done and cancelled ones.

    Example: pollwise queue retry sqlite:///jobs.db 17 18
    """
    wanted = _chosen(ids, everything)
    _report("retried", *with_queue(url, lambda q: _each(q, wanted, q.retry, ENDED)), as_json)


@app.command("drop")
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


def _facts(info: JobInfo) -> dict[str, Any]:
    """The record of a job, without its claim: the token is for its worker only."""
    return {
        **asdict(info.job),
        "state": info.state,
        "since": info.since,
        "worker": info.worker,
        "claimed_at": info.claimed_at,
        "progress": None if info.progress is None else asdict(info.progress),
        "cancel": info.cancel,
        "errors": [asdict(failure) for failure in info.errors],
        "result": info.result,
    }


def _lines(info: JobInfo, name: str, value: Any) -> Iterator[str]:
    """A fact as text, usually of one line."""
    if name == "payload" or (name == "result" and value is not None):
        yield _encoded(value)
    elif name == "headers" and value:
        yield from (f"{header}={text}" for header, text in value.items())
    elif name == "errors" and value:
        for each in info.errors:
            yield f"{moment(each.at)}  attempt {each.attempt}  {each.error}"
    elif name == "progress" and info.progress is not None:
        yield _progress_text(info.progress)
    elif name == "cancel":
        yield "asked for" if value else NOTHING
    elif name in TIMES and value is not None:
        yield moment(value)
    else:
        yield NOTHING if value in (None, {}, []) else str(value)


def _progress_text(progress: Progress) -> str:
    fraction = "" if progress.fraction is None else f"{progress.fraction:.0%}"
    parts = (fraction, progress.note or "", f"at {moment(progress.at)}")
    return "  ".join(part for part in parts if part)


def _print_kinds(kinds: dict[str, Stats], as_json: bool) -> None:
    if as_json:
        print_json({kind: asdict(counts) for kind, counts in kinds.items()})
        return
    rows = [
        (
            kind,
            *(getattr(counts, state) for state in STATES),
            NOTHING if counts.oldest_age is None else short(counts.oldest_age),
        )
        for kind, counts in sorted(kinds.items())
    ]
    print_table(("kind", *STATES, "oldest waits"), rows, empty="no jobs", narrow=STATES)


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--header {text!r} must be name=value")
        if name in headers:
            raise ConfigError(f"--header {name!r} is given twice")
        headers[name] = value
    return headers


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
