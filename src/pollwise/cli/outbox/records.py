"""What `pollwise outbox` shows of an outbox: its records, one record, its relays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, fail, moment, print_json, print_table, say, visible
from pollwise.errors import ConfigError
from pollwise.outbox import open_store
from pollwise.outbox.records import RECORD_STATES, RecordInfo, RecordState
from pollwise.outbox.stores.base import OutboxStore
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

    return asyncio.run(main())


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
        ("id", "kind", "key", "put", "state", "since", "why"),
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
        "why": lambda info: info.error or NOTHING,
    }
    print_table(
        columns,
        [[cells[column](info) for column in columns] for info in page],
        empty=empty,
        narrow=("id", "put", "state", "since", "died"),
        cut=columns[-1],
    )
    if len(page) == limit:
        say(f"more may follow: --after {page[-1].record.id}")


def show(
    url: Url,
    record_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the record.")],
    as_json: Json = False,
) -> None:
    """Show one record: its payload, its headers, and what each handler has done.

    Example: pollwise outbox show sqlite:///shop.db 17
    """
    info = with_store(url, lambda store: store.get(record_id))
    if info is None:
        fail(
            f"no record {record_id} in {without_secrets(url)}; it may be done (records are deleted "
            "when they are done, unless the outbox keeps them)"
        )
        raise typer.Exit(1)
    facts = _facts(info)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
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


def _facts(info: RecordInfo) -> dict[str, Any]:
    record, own = info.record, ("id", "outbox", "kind", "payload", "key", "created_at")
    return {
        **{name: getattr(record, name) for name in own},
        "headers": dict(record.headers),
        **{name: getattr(info, name) for name in ("state", "since", "error", "progress", "relay")},
    }
