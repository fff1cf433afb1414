"""`pollwise fleet alerts`, `ack` and `maintenance`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.alerts.channels.function import FunctionChannel
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Alert, Notice
from pollwise.fleet import Fleet, FleetRunOptions, Target
from pollwise.fleet.stores.base import SaveExtras
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.events import NoticeFailed
from tests.cli.console import good, pollwise
from tests.cli.fleets import FILE, STORE, row, saved
from tests.fleet.alerting.kit import Switches, until
from tests.fleet.probes.kit import Web, page, web
from tests.fleet.world import running
from tests.support.kit import Seen

NOW = time.time()
OPEN = Alert("a2", "broken", "shaky", "down", "down", "critical", "open", NOW - 90, NOW - 60,
             summary="exit code\x1b[31m 1")  # fmt: skip
CLOSED = Alert("a1", "fine", None, "latency", "latency > 2s", "warning", "closed", NOW - 900,
               NOW - 800, NOW - 300)  # fmt: skip


@pytest.fixture(autouse=True)
def file(folder: Path) -> Path:
    path = folder / "fleet.toml"
    path.write_text(FILE)
    saved(row("fine"), row("broken"))

    async def kept() -> None:
        store = SqliteFleetStore("fleet.db")
        await store.save([], SaveExtras(alerts=[OPEN, CLOSED]))
        await store.close()

    asyncio.run(kept())
    return path


def audit() -> list[AuditEntry]:
    async def read() -> list[AuditEntry]:
        store = SqliteFleetStore("fleet.db")
        try:
            return await store.list_audit(10)
        finally:
            await store.close()

    return asyncio.run(read())


def fleet(*words: str) -> Any:
    return good("fleet", *words, "--store", STORE)


# Alerts


def test_status_of_a_fleet_without_channels() -> None:
    async def polled() -> None:
        store = SqliteFleetStore("quiet.db")
        fleet, probe = Fleet(FleetRunOptions(signals=False), store=store), Switches()
        fleet.add(Target("room", probe, alerts=['value == "fine"']))
        async with running(fleet):
            await until(lambda: probe.polls)
        await store.close()

    asyncio.run(polled())
    told = json.loads(good("fleet", "status", "--json", "--store", "sqlite:///quiet.db").out)
    assert (told["open_alerts"], told["unsent_notices"]) == (1, 0)


def test_status_counts_alerts_and_what_could_not_be_sent() -> None:
    class Refused(Exception):
        permanent = True

    def refuse(notice: Notice) -> None:
        raise Refused("no such room")

    async def undeliverable() -> None:
        seen, store = Seen(), SqliteFleetStore("other.db")
        alerts = Alerts([FunctionChannel("ops", refuse)], to=["ops"])
        fleet = Fleet(
            FleetRunOptions(signals=False), store=store, events=seen.events, alerts=alerts
        )
        fleet.add(Target("room", Switches(), alerts=['value == "fine"']))
        async with running(fleet):
            await until(lambda: seen.of(NoticeFailed))
        await store.close()

    asyncio.run(undeliverable())
    other = ("--store", "sqlite:///other.db")
    told = json.loads(good("fleet", "status", "--json", *other).out)
    assert (told["open_alerts"], told["unsent_notices"]) == (1, 1)
    shown = good("fleet", "status", *other).out
    assert "1 open alert: see `pollwise fleet alerts`" in shown
    url = "sqlite:///other.db?outbox=fleet-fleet-alerts"
    assert f"1 notice could not be sent: see `pollwise outbox dead '{url}'`" in shown
    assert "no such room" in good("outbox", "dead", url).out


def test_open_alerts_are_listed_and_all_of_them_on_demand() -> None:
    listed = fleet("alerts").out
    assert "broken" in listed
    assert "open for" in listed
    assert "\x1b[31m" not in listed
    assert "fine" not in listed
    every = fleet("alerts", "--all", "--json").json()
    assert [each["id"] for each in every["alerts"]] == ["a2", "a1"]
    assert every["alerts"][1]["lasted"] == pytest.approx(600)
    assert fleet("alerts", "--all", "--target", "fine", "--json").json()["alerts"][0]["id"] == "a1"
    assert fleet("alerts", "--group", "none").out == "no open alerts\n"
    result = pollwise("fleet", "alerts", "--all", "--limit", "1", "--store", STORE)
    assert "there are more" in result.err


def test_an_alert_is_acknowledged_once_with_a_note_and_in_the_audit_log() -> None:
    assert fleet("ack", "a2", "--note", " disk is full ").out == "acknowledged: broken: down\n"
    (alert,) = fleet("alerts", "--json").json()["alerts"]
    assert (alert["note"], alert["state"]) == ("disk is full", "open")
    assert "disk is full" in fleet("alerts").out
    (entry,) = audit()
    assert (entry.action, entry.what, entry.detail) == (
        "alert.acknowledge", "broken: down", "a2 disk is full",
    )  # fmt: skip
    assert entry.who == alert["acknowledged_by"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("ack", "nobody", "a2"), "there is no alert 'nobody'"),
        (("ack", "a1"), "already closed: a1"),
        (("ack", "a2", "--note", "x" * 501), "at most 500 characters"),
        (("alerts", "--all", "--open"), "not both"),
        (("alerts", "--limit", "0"), "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_acknowledged_is_refused(words: tuple[str, ...], error: str) -> None:
    result = pollwise("fleet", *words, "--store", STORE)
    assert result.code != 0
    assert error in result.err
    assert fleet("alerts", "--json").json()["alerts"][0]["acknowledged_at"] is None


# Maintenance


def test_a_window_is_added_listed_ended_and_removed() -> None:
    assert fleet("maintenance", "list").out == "no maintenance windows\n"
    added = fleet("maintenance", "add", "--group", "shaky", "--for", "2h", "--note", "disks")
    id = added.out.partition(":")[0]
    assert "maintenance of group shaky from" in added.out
    sundays = ("--every", "Sun 02:00-04:00 Europe/Zurich")
    made = fleet("maintenance", "add", "--all", *sundays, "--json").json()
    listed = fleet("maintenance", "list").out
    assert "under way until" in listed
    assert "Sun 02:00-04:00 Europe/Zurich" in listed
    assert fleet("maintenance", "end", id).out == "ended: maintenance of group shaky\n"
    first, second = fleet("maintenance", "list", "--json").json()
    assert (first["id"], first["active_until"], first["next_at"]) == (id, None, None)
    assert (second["id"], second["every"]) == (made["id"], "Sun 02:00-04:00 Europe/Zurich")
    assert fleet("maintenance", "remove", id, "--json").json() == {"removed": id}
    assert len(fleet("maintenance", "list", "--json").json()) == 1
    assert [each.action.partition(".")[2] for each in audit()] == ["remove", "end", "add", "add"]
    assert audit()[-1].detail.endswith("disks")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("add", "--target", "fin", "--for", "1h"), "no target 'fin'; did you mean 'fine'"),
        (("add", "--for", "1h"), "give targets, groups, or all"),
        (("add", "--all", "--for", "1h", "--end", "2026"), "end = '2026' must be a time"),
        (("end", "nothing"), "no maintenance window 'nothing'"),
        (("remove", "nothing"), "no maintenance window 'nothing'"),
    ],
)
def test_a_wrong_window_is_refused(words: tuple[str, ...], error: str) -> None:
    result = pollwise("fleet", "maintenance", *words, "--store", STORE)
    assert result.code != 0
    assert error in result.err
    assert fleet("maintenance", "list", "--json").json() == []


def test_windows_of_the_file_are_listed_and_changed_there(file: Path) -> None:
    window = '[[maintenance]]\ntargets = ["fine"]\nevery = "Mon-Fri 08:00-18:00"\n'
    file.write_text(f"{FILE}\n{window}")
    (listed,) = fleet("maintenance", "list", "--json").json()
    assert (listed["id"], listed["from_file"], listed["targets"]) == ("file-1", True, ["fine"])
    result = pollwise("fleet", "maintenance", "remove", "file-1", "--store", STORE)
    assert "is in the fleet's file; change it there" in result.err


# Channels


@contextmanager
def listening(answer: bytes) -> Iterator[Web]:
    """A server in a thread: the command has an event loop of its own."""
    found: list[Web] = []
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async with web(answer) as server:
            found.append(server)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize("status", ["204 No Content", "500 Oops"])
def test_a_channel_of_the_file_is_tried(
    file: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(page("", status)) as server:
        monkeypatch.setenv("OPS_URL", server.url("/s3cret-path"))
        channel = '[channel.ops]\ntype = "webhook"\nurl = "${OPS_URL}"\n'
        file.write_text(f"{FILE}\n{channel}")
        result = pollwise("fleet", "test-channel", "ops")
        found = pollwise("fleet", "test-channel", "ops", "--json").json()
    sent = status.startswith("2")
    assert (result.code, found["sent"]) == (0 if sent else 1, sent)
    assert "s3cret" not in f"{result} {found}"
    if sent:
        assert "channel 'ops' accepted a test notice" in result.out
    else:
        assert "answered 500" in result.err
    said = json.loads(server.requests[0].body)
    assert "nothing is wrong" in said["text"]
    assert len({each.headers["idempotency-key"] for each in server.requests}) == 2


def test_a_channel_that_the_file_does_not_have_is_refused(file: Path) -> None:
    result = pollwise("fleet", "test-channel", "ops")
    assert (result.code, "has no channel 'ops'; write [channel.ops]" in result.err) == (2, True)
