"""`pollwise queue show`: one job, and with --follow how far it is until it ends; and
`pollwise queue flow`: the jobs of a flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, fail, moment, out, print_json, say, visible
from pollwise.cli.queue.opening import Id, Url, with_queue
from pollwise.cli.queue.text import encoded, progress_text
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.queues.base import Queue
from pollwise.queues.flows.tree import rows_of
from pollwise.queues.flows.view import FlowView
from pollwise.runtime.jobs import ENDED, STATES, JobInfo, State
from pollwise.runtime.loop import poll
from pollwise.runtime.payloads.envelope import shown
from pollwise.runtime.redact import without_secrets

Follow = Annotated[
    bool, typer.Option("--follow", help="Follow the job with a progress bar until it ends.")
]
#: The facts of a job that are times.
TIMES = ("created_at", "run_at", "since", "claimed_at")
#: How often --follow polls the job: its worker writes progress once a second.
FOLLOW = Adaptive("250ms", "1s")

#: How states look on a terminal.
STYLES = {"dead": "bold red", "done": "green", "leased": "cyan"}

#: Shows a job that has changed.
Shower = Callable[[JobInfo], None]


def show(url: Url, job_id: Id, follow: Follow = False, as_json: Json = False) -> None:
    """Show one job: its payload, its headers, who ran it, its progress, and how it ended.

    With --follow, exits with 0 if the job is done, and with 1 if it is dead, was cancelled, or does
    not exist any more. With --json, each change is one line. Finished jobs are deleted unless they
    are kept (?keep=1h).

    Example: pollwise queue show sqlite:///jobs.db 17 --follow
    """
    if follow:
        state = with_queue(url, lambda queue: _followed(queue, job_id, as_json))
        if state not in (None, "done"):
            raise typer.Exit(1)
    else:
        info = with_queue(url, lambda queue: queue.get(job_id))
        state = None if info is None else _print(info, as_json)
    if state is None:
        why = "it may be done (finished jobs are deleted unless kept, as with ?keep=1h)"
        fail(f"no job {job_id} in {without_secrets(url)}; {why}")
        raise typer.Exit(1)


def flow(url: Url, job_id: Id, as_json: Json = False) -> None:
    """Show the flow of a job: which jobs wait for which, and how far each is.

    A job is shown below the one that it waits for. Jobs that begin at the same time are branches.
    Exits with 1 if the job belongs to no flow, or does not exist any more: the jobs of a flow are
    kept for an hour after its end, or for as long as the queue keeps finished jobs (?keep=1d).
    Of a flow with more than 1,000 jobs, the first 1,000 are shown, and the job itself.

    Example: pollwise queue flow sqlite:///jobs.db 17
    """
    view = with_queue(url, lambda queue: queue.flow(job_id))
    if view is None:
        fail(f"job {job_id} in {without_secrets(url)} does not exist (any more), or is in no flow")
        raise typer.Exit(1)
    if as_json:
        print_json(flow_facts(view))
        return
    states = Counter(each.info.state for each in view.jobs)
    counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    first = f"{len(view.jobs)} of its jobs" if view.more else f"{len(view.jobs)} jobs"
    say((f"flow {visible(view.name)}", "bold"), f"  {first}: {counts}")
    for row in rows_of(view):
        info = row.job.info
        detail = info.error if info.state == "dead" else progress_text_of(info)
        note = "  ".join(filter(None, (row.note, visible(detail or ""))))
        style = STYLES.get(info.state, "")
        head = f"{row.lines}{visible(info.job.kind)} {info.job.id}  "
        say(head, (_state(info), style), (f"  {note}" if note else "", "dim"))


def progress_text_of(info: JobInfo) -> str | None:
    """The progress of a running job, if it is known."""
    if info.state != "leased" or info.progress is None:
        return None
    return progress_text(info.progress)


def flow_facts(view: FlowView) -> dict[str, Any]:
    """A flow as plain values."""
    jobs = [
        {
            "id": each.info.job.id,
            "kind": each.info.job.kind,
            "state": each.info.state,
            "since": each.info.since,
            "attempt": each.info.job.attempt,
            "after": each.after,
            "on_failure": each.on_failure,
            "progress": None if each.info.progress is None else asdict(each.info.progress),
            "error": each.info.error,
        }
        for each in view.jobs
    ]
    return {"flow": view.name, "more": view.more, "jobs": jobs}


# Following


async def _followed(queue: Queue, job_id: str, as_json: bool) -> State | None:
    """Show each change of a job until it has ended; returns its state, or None if there is none."""
    before: object = None

    async def look() -> list[JobInfo | None]:
        nonlocal before
        info = await queue.get(job_id)
        last, before = before, _shown(info)
        return [] if before == last else [info]

    polls = poll(look, FOLLOW, clock=queue.clock, spread=False)
    with _shower(job_id, as_json) as show_it:
        async for [info] in polls:
            if info is None:
                break
            show_it(info)
            if info.state in ENDED:
                return cast("State", info.state)
    return None


def _shown(info: JobInfo | None) -> object:
    """What is shown of a job; if it stays the same, nothing is printed."""
    if info is None:
        return ()
    return info.state, info.job.attempt, info.worker, info.progress, info.cancel, info.errors


def _shower(job_id: str, as_json: bool) -> AbstractContextManager[Shower]:
    if as_json:
        return _as_json()
    return _as_bar(job_id) if out.is_terminal else _as_lines()


@contextmanager
def _as_json() -> Iterator[Shower]:
    yield lambda info: print_json(facts_of(info))


@contextmanager
def _as_lines() -> Iterator[Shower]:
    yield lambda info: say(visible(_line(info)))


@contextmanager
def _as_bar(job_id: str) -> Iterator[Shower]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    last: JobInfo | None = None

    def update(info: JobInfo) -> None:
        nonlocal last
        last = info
        progress = info.progress
        fraction = None if progress is None else progress.fraction
        if info.state == "done":
            fraction = 1.0
        bar.update(
            task,
            description=visible(f"{info.job.kind} {job_id}  {_state(info)}"),
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            note=visible((progress and progress.note) or ""),
        )

    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(visible(job_id), total=None, note="")
        yield update
    if last is not None and last.state in ENDED:
        say(visible(_line(last)))


def _line(info: JobInfo) -> str:
    if info.state == "leased":
        detail = progress_text_of(info)
    elif info.state == "done":
        detail = None if info.result is None else encoded(info.result)
    else:
        detail = info.error
    return "  ".join(filter(None, (f"{info.job.kind} {info.job.id}", _state(info), detail)))


def _state(info: JobInfo) -> str:
    if info.state != "leased":
        return info.state
    runs = "runs" if info.job.attempt == 1 else f"runs (attempt {info.job.attempt})"
    return f"{runs}, asked to cancel" if info.cancel else runs


# The record


def _print(info: JobInfo, as_json: bool) -> State:
    facts = facts_of(info)
    if as_json:
        print_json(facts)
        return info.state
    if facts["unreadable"] is None:  # as nearly always
        del facts["unreadable"]
    for name, value in facts.items():
        for n, text in enumerate(_lines(info, name, value)):
            say((f"{'' if n else name:<11}", "bold"), visible(text))
    return info.state


def facts_of(info: JobInfo) -> dict[str, Any]:
    """The record of a job, without its claim: the token is for its worker only."""
    job = asdict(info.job)
    for name in ("sealed", "locked"):  # commands have no key, and need none
        del job[name]
    return {
        **job,
        "payload": shown(info.job.payload),
        "state": info.state,
        "since": info.since,
        "worker": info.worker,
        "claimed_at": info.claimed_at,
        "progress": None if info.progress is None else asdict(info.progress),
        "cancel": info.cancel,
        "errors": [asdict(failure) for failure in info.errors],
        "result": shown(info.result),
        **({"cut": cut} if (cut := info.cut_parts) else {}),
    }


def _lines(info: JobInfo, name: str, value: Any) -> Iterator[str]:
    """A fact as text, usually of one line."""
    if name == "payload" or (name == "result" and value is not None):
        yield encoded(getattr(info.job if name == "payload" else info, name))
    elif name == "headers" and value:
        yield from (f"{header}={text}" for header, text in value.items())
    elif name == "errors" and value:
        for each in info.errors:
            yield f"{moment(each.at)}  attempt {each.attempt}  {each.error}"
            yield from (each.traceback or "").splitlines()
    elif name == "progress" and info.progress is not None:
        yield progress_text(info.progress)
    elif name == "cancel":
        yield "asked for" if value else NOTHING
    elif name in TIMES and value is not None:
        yield moment(value)
    else:
        yield NOTHING if value in (None, {}, []) else str(value)
