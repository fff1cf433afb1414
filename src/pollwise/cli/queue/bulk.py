"""Filters as options of commands, and actions on all jobs that match one."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from pollwise.cli.output import print_json, say
from pollwise.durations import seconds
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.views import BulkDone, JobFilter
from pollwise.runtime.jobs import STATES
from pollwise.runtime.store import MAX_PAGE

#: Before it asks, a command counts at most this many matching jobs, in at most this many pages.
ASKED_MAX, ASKED_PAGES = 10_000, 20

StateOf = Annotated[str | None, typer.Option("--state", help=f"One of {', '.join(STATES)}.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Only jobs of this kind; may be repeated.")
]
Key = Annotated[str | None, typer.Option("--key", help="Only jobs with this key.")]
ErrorText = Annotated[
    str | None, typer.Option("--error", help="Only jobs whose newest error contains this text.")
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", help="Only jobs put longer ago than this: 7d, 12h.")
]
NewerThan = Annotated[
    str | None, typer.Option("--newer-than", help="Only jobs put within this time: 7d, 12h.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def filter_of(
    state: str | None,
    kind: list[str] | None,
    key: str | None,
    error: str | None,
    older_than: str | None,
    newer_than: str | None,
    **more: Any,
) -> JobFilter:
    """The filter that the options of a command describe."""
    given: Any = state
    return JobFilter(
        given,
        tuple(kind) if kind else None,
        key=key,
        error=error,
        older_than=None if older_than is None else seconds(older_than, "older-than"),
        newer_than=None if newer_than is None else seconds(newer_than, "newer-than"),
        **more,
    )


async def act_on_all(
    queue: Queue,
    act: Callable[[JobFilter], Awaitable[BulkDone]],
    chosen: JobFilter,
    done: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Retry, drop or cancel all jobs that match, a page at a time; ask first. Print how many."""
    chosen = replace(chosen, limit=MAX_PAGE)
    if not yes:
        await _ask(queue, chosen, done)
    count, after = 0, None
    while True:
        some = await act(replace(chosen, after=after))
        count, after = count + some.count, some.next
        if after is None:
            break
    print_json({done: count}) if as_json else say(f"{done} {count} job(s)")


async def _ask(queue: Queue, chosen: JobFilter, done: str) -> None:
    """Ask whether to go on; raises `typer.Abort` if the answer is no."""
    if not sys.stdin.isatty():
        raise ConfigError(
            "a filter needs a confirmation, and nobody can answer here; add --yes, or look "
            "with `pollwise queue list` and the same options"
        )
    found, after = 0, None
    for _ in range(ASKED_PAGES):
        page = await queue.page(replace(chosen, after=after))
        found, after = found + len(page.jobs), page.next
        if after is None or found >= ASKED_MAX:
            break
    number = f"{found:,}" if after is None else f"at least {found:,}"
    typer.confirm(f"{number} job(s) match and will be {done}. Go on?", abort=True, err=True)
