"""`pollwise poll URL`: print what a source finds, a line of JSON for each item."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

import typer

from pollwise.cli.options import LogFormat, LogLevel
from pollwise.cli.output import Unread, fail
from pollwise.core.retry import Retry
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.durations import seconds
from pollwise.errors import ConfigError, PollwiseError
from pollwise.lab.policies import parse_one
from pollwise.observe import logs
from pollwise.platforms import loops
from pollwise.runtime.events import Events, PollFinished
from pollwise.runtime.loop import POLL_RETRY, PollLoop
from pollwise.runtime.loop import poll as poll_source
from pollwise.runtime.redact import without_secrets_inside
from pollwise.runtime.signals import stopping_on_signals
from pollwise.sources import open_source

STRATEGY = "adaptive 1s 1m"


def poll(
    url: Annotated[str, typer.Argument(help="The source, such as folder:///inbox.")],
    strategy: Annotated[
        str | None,
        typer.Option(help=f"The polling strategy and its settings; {STRATEGY} by default."),
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Poll at this interval instead: 30s, 5m.")
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option(
            help="Where to remember what was printed: sqlite:///cursors.db. Without it, the next "
            "run prints everything again."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print what there is now, then exit; 1 if a poll failed.")
    ] = False,
    maximum: Annotated[
        int | None,
        typer.Option("--max", min=1, help="Exit after this many items."),
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Poll a source and print each item once, as a line of JSON.

    The cursor is saved after the lines of a poll are written: no item is lost, and items are
    printed twice only after a crash. The URL is that of `pollwise.sources.open_source`; write it
    in single quotes if it has ${NAME}, which stands for an environment variable. A page of a JSON
    API is always printed whole, even if that is more than --max.

    Exit code 0 if it was stopped, or reached --once or --max; 1 if the source failed for good.

    Example: pollwise poll 'folder:///inbox?pattern=*.csv' --cursor sqlite:///cursors.db --once
    """
    logs.set_up(log_level or "warning", log_format or "text", libraries=True)
    pace = _strategy(strategy, every, once)
    try:
        loops.run(_poll(url, pace, cursor, once=once, maximum=maximum))
    except _PollError as error:
        fail(without_secrets_inside(str(error)))
        raise typer.Exit(1) from None


class _PollError(Exception):
    """A poll that failed for good."""


def _strategy(text: str | None, every: str | None, once: bool) -> Strategy:
    ways = ("--strategy", text), ("--every", every), ("--once", once or None)
    given = [option for option, value in ways if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} contradict each other; give one of them")
    if once:
        return Fixed(1)  # no pause is taken
    if every is not None:
        return Fixed(seconds(every, "--every", positive=True))
    return parse_one(STRATEGY if text is None else text, None)


async def _poll(
    url: str, strategy: Strategy, cursor: str | None, *, once: bool, maximum: int | None
) -> None:
    source = open_source(url, cursor=cursor)
    try:
        events, full = Events(), False

        def note(event: PollFinished) -> None:
            nonlocal full
            full = event.capacity is not None and event.found >= event.capacity

        events.subscribe(note, PollFinished)
        loop: PollLoop[Any] = poll_source(
            source, strategy, drain=True if once else None, spread=False, events=events,
            retry=Retry.never() if once else POLL_RETRY,
        )  # fmt: skip
        left = math.inf if maximum is None else maximum
        polling: asyncio.Future[Sequence[Any] | None] | None = None

        def stop() -> None:
            loop.stop()
            if polling is not None:
                polling.cancel()

        with stopping_on_signals(stop, 0.0):
            while left > 0 and not loop.stopped:
                source.limit = int(min(source.limit, left))
                polling = asyncio.ensure_future(loop.poll_once())
                items = await _found(polling, loop)
                if items is None:
                    continue
                # In a thread, because a reader that does not read must not hold up a stop.
                await asyncio.to_thread(_print, items)
                await source.commit()
                left -= len(items)
                if once and not full:
                    break
    except ConfigError:
        raise
    except PollwiseError as error:
        raise _PollError(str(error)) from error
    finally:
        await source.close()


async def _found(
    polling: asyncio.Future[Sequence[Any] | None], loop: PollLoop[Any]
) -> Sequence[Any] | None:
    """What a poll found; None if it failed, or was stopped."""
    try:
        return await polling
    except asyncio.CancelledError:
        if loop.stopped:
            return None
        raise
    except PollwiseError:
        raise
    except Exception as error:
        raise _PollError(f"{loop.name}: {type(error).__name__}: {error}") from error


def _print(items: Sequence[Any]) -> None:
    """A line for each, flushed."""
    try:
        sys.stdout.writelines(f"{_line(item)}\n" for item in items)
        sys.stdout.flush()
    except BrokenPipeError:
        raise Unread from None


def _line(item: Any) -> str:
    facts = _facts(item)
    try:
        return json.dumps(facts, default=_plain, allow_nan=False)
    except ValueError:  # JSON has no NaN and no Infinity: they become texts
        return json.dumps(json.loads(json.dumps(facts, default=_plain), parse_constant=str))


def _facts(item: Any) -> Any:
    """An item as values for JSON, if it has a way to make them."""
    if hasattr(item, "as_json"):
        return item.as_json()
    if dataclasses.is_dataclass(item):
        return {each.name: getattr(item, each.name) for each in dataclasses.fields(item)}
    return item


def _plain(value: Any) -> Any:
    """A value that JSON lacks: bytes in Base64, times by ISO 8601, anything else as text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)
