"""`pollwise fleet …`: poll the targets of a file, show their state, and give them orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pollwise.cli.fleet import alerts, maintenance, opening, targets
from pollwise.cli.fleet.history import history
from pollwise.cli.fleet.opening import File, Store
from pollwise.cli.fleet.run import run as run_fleet
from pollwise.cli.fleet.views import FleetSnapshot, fitting, frame, phrase
from pollwise.cli.live import watch
from pollwise.cli.migrating import Sql, print_applied, print_sql
from pollwise.cli.options import (
    HealthPort,
    Json,
    LogFormat,
    LogLevel,
    MetricsPort,
    overrides_of,
    set_option,
)
from pollwise.cli.output import (
    NOTHING,
    fail,
    moment,
    out,
    print_json,
    print_table,
    print_wide,
    rounded,
    say,
    visible,
    warn,
)
from pollwise.durations import seconds, short
from pollwise.errors import ConfigError
from pollwise.fleet.alerting.checks import unheard
from pollwise.fleet.control import note_order
from pollwise.fleet.goals import Goals, shortfalls
from pollwise.fleet.stores.base import PENDING_MAX, FleetStore
from pollwise.fleet.views import (
    TargetState,
    after_orders,
    counted_targets,
    stalest_first,
    target_json,
)
from pollwise.observe import logs
from pollwise.platforms import loops
from pollwise.runtime.signals import process_ends_on_signals
from pollwise.settings import load

#: What `check` says of targets whose age does not count, if there are any.
RESTING_WORDS = {"dead": "dead", "paused": "paused", "quiet": "in quiet hours"}
SET_EXAMPLE = "fleet.lease=30s"

app = typer.Typer(
    help="Poll thousands of targets, each at its own pace.\n\nExample: pollwise fleet run",
    no_args_is_help=True,
)

Names = Annotated[list[str] | None, typer.Argument(help="The names of targets.")]
All = Annotated[bool, typer.Option("--all", help="All targets that the order applies to.")]


@app.command("run")
def run(
    file: File = None,
    store: Store = None,
    budget: Annotated[float | None, typer.Option(help="Polls a second over all targets.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Maximum number of polls at a time.")
    ] = None,
    api_port: Annotated[
        int | None, typer.Option(help="Serve the HTTP API on this port; 0 for any free port.")
    ] = None,
    api_tokens: Annotated[
        str | None,
        typer.Option(help="Accept the tokens in the store of a controller: sqlite:///farm.db."),
    ] = None,
    metrics_port: MetricsPort = None,
    health_port: HealthPort = None,
    metrics_by: Annotated[
        str | None,
        typer.Option(help="Labels of metrics: group, or target (one series for each target)."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset of settings: pulse.")] = None,
    node: Annotated[
        str | None, typer.Option(help="Name of this node, if several share a fleet.")
    ] = None,
    location: Annotated[
        str | None,
        typer.Option(help="Location of this node, if several locations confirm failures."),
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """Poll until SIGTERM or Ctrl-C; then finish the polls in progress and save the state.

    A changed file is applied within seconds, and at once after SIGHUP. Without a file, the targets
    are those that `pollwise fleet add` and the API put into the store.

    Example: pollwise fleet run --file fleet.toml --store sqlite:///fleet.db --api-port 8765
    """
    overrides = overrides_of(
        "fleet",
        setting,
        SET_EXAMPLE,
        file=file,
        store=store,
        budget=budget,
        concurrency=concurrency,
        api_port=api_port,
        api_tokens=api_tokens,
        metrics_port=metrics_port,
        health_port=health_port,
        metrics_by=metrics_by,
        preset=preset,
        location=location,
        log_format=log_format,
        log_level=log_level,
    )
    settings = load(overrides=overrides, runs="fleet")
    logs.set_up(settings.fleet.log_level, settings.fleet.log_format)
    targets = None
    if settings.fleet.store is None or opening.has_file(settings):
        targets = opening.read_checked(settings, overrides, "Nothing was started.")
    logs.show_users_records(settings.fleet.log_level, settings.fleet.log_format)
    with process_ends_on_signals():  # a probe that hangs in a thread would keep the process alive
        loops.run(run_fleet(settings, targets, overrides, node))


@app.command("check")
def check(
    path: Annotated[
        Path | None, typer.Argument(help="Only check this file of targets, and nothing else.")
    ] = None,
    file: File = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Check whether the fleet meets its goals, or whether a FILE is correct: exit code 0 or 1.

    With a FILE, nothing is started or looked up: secrets in its variables may be unset.

    The goals are the settings fleet.max_due (overdue polls), fleet.max_dead (dead targets) and
    fleet.max_staleness (age of a target's last success). Paused targets do not count, and quiet
    hours make no target older. A fleet that no node polls misses its goals.

    Example: pollwise fleet check --store sqlite:///fleet.db || page-somebody
    """
    if path is not None:
        if file is not None or store is not None:
            raise ConfigError(
                f"{path} alone is checked; leave out --file and --store, or leave out {path} to "
                "check whether the fleet meets its goals"
            )
        _check_file(path, as_json)
        return
    settings = opening.settings_for(file, store)
    kept_to = settings.fleet
    goals = Goals(kept_to.max_due, kept_to.max_staleness, kept_to.max_dead)
    listed = None
    if opening.has_file(settings):
        # The store alone does not show whether all targets of the file are well.
        chosen = opening.chosen(file, store)
        found = opening.read_checked(settings, chosen, "Nothing was checked.", for_views=True)
        to = found.alert_tables["alerts"].get("to", ())
        if text := unheard(found.targets, found.alert_tables["channel"], to):
            warn(text)
        listed = opening.listed(found)
    snapshot = opening.snapshot_of(settings, listed)
    missed = shortfalls(snapshot.targets, goals, snapshot.now, snapshot.notice)
    if as_json:
        print_json({"ok": not missed, "missed": missed, **snapshot.facts()})
    elif missed:
        for each in missed:
            fail(each)
    else:
        _say_met(snapshot.facts())
    if missed:
        raise typer.Exit(1)


