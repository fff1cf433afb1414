"""`pollwise outbox …`: run the relay of an outbox, and show, retry and drop its records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pollwise.cli.migrating import Sql, print_applied, print_sql
from pollwise.cli.options import (
    HealthPort,
    Json,
    LogFormat,
    LogLevel,
    MaxMemory,
    MetricsPort,
    MetricsPorts,
    Processes,
    RecycleWhenFull,
    StrategyName,
    TraceContext,
    overrides_of,
    set_option,
)
from pollwise.cli.outbox import records as views
from pollwise.cli.outbox.records import Url, with_store
from pollwise.cli.output import NOTHING, fail, moment, print_json, print_table, say
from pollwise.cli.running import PROGRAM, begun, found_at, run_in_processes, serve_metrics
from pollwise.durations import seconds, short
from pollwise.errors import ConfigError, HandlerError
from pollwise.observe import logs
from pollwise.outbox import Outbox, open_store
from pollwise.outbox import export as measuring
from pollwise.outbox.publishers import open_publisher
from pollwise.platforms import loops
from pollwise.queues.views import MEASURED_MAX
from pollwise.runtime.events import Events
from pollwise.runtime.redact import without_user
from pollwise.runtime.signals import stopping_on_signals
from pollwise.settings import Settings, load
from pollwise.settings.codecs import codec_of

SET_EXAMPLE = "outbox.lease=30s"

app = typer.Typer(
    help="The transactional outbox: run its relay, show its records, unblock keys.\n\n"
    "Example: pollwise outbox stats postgresql://app@db/shop",
    no_args_is_help=True,
)

Ids = Annotated[list[str] | None, typer.Argument(help="Record ids, instead of --key or --all.")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="The dead records of this key.")]
Lane = Annotated[str | None, typer.Option("--lane", help="Only in this lane.")]
All = Annotated[bool, typer.Option("--all", help="All dead records of the outbox.")]


app.command("list")(views.list_records)
app.command("show")(views.show)
app.command("dead")(views.dead)
app.command("relays")(views.relays)
app.command("history")(views.history)
app.command("replay")(views.replay)


@app.command("run")
def run(
    target: Annotated[str, typer.Argument(help="The outbox as module:outbox, or its URL.")],
    processes: Processes = 1,
    publish: Annotated[
        list[str] | None,
        typer.Option("--publish", help="Publish records: 'order.*=redis://cache/0?stream=orders'."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Maximum number of keys per poll.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Keys handled at a time.")] = None,
    strategy: StrategyName = None,
    metrics_port: MetricsPorts = None,
    health_port: HealthPort = None,
    max_memory: MaxMemory = None,
    recycle_when_full: RecycleWhenFull = None,
    trace_context: TraceContext = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """Run a relay until SIGTERM or Ctrl-C; then finish running handlers and give the rest back.

    Example: pollwise outbox run shop.events:outbox --metrics-port 9091
    """
    flags = {"polling.strategy": strategy, "batch": batch, "concurrency": concurrency}
    flags |= {"metrics_port": metrics_port, "log_format": log_format, "log_level": log_level}
    flags |= {"max_memory": max_memory, "recycle_when_full": recycle_when_full}
    flags |= {"health_port": health_port, "trace_context": trace_context}
    overrides = overrides_of("outbox", setting, SET_EXAMPLE, publish=publish or None, **flags)
    settings = load(overrides=overrides, runs=begun("outbox"))
    run_relay(settings, target, processes)


def run_relay(
    settings: Settings, target: str, processes: int = 1, program: Sequence[str] = PROGRAM
) -> None:
    """Run the relay of the outbox `target`. program: the command line before its own words."""
    own = settings.outbox
    logs.set_up(own.log_level, own.log_format)
    found = _found(target, own.publish)
    logs.show_users_records(own.log_level, own.log_format)
    if settings.is_set("outbox.database") and own.database:
        found.database = own.database
    chain = codec_of(settings)
    if chain is not None:
        found.codec = chain
    run_in_processes(found, settings, "outbox", processes, program=program)


@app.command("export")
def export(
    url: Url,
    metrics_port: MetricsPort = None,
    every: Annotated[str, typer.Option(help="How often to measure the outbox.")] = "15s",
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """Serve the metrics of an outbox, whether a relay runs or not.

    Example: pollwise outbox export postgresql://app@db/shop --metrics-port 9092
    """
    flags = {"metrics_port": metrics_port, "log_format": log_format, "log_level": log_level}
    own = load(overrides=overrides_of("outbox", setting, SET_EXAMPLE, **flags)).outbox
    if own.metrics_port is None:
        raise ConfigError("say where to serve the metrics: --metrics-port 9092")
    logs.set_up(own.log_level, own.log_format)
    pause, events, stop = seconds(every, "--every", positive=True), Events(), asyncio.Event()

    async def main() -> None:
        async with open_store(url) as store:
            with stopping_on_signals(stop.set):
                await measuring.export(store, events, stop, pause)

    close = serve_metrics(events, own.metrics_port, own.metrics_host)
    try:
        loops.run(main())
    finally:
        close()


def _found(target: str, publish: Sequence[str]) -> Outbox:
    """The outbox of the code or at a URL, with a handler for each publisher of the settings."""
    if "://" in target:
        found = Outbox(target)
    else:
        found = found_at(target, Outbox, "pollwise outbox run", "pollwise.Outbox(database_url)")
    patterns: dict[str, list[str]] = {}
    for each in publish:
        kinds, _, url = each.partition("=")
        patterns.setdefault(url, []).extend(kinds.split(","))
    for url, kinds_of in patterns.items():
        found.handle(*kinds_of)(open_publisher(url))
    if not found.handlers:
        raise HandlerError(
            f"the outbox {without_user(target)!r} has no handler; register one with "
            "@outbox.handle('order.*'), or give --publish 'order.*=URL'"
        )
    return found


@app.command("stats")
def stats(url: Url, as_json: Json = False) -> None:
    """Count the records by state, and the blocked keys.

    Example: pollwise outbox stats sqlite:///shop.db
    """
    counts = asdict(with_store(url, lambda store: store.stats(MEASURED_MAX)))
    for each in (counts, *counts["lanes"].values()):
        each["capped"] = sorted(each["capped"])  # what has at least that many
    if as_json:
        print_json(counts)
        return
    age = counts.pop("oldest_age")
    blocked, behind = counts.pop("keys_blocked"), counts.pop("behind")
    lanes, every = counts.pop("lanes"), {**counts}

    def shown(of: dict[str, Any], state: str) -> str:
        return f"{of[state]}+" if state in of["capped"] else str(of[state])

    print_table(
        ("state", "records", *(f"lane {lane}" if lane else "no lane yet" for lane in lanes)),
        [
            (state, *(shown(of, state) for of in (every, *lanes.values())))
            for state in counts
            if state != "capped"
        ],
    )
    say(f"oldest record: {'none' if age is None else 'put ' + short(age) + ' ago'}")
    if blocked:
        say(
            (f"{blocked} key(s) blocked, {behind} record(s) behind them", "red"),
            ": see pollwise outbox blocked",
        )


@app.command("blocked")
def blocked(
    url: Url,
    limit: Annotated[int, typer.Option(help="Maximum number of keys.")] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this key.")] = None,
    as_json: Json = False,
) -> None:
    """List the keys that wait behind a dead record, and its error.

    Example: pollwise outbox blocked sqlite:///shop.db
    """
    page = with_store(url, lambda store: store.blocked(limit, after))
    if as_json:
        print_json([asdict(key) for key in page])
    else:
        lanes = ("lane",) if any(k.lane for k in page) else ()
        print_table(
            ("key", *lanes, "record", "kind", "since", "behind", "error"),
            [
                (
                    *((k.key, k.lane or NOTHING) if lanes else (k.key,)),
                    *(k.record_id, k.kind, moment(k.since), k.behind, k.error or NOTHING),
                )
                for k in page
            ],
            empty="no key is blocked",
            narrow=("record", "since", "behind"),
            cut="error",
        )
        if len(page) == limit:
            say(f"more may follow: --after {page[-1].key}")


@app.command("retry")
def retry(
    url: Url,
    ids: Ids = None,
    key: Keys = None,
    everything: All = False,
    lane: Lane = None,
    as_json: Json = False,
) -> None:
    """Make dead records ready again, with fresh attempts; their keys continue with them.

    Handlers that have completed a record are not called again.

    Example: pollwise outbox retry sqlite:///shop.db --key order-17
    """
    chosen = _chosen(ids, key, everything)
    count = with_store(url, lambda store: store.retry(*chosen, lane=lane))
    _report("retried", count, chosen, as_json)


@app.command("drop")
def drop(
    url: Url,
    ids: Ids = None,
    key: Keys = None,
    everything: All = False,
    lane: Lane = None,
    as_json: Json = False,
) -> None:
    """Delete dead records; their keys continue without them.

    Example: pollwise outbox drop sqlite:///shop.db 17
    """
    chosen = _chosen(ids, key, everything)
    count = with_store(url, lambda store: store.drop(*chosen, lane=lane))
    _report("dropped", count, chosen, as_json)


@app.command("release")
def release(
    url: Url,
    key: Annotated[list[str] | None, typer.Option("--key", help="The lease of this key.")] = None,
    relay: Annotated[str | None, typer.Option(help="The leases of this relay.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All leases of the outbox.")] = False,
    as_json: Json = False,
) -> None:
    """End the leases of relays that are gone, so that others continue with their keys at once.

    Short leases soon end by themselves; use this for long ones. If the relay still runs, the
    records that it is handling are handled once more.

    Example: pollwise outbox release sqlite:///shop.db --relay web-1:4711
    """
    if bool(key) + (relay is not None) + everything != 1:
        raise ConfigError("give one of: --key, --relay, --all")
    count = with_store(url, lambda store: store.release(key or None, relay))
    print_json({"released": count}) if as_json else say(f"released {count} key(s)")
    if not count and not everything:
        fail(
            f"no lease of {relay or ', '.join(key or ())}: see pollwise outbox list --state leased"
        )
        raise typer.Exit(1)


@app.command("prune")
def prune(
    url: Url,
    keep: Annotated[
        str | None,
        typer.Option(help="How long to keep completed records; default: ?keep= of the URL."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Delete completed records that are old enough. A running relay does this itself.

    Example: pollwise outbox prune sqlite:///shop.db --keep 7d
    """

    async def all_of_them() -> int:
        count = 0
        async with open_store(url, keep=keep) as store:
            if store.keep is None:
                raise ConfigError("say how long to keep records: --keep 7d, or ?keep=7d in the URL")
            while pruned := await store.prune():
                count += pruned
        return count

    count = loops.run(all_of_them())
    print_json({"pruned": count}) if as_json else say(f"pruned {count} record(s)")


