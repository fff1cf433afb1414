"""What `pollwise outbox` shows of an outbox: its records, one record, its relays."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, fail, moment, print_json, print_table, say, visible
from pollwise.cli.queue.history import By, Kinds, Since, print_history
from pollwise.errors import ConfigError
from pollwise.outbox import open_store
from pollwise.outbox.records import RECORD_STATES, RecordInfo, RecordState
from pollwise.outbox.stores.base import OutboxStore
from pollwise.platforms import loops
from pollwise.runtime.payloads.envelope import shown
from pollwise.runtime.redact import without_secrets

T = TypeVar("T")

Url = Annotated[str, typer.Argument(help="The database, as in sqlite:///shop.db?outbox=default")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only records of this kind.")]
Key = Annotated[str | None, typer.Option("--key", help="Only records of this key.")]
Limit = Annotated[int, typer.Option("--limit", help="Maximum number of records.")]
After = Annotated[str | None, typer.Option("--after", help="Continue after this record id.")]


def with_store(url: str, work: Callable[[OutboxStore], Awaitable[T]]) -> T:
    """Open the store of an outbox, call `work` with it, close it."""

    async def main() -> T:
        async with open_store(url) as store:
            return await work(store)

    return loops.run(main())


def list_records(
    url: Url,
    state: Annotated[
        str | None, typer.Option("--state", help=f"One of {', '.join(RECORD_STATES)}.")
    ] = None,
    kind: Kind = None,
    key: Key = None,
    limit: Limit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List records in the order of the outbox, with their states.

    Example: pollwise outbox list sqlite:///shop.db --state waiting
    """
    if state is not None and state not in RECORD_STATES:
        raise ConfigError(f"--state {state} must be one of {', '.join(RECORD_STATES)}")
    _show_page(
        _page(url, state, kind, key, limit, after),
        limit,
        ("id", "kind", "key", "put", "state", "since", "waits for"),
        "no such records",
        as_json=as_json,
    )


def dead(
    url: Url,
    kind: Kind = None,
    key: Key = None,
    limit: Limit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List dead records with their errors.

    Example: pollwise outbox dead sqlite:///shop.db --kind order.placed
    """
    _show_page(
        _page(url, "dead", kind, key, limit, after),
        limit,
        ("id", "kind", "key", "put", "died", "error"),
        "no dead records",
        as_json=as_json,
    )


def _page(
    url: str,
    state: RecordState | None,
    kind: str | None,
    key: str | None,
    limit: int,
    after: str | None,
) -> list[RecordInfo]:
    return with_store(
        url, lambda store: store.records(state, kind=kind, key=key, limit=limit, after=after)
    )


def _show_page(
    page: Sequence[RecordInfo],
    limit: int,
    columns: tuple[str, ...],
    empty: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json([_facts(info) for info in page])
        return
    cells: dict[str, Callable[[RecordInfo], object]] = {
        "id": lambda info: info.record.id,
        "kind": lambda info: info.record.kind,
        "key": lambda info: info.record.key,
        "put": lambda info: moment(info.record.created_at),
        "state": lambda info: info.state,
        "since": lambda info: moment(info.since),
        "died": lambda info: moment(info.since),
        "error": lambda info: info.error or NOTHING,
        "waits for": lambda info: info.why or info.error or NOTHING,
        "lane": lambda info: info.lane or NOTHING,
    }
    if any(info.lane for info in page):
        columns = (columns[0], "lane", *columns[1:])
    print_table(
        columns,
        [[cells[column](info) for column in columns] for info in page],
        empty=empty,
        narrow=("id", "put", "state", "since", "died"),
        cut=columns[-1],
    )
    if len(page) == limit:
        say(f"more may follow: --after {page[-1].place}")


def show(
    url: Url,
    record_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the record.")],
    as_json: Json = False,
) -> None:
    """Show one record: its payload, its headers, what each handler has done, what it waits for.

    A record that was handed to its lanes is shown once for each lane that has not completed it.

    Example: pollwise outbox show sqlite:///shop.db 17
    """
    found = with_store(url, lambda store: store.get(record_id))
    if not found:
        fail(
            f"no record {record_id} in {without_secrets(url)}; it may be done (records are deleted "
            "when they are done, unless the outbox keeps them)"
        )
        raise typer.Exit(1)
    if as_json:
        print_json([_facts(info) for info in found])
        return
    for number, info in enumerate(found):
        if number:
            say("")
        for name, value in _facts(info).items():
            if name in ("created_at", "since"):
                shown = moment(value)
            elif isinstance(value, str):
                shown = value
            else:
                shown = NOTHING if value is None else json.dumps(value, ensure_ascii=False)
            say((f"{name:<11}", "bold"), visible(shown or NOTHING))


def relays(url: Url, as_json: Json = False) -> None:
    """List the live relays of an outbox and their handlers.

    Example: pollwise outbox relays sqlite:///shop.db
    """
    live = with_store(url, lambda store: store.relays())
    if as_json:
        print_json([{k: v for k, v in asdict(each).items() if k != "newer"} for each in live])
        return
    print_table(
        ("relay", "started", "seen", "handlers"),
        [
            (
                each.relay,
                moment(each.started_at),
                moment(each.seen_at),
                "; ".join(f"{name}: {', '.join(of)}" for name, of in each.handlers.items()),
            )
            for each in live
        ],
        empty="no relay runs, or none has announced itself in the last 90 s",
        narrow=("started", "seen"),
    )


def replay(
    url: Url,
    kind: Kind = None,
    key: Key = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Put at this time or later, as 2026-11-16T08:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Put before this time.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All kept records.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    as_json: Json = False,
) -> None:
    """Handle kept records again, with all their handlers, in their old order and with the same ids.

    An outbox keeps completed records if it has keep="7d".

    Example: pollwise outbox replay sqlite:///shop.db --kind order.placed --dry-run
    """
    given = any(value is not None for value in (kind, key, since, until))
    if given == everything:
        raise ConfigError("give one or more of --kind, --key, --since and --until, or --all")
    times = {"since": _moment(since, "--since"), "until": _moment(until, "--until")}
    count = with_store(
        url, lambda store: store.replay(kind=kind, key=key, **times, dry_run=dry_run)
    )
    what = "would_replay" if dry_run else "replayed"
    print_json({what: count}) if as_json else say(f"{what.replace('_', ' ')} {count} record(s)")


def _moment(text: str | None, option: str) -> datetime | None:
    """A time in ISO format; without a zone, it is local time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError(f"{option} {text} is not a time like 2026-11-16T08:00") from None


def _facts(info: RecordInfo) -> dict[str, Any]:
    record, own = info.record, ("id", "outbox", "kind", "payload", "key", "created_at")
    return {
        **{name: getattr(record, name) for name in own},
        "payload": shown(record.payload),
        "headers": dict(record.headers),
        **{name: getattr(info, name) for name in ("lane", "state", "since", "error", "progress")},
        "relay": info.relay,
        "why": info.why,
    }


def history(
    url: Url, since: Since = "24h", by: By = None, kind: Kinds = None, as_json: Json = False
) -> None:
    """Show what the relays of an outbox did: records, failures, waits and polls over time.

    Relays write it about once a minute. It is kept by minute for 7 days, then by hour for 90.

    Example: pollwise outbox history sqlite:///shop.db --since 6h
    """

    async def work(store: OutboxStore) -> None:
        await print_history(store, "records", since, by, kind, as_json)

    with_store(url, work)
