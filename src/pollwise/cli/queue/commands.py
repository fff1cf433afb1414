"""The commands of `pollwise queue` for the queue as a whole: put, count and migrate."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pollwise.cli.migrating import Sql, print_applied, print_sql
from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, print_json, print_table, say, visible
from pollwise.cli.queue import jobs, limits, results, steering
from pollwise.cli.queue import top as live
from pollwise.cli.queue.export import export
from pollwise.cli.queue.history import history
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.show import flow, show
from pollwise.cli.queue.text import counted, shortened
from pollwise.durations import short
from pollwise.errors import ConfigError, PayloadError
from pollwise.queues.base import Queue
from pollwise.queues.notes import PauseInfo
from pollwise.queues.presence import WorkerInfo, handlers_of, unhandled
from pollwise.queues.urls import open_queue
from pollwise.queues.views import MEASURED_MAX, Stats
from pollwise.runtime.jobs import STATES, NewJob
from pollwise.runtime.payloads.depth import DEPTH_MAX
from pollwise.settings import load
from pollwise.settings.codecs import codec_of

#: What is paused, by kind.
Pauses = dict[str | None, PauseInfo]

app = typer.Typer(
    help="Put, list, cancel, retry and drop jobs; pause them, and see their workers.\n\n"
    "Example: pollwise queue stats sqlite:///jobs.db",
    no_args_is_help=True,
)


@app.command("put")
def put(
    url: Url,
    kind: Annotated[str, typer.Argument(help="The job's kind, which picks the handler.")],
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
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the job with this --unique while it waits.")
    ] = False,
    debounce: Annotated[
        str | None,
        typer.Option(help="As --replace, and run after this long without another put: 5s."),
    ] = None,
    limit_group: Annotated[
        str | None, typer.Option(help="The job's group, if limits are by group.")
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
    value = decoded_payload(payload)
    headers = headers_from(header or [])
    job = NewJob(
        kind, value, key=key, priority=priority, delay=delay, unique=unique, replace=replace,
        debounce=debounce, headers=headers, limit_group=limit_group,
    )  # fmt: skip
    codec = codec_of(load())
    (job_id,) = with_queue(url, lambda queue: queue.put(job), create=True, codec=codec)
    print_json({"id": job_id}) if as_json else say(job_id)


@app.command("stats")
def stats(
    url: Url,
    by_kind: Annotated[bool, typer.Option("--by-kind", help="Count each kind separately.")] = False,
    as_json: Json = False,
) -> None:
    """Count the jobs by state.

    Example: pollwise queue stats sqlite:///jobs.db --by-kind
    """
    if by_kind:
        _print_kinds(*with_queue(url, _kinds_of), as_json)
        return
    found, pauses = with_queue(url, _counts_of)
    if as_json:
        print_json({**found.to_value(), "paused": steering.pause_facts(pauses)})
        return
    age = found.oldest_age
    rows = [(state, counted(found, state)) for state in STATES]
    print_table(("state", "jobs"), rows)
    say(f"oldest ready job: {'none' if age is None else 'waiting for ' + short(age)}")
    steering.print_pauses(pauses)


async def _counts_of(queue: Queue) -> tuple[Stats, Pauses]:
    return await queue.stats(MEASURED_MAX), await steering.pauses_of(queue)


async def _kinds_of(queue: Queue) -> tuple[dict[str, Stats], Pauses, list[WorkerInfo] | None]:
    kinds, pauses = await queue.stats_by_kind(), await steering.pauses_of(queue)
    return kinds, pauses, await steering.workers_of(queue)


app.command("list")(jobs.list_jobs)
app.command("history")(history)
app.command("show")(show)
app.command("flow")(flow)
app.command("result")(results.result)


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
    print_applied(applied, as_json=as_json, by_itself=script is None)


app.command("cancel")(jobs.cancel)
app.command("retry")(jobs.retry)
app.command("drop")(jobs.drop)
app.command("pause")(steering.pause)
app.command("resume")(steering.resume)
app.command("close-breaker")(steering.close_breaker)
app.command("workers")(steering.workers)
app.command("running")(steering.running)
app.command("set-concurrency")(steering.set_concurrency)
app.command("limits")(limits.limits)
app.command("set-limits")(limits.set_limits)
app.command("remove-limits")(limits.remove_limits)
app.command("top")(live.top)
app.command("export")(export)


def _print_kinds(
    kinds: dict[str, Stats], pauses: Pauses, there: list[WorkerInfo] | None, as_json: bool
) -> None:
    """Print the counts of each kind; mark kinds that wait and that no running worker handles."""
    nobody = [] if there is None else unhandled(kinds, there)
    if as_json:
        handlers = {k: None if there is None else handlers_of(k, there) for k in kinds}
        print_json(
            {
                kind: {
                    **counts.to_value(),
                    "workers": handlers[kind],
                    "unhandled": kind in nobody,
                    "paused": None in pauses or kind in pauses,
                }
                for kind, counts in kinds.items()
            }
        )
        return
    rows = [
        (
            kind,
            *(counted(counts, state) for state in STATES),
            NOTHING if counts.oldest_age is None else short(counts.oldest_age),
            NOTHING if there is None else handlers_of(kind, there) or "none",
        )
        for kind, counts in sorted(kinds.items())
    ]
    columns = ("kind", *STATES, "oldest waits", "workers")
    print_table(columns, rows, empty="no jobs", narrow=(*STATES, "workers"))
    if nobody:
        named = visible(", ".join(nobody))
        say((f"no running worker handles: {named}", "bold red"))
    steering.print_pauses(pauses)


def headers_from(given: Sequence[str]) -> dict[str, str]:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--header {text!r} must be name=value")
        if name in headers:
            raise ConfigError(f"--header {name!r} is given twice")
        headers[name] = value
    return headers


def decoded_payload(payload: str) -> Any:
    """A payload that was given as JSON, or - for standard input."""
    return _from_stdin() if payload == "-" else _decoded(payload)


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
            f"the payload {shortened(text)} is not JSON: {error}. "
            "Quote it for the shell, as in '{\"image\": 7}'."
        ) from None
    except RecursionError:
        raise PayloadError(
            f"the payload {shortened(text)} nests deeper than {DEPTH_MAX} levels; make it flatter"
        ) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