@app.command("migrate")
def migrate(
    url: Url,
    sql: Sql = False,
    as_json: Json = False,
) -> None:
    """Create or upgrade the tables of the outbox in your database.

    Example: pollwise outbox migrate 'postgresql://app@db/shop' --sql | psql
    """
    if sql:
        print_sql(open_store(url).migration(), url, as_json=as_json)
        return
    print_applied(with_store(url, lambda store: store.migrate()), as_json=as_json)


Chosen = tuple[list[str] | None, list[str] | None]


def _chosen(ids: list[str] | None, keys: list[str] | None, everything: bool) -> Chosen:
    if bool(ids) + bool(keys) + everything != 1:
        raise ConfigError("give one of: record ids, --key, --all")
    return ids or None, keys or None


def _report(what: str, count: int, chosen: Chosen, as_json: bool) -> None:
    """Print how many; exit with 1 if a given id or key had no dead record."""
    print_json({what: count}) if as_json else say(f"{what} {count} record(s)")
    ids, keys = chosen
    if ids and count < len(set(ids)):
        fail(f"{len(set(ids)) - count} of {len(set(ids))} ids are not dead records here")
        raise typer.Exit(1)
    if keys and not count:
        fail(f"no dead record has the key {', '.join(keys)}")
        raise typer.Exit(1)
