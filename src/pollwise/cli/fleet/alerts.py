"""`pollwise fleet alerts`, `ack` and `test-channel`: list and acknowledge alerts, test a
channel."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

import typer

from pollwise.alerts.texts import line_of
from pollwise.alerts.values import (
    PAGE_MAX,
    Alert,
    AlertFilter,
    AlertPage,
    Notice,
    alert_json,
    checked_note,
)
from pollwise.cli.fleet import opening
from pollwise.cli.fleet.opening import File, Store
from pollwise.cli.options import Json
from pollwise.cli.output import (
    NOTHING,
    fail,
    moment,
    print_json,
    print_table,
    rounded,
    say,
    visible,
    warn,
)
from pollwise.errors import ChannelError, ConfigError, did_you_mean
from pollwise.fleet.control import note as write_audit
from pollwise.fleet.stores.base import FleetStore
from pollwise.platforms import loops


def alerts(
    every: Annotated[bool, typer.Option("--all", help="List closed alerts too.")] = False,
    only_open: Annotated[
        bool, typer.Option("--open", help="List only open alerts (the default).")
    ] = False,
    target: Annotated[str | None, typer.Option(help="Only alerts of this target.")] = None,
    group: Annotated[str | None, typer.Option(help="Only alerts of this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE_MAX, help="Maximum number of alerts.")] = 50,
    file: File = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """List the open alerts, newest first.

    Example: pollwise fleet alerts --all --target "front page" --store sqlite:///fleet.db
    """
    if every and only_open:
        raise ConfigError("give --all or --open, not both")
    chosen = AlertFilter(None if every else "open", target, group, limit)

    async def work(opened: FleetStore) -> AlertPage:
        return await opened.alerts(chosen)

    page = opening.with_store(opening.settings_for(file, store), work)
    if as_json:
        listed = [alert_json(each) for each in page.alerts]
        print_json({"alerts": listed, "next": page.next})
        return
    now = time.time()
    print_table(
        ("id", "target", "condition", "severity", "state", "since", "acknowledged by", "summary"),
        [
            (
                each.id,
                each.target,
                each.when,
                each.severity,
                _state(each, now),
                moment(each.since),
                _acknowledged_by(each),
                each.summary or NOTHING,
            )
            for each in page.alerts
        ],
        empty="no alerts" if every else "no open alerts",
        narrow=("severity", "since", "acknowledged by"),
        cut="summary",
    )
    if page.next is not None:
        warn(f"there are more; give a --limit above {limit}, or name a --target or --group")


def ack(
    ids: Annotated[list[str], typer.Argument(help="Ids of open alerts, as `alerts` shows them.")],
    note: Annotated[str, typer.Option(help="A note for others.")] = "",
    file: File = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Acknowledge open alerts: their notices are not repeated. Their end is still sent.

    Example: pollwise fleet ack ID --note "disk is being replaced" --store sqlite:///fleet.db
    """
    said = checked_note(note)

    async def work(opened: FleetStore) -> list[Alert]:
        known = {each.id: each for each in await opened.alerts_by_id(ids)}
        for id in ids:
            if id not in known:
                raise ConfigError(f"there is no alert {id!r}; `pollwise fleet alerts` lists them")
        found = await opened.acknowledge(ids, opening.asker(), said)
        for each in found:
            about, detail = f"{each.target}: {each.when}", f"{each.id} {said}".strip()
            await write_audit(
                opened, opening.asker(), "alert.acknowledge", about, detail, "the command line"
            )
        return found

    found = opening.with_store(opening.settings_for(file, store), work)
    if as_json:
        print_json([alert_json(each) for each in found])
    for each in found if not as_json else ():
        say(f"acknowledged: {visible(each.target)}: {visible(each.when)}")
    closed = sorted(set(ids) - {each.id for each in found})
    if closed:
        fail(f"already closed: {', '.join(map(visible, closed))}")
        raise typer.Exit(1)


def try_channel(
    name: Annotated[str, typer.Argument(help="The name of a channel in the file.")],
    file: File = None,
    as_json: Json = False,
) -> None:
    """Send a test notice through a channel of the file now, even in its quiet hours.

    Example: pollwise fleet test-channel ops --file fleet.toml
    """
    overrides = opening.chosen(file, None)
    settings = opening.settings_for(file, None)
    found = opening.read_checked(settings, overrides, "Nothing was sent.")
    channel = found.alerts.channels.get(name)
    if channel is None:
        near = did_you_mean(name, found.alerts.channels, f"write [channel.{name}]")
        raise ConfigError(f"{found.path} has no channel {name!r}; {near}")

    async def send() -> None:
        try:
            await channel.send(_test_notice(name))
        finally:
            await channel.close()

    try:
        loops.run(send())
    except ChannelError as error:
        if as_json:
            print_json({"channel": name, "sent": False, "error": str(error)})
        else:
            fail(str(error))
        raise typer.Exit(1) from None
    if as_json:
        print_json({"channel": name, "sent": True, "error": None})
    else:
        say(f"{channel} accepted a test notice")


def _test_notice(channel: str) -> Notice:
    now = time.time()
    payload: dict[str, Any] = {
        "event": "opened", "fleet": "test", "alert": "test", "target": "test", "type": "test",
        "group": None, "labels": {}, "when": "down", "severity": "info", "at": now, "since": now,
        "lasted": 0.0, "facts": {}, "before": None, "after": None,
        "summary": f"a test by {opening.asker()}: nothing is wrong",
    }  # fmt: skip
    id = f"test-{secrets.token_hex(8)}"
    payload = {"id": id, **payload, "text": line_of(payload)}
    return Notice(id, "test", "test", channel, "opened", payload)


def _state(alert: Alert, now: float) -> str:
    if alert.lasted is not None:
        return f"lasted {rounded(alert.lasted)}"
    return f"open for {rounded(max(now - alert.since, 0.0))}"


def _acknowledged_by(alert: Alert) -> str:
    if alert.acknowledged_by is None:
        return NOTHING
    return f"{alert.acknowledged_by}: {alert.note}" if alert.note else alert.acknowledged_by