@app.command("status")
def status(
    names: Names = None,
    file: File = None,
    store: Store = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of targets.")] = 50,
    as_json: Json = False,
) -> None:
    """Show the state of the fleet, the stalest targets first; or the named targets in full.

    Example: pollwise fleet status --store sqlite:///fleet.db --limit 10
    """
    snapshot = opening.snapshot_of(opening.settings_for(file, store), alerts=not names)
    if names:
        found = [opening.named(snapshot.targets, name) for name in names]
        if as_json:
            print_json([target_json(each) for each in found])
        else:
            for each in found:
                _show_one(each, snapshot.now)
        _warn_unpolled(snapshot)
    elif as_json:
        print_json(_facts(snapshot, stalest_first(snapshot.targets)[:limit]))
    else:
        print_wide(frame(snapshot, limit, out.size.width if out.is_terminal else None))


@app.command("top")
def top(
    file: File = None,
    store: Store = None,
    every: Annotated[str, typer.Option(help="Time between two updates.")] = "1s",
    lasting: Annotated[
        str | None, typer.Option("--for", help="End after this time; by default, with q or Ctrl-C.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch the fleet live: the stalest targets first, with state and next poll. q quits.

    Example: pollwise fleet top --store sqlite:///fleet.db
    """
    pause = seconds(every, "every", positive=True)
    left = None if lasting is None else seconds(lasting, "for")
    settings = opening.settings_for(file, store)
    if as_json:
        snapshot = opening.snapshot_of(settings)
        print_json(_facts(snapshot, stalest_first(snapshot.targets)))
        return
    if not out.is_terminal:  # print once, for a pipe
        print_wide(frame(opening.snapshot_of(settings), None))
        return
    listed = opening.listed_file(settings)

    async def live(store: FleetStore) -> int:
        take = partial(opening.take_snapshot, store, settings, listed)
        return await watch(take, fitting, max(pause, 0.1), left)

    try:
        code = opening.with_store(settings, live)
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)


app.command("history")(history)
app.command("alerts")(alerts.alerts)
app.command("ack")(alerts.ack)
app.command("test-channel")(alerts.try_channel)
app.add_typer(maintenance.app, name="maintenance")


@app.command("dead")
def dead(file: File = None, store: Store = None, as_json: Json = False) -> None:
    """List the dead targets. They are polled every ten minutes, and a success brings them back.

    Example: pollwise fleet dead --store sqlite:///fleet.db
    """
    snapshot = opening.snapshot_of(opening.settings_for(file, store))
    _warn_unpolled(snapshot)
    found = [each for each in snapshot.targets if each.state == "dead"]
    if as_json:
        print_json([target_json(each) for each in found])
        return
    print_table(
        ("target", "type", "failures", "last success", "last error", "error"),
        [
            (
                each.name,
                each.type,
                each.failures,
                NOTHING if each.succeeded_at is None else moment(each.succeeded_at),
                NOTHING if each.failed_at is None else moment(each.failed_at),
                each.error,
            )
            for each in found
        ],
        empty="no dead targets",
        narrow=("failures", "last success", "last error"),
        cut="error",
    )


def _order_command(what: str, fits: Callable[[TargetState], bool], help: str, names: str) -> None:
    """Add the command for an order; --all gives it to all targets for which `fits` is true."""
    example = f"pollwise fleet {what} {names} --store sqlite:///fleet.db"

    @app.command(what, help=f"{help}\n\nExample: {example}")
    def order(
        names: Names = None,
        every: All = False,
        file: File = None,
        store: Store = None,
        as_json: Json = False,
    ) -> None:
        if bool(names) == every:
            raise ConfigError(f"name the targets to {what}, or give --all")
        settings = opening.settings_for(file, store)
        read = opening.listed_file(settings)

        async def work(opened: FleetStore) -> tuple[list[str], FleetSnapshot]:
            snapshot = await opening.take_snapshot(opened, settings, read)
            known = snapshot.targets
            if not every:
                ordered = [opening.named(known, name).name for name in names or ()]
            else:
                # An order that still waits counts: `pause` and then `resume --all` resumes.
                unknown = sum(len(each.pending) for each in known) >= PENDING_MAX
                meant = (each for each in known if unknown or fits(after_orders(each)))
                ordered = [each.name for each in meant]
            if ordered:
                await opened.order(what, ordered, f"cli: {opening.asker()}")
                await note_order(opened, opening.asker(), what, ordered, "the command line")
            return ordered, snapshot

        ordered, snapshot = opening.with_store(settings, work)
        if as_json:
            running = snapshot.facts()["running"]
            print_json({"order": what, "targets": ordered, "running": running})
        elif ordered:
            listed = ", ".join(map(visible, ordered[:5])) + (", …" if len(ordered) > 5 else "")
            if snapshot.notice is None:
                when = "Queued. The polling node applies it within seconds, or at its next start."
            else:
                when = f"Pending: {snapshot.notice}"
            say(f"{what}: {listed}. {when}")
        else:
            say(f"nothing to {what}")


_order_command(
    "retry",
    lambda each: each.state == "dead" and not each.paused,
    "Poll targets next; a success brings a dead target back. --all: every dead target that is not "
    "paused.",
    '"front page"',
)
_order_command(
    "close-breaker",
    lambda each: each.failures > 0,
    "Clear the failures of targets: their breakers close. --all: every failing target.",
    '"front page"',
)
_order_command(
    "pause",
    lambda each: not each.paused,
    "Do not poll targets until they are resumed; survives restarts. --all: every target.",
    '"front page"',
)
_order_command(
    "resume",
    lambda each: each.paused,
    "Poll paused targets again. --all: every target that is paused.",
    "--all",
)


app.command("add")(targets.add)
app.command("set")(targets.set_keys)
app.command("remove")(targets.remove)
app.command("diff")(targets.diff)


@app.command("migrate")
def migrate(
    store: Store = None,
    sql: Sql = False,
    as_json: Json = False,
) -> None:
    """Create or upgrade the tables of a fleet on Postgres. SQLite does so by itself.

    Example: pollwise fleet migrate --store postgresql://app@db/shop
    """
    settings = opening.settings_for(None, store)
    script = opening.store_of(settings).migration()
    if sql:
        print_sql(script, settings.fleet.store or "", as_json=as_json)
        return
    # SQLite creates its file when it is first used.
    applied = (
        [] if script is None else opening.with_store(settings, lambda opened: opened.migrate())
    )
    print_applied(applied, as_json=as_json, by_itself=script is None)


# Helpers


def _check_file(path: Path, as_json: bool) -> None:
    """Say whether a file of targets is correct."""
    settings = opening.settings_for(path, None)
    chosen = opening.chosen(path, None)
    found = opening.read_checked(settings, chosen, "Nothing was started.", for_views=True)
    counts = {
        "targets": len(found.targets),
        "groups": len(found.groups),
        "channels": len(found.alert_tables["channel"]),
    }
    if as_json:
        print_json({"ok": True, "file": str(path), **counts})
        return
    listed = ", ".join(f"{count} {what}" for what, count in counts.items())
    say((f"{visible(str(path))} is correct", "green"), f": {listed}")
    to = found.alert_tables["alerts"].get("to", ())
    if text := unheard(found.targets, found.alert_tables["channel"], to):
        warn(text)


def _say_met(facts: Mapping[str, Any]) -> None:
    """Print that a fleet meets its goals."""
    if facts["targets"] and facts["paused"] == facts["targets"]:
        every = (
            "its only target is" if facts["targets"] == 1 else f"all {facts['targets']} targets are"
        )
        say(f"nothing to check: {every} paused; `pollwise fleet resume --all` polls again")
        return
    oldest = facts["staleness"]
    resting = [f"{facts[key]} {word}" for key, word in RESTING_WORDS.items() if facts[key]]
    age = [] if oldest is None else [f"the stalest is {rounded(oldest)} old"]
    if not resting and not age:
        age = ["no success yet"]
    counted = ", ".join([counted_targets(facts["targets"]), *resting, *age])
    say(("meets its goals", "green"), f": {counted}")


def _warn_unpolled(snapshot: FleetSnapshot) -> None:
    """Warn if no node polls the fleet, so that the figures are old."""
    if snapshot.notice is not None:
        warn(snapshot.notice)


def _facts(snapshot: FleetSnapshot, listed: list[TargetState]) -> dict[str, Any]:
    return {**snapshot.facts(), "target_list": [target_json(each) for each in listed]}


def _show_one(each: TargetState, now: float) -> None:
    def at(when: float | None) -> str:
        return "never" if when is None else f"{moment(when)} ({rounded(now - when)} ago)"

    rows = [
        ("target", each.name),
        ("type", each.type),
        ("group", each.group or NOTHING),
        ("behind", ", ".join(each.behind) or NOTHING),
        ("state", phrase(each)),
        ("pending orders", ", ".join(each.pending) or NOTHING),
        ("last success", at(each.succeeded_at)),
        ("last change", at(each.changed_at)),
        ("last error", at(each.failed_at)),
        ("error", each.error or NOTHING),
        ("failures in a row", each.failures),
        ("down since", at(each.down_since) if each.down_since else NOTHING),
        ("next poll", NOTHING if each.next_at is None else moment(each.next_at)),
        ("interval", short(each.interval) if each.interval else NOTHING),
        ("staleness score", NOTHING if each.score is None else f"{each.score:.2f}"),
        ("reading", each.summary or NOTHING),
        *((f"  {key}", value) for key, value in each.facts.items()),
        *(
            ("" if number else "what changed", line)
            for number, line in enumerate((each.diff or "").splitlines())
        ),
        *((f"from {seen['location']}", _seen_from(seen, at)) for seen in each.locations),
    ]
    if each.living_locations is not None:
        rows.append(("living locations", f"{each.living_locations}, fewer than it asks for"))
    print_table(("", ""), rows)


def _seen_from(seen: Mapping[str, Any], at: Callable[[float | None], str]) -> str:
    """What one location saw of a target, in words."""
    said = "succeeded" if seen["ok"] else f"failed: {seen['error']}"
    return f"{at(seen['at'])} {said}, after {rounded(seen['took'])}"
