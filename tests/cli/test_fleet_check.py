"""`pollwise fleet check`, and orders that no node has carried out yet."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Command, good, pollwise
from tests.cli.fleets import FILE, STORE, row, saved, state
from tests.support.daemons import wait_until


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "fleet.toml"
    path.write_text(FILE)
    return path


def test_check_sets_the_exit_code(file: Path) -> None:
    saved(row("fine"), row("broken"), row("slow", interval=3600.0))
    result = pollwise("fleet", "check", "--store", STORE)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("meets its goals: 3 targets, the stalest is")
    found = good("fleet", "check", "--store", STORE, "--json").json()
    assert (found["ok"], found["missed"], found["targets"]) == (True, [], 3)


def test_check_reports_stale_and_overdue_targets(file: Path) -> None:
    saved(
        row("fine", succeeded_at=-500),
        row("broken", state="dead", failures=9, succeeded_at=-90000),
        row("slow", due=-60),
    )
    result = pollwise("fleet", "check", "--store", STORE)
    assert result.code == 1
    assert "1 of 3 targets is older than twice its interval" in result.err
    assert "the stalest is 'fine', whose last success was 8m20s ago" in result.err
    assert "1 target is dead ('broken'); the goal (fleet.max_dead) is at most 0" in result.err
    Path("pollwise.toml").write_text('[fleet]\nmax_due = 0\nmax_staleness = "1h"\nmax_dead = 1\n')
    found = pollwise("fleet", "check", "--store", STORE, "--json")
    assert found.code == 1
    assert found.json()["missed"] == [
        "1 poll is overdue by more than 5s; the goal (fleet.max_due) is at most 0"
    ]
    assert (found.json()["due"], found.json()["queue_depth"]) == (1, 3)
    Path("pollwise.toml").write_text('[fleet]\nmax_staleness = "10m"\nmax_dead = 1\n')
    result = good("fleet", "check", "--store", STORE)
    assert result.out.startswith("meets its goals: 3 targets, 1 dead, the stalest is")


def test_check_tells_of_alerts_that_no_channel_hears_of(file: Path) -> None:
    saved(row("fine"), row("broken"), row("slow", interval=3600.0))
    channel = '[channel.ops]\ntype = "webhook"\nurl = "${UNSET_URL}"\n'
    heard = FILE.replace('name = "slow"', 'name = "slow"\nalerts = [{when="down", to="ops"}]')
    rules = heard.replace('name = "fine"', 'name = "fine"\nalerts = ["down"]')
    file.write_text(channel + rules)
    said = good("fleet", "check", "--store", STORE).err
    assert "nothing is sent for alerts of 'fine': their rules name no channel" in said
    assert 'write to = ["ops"] under [alerts]' in said
    for quiet in (channel + heard, '[alerts]\nto = "ops"\n' + channel + rules):
        file.write_text(quiet)
        assert good("fleet", "check", "--store", STORE).err == ""
    file.write_text(rules.replace('to="ops"', 'severity="info"'))
    result = pollwise("fleet", "check", "--store", STORE)
    assert result.code != 0
    assert "nobody hears of its alerts" in result.err


def test_check_counts_the_dead_unless_they_are_paused(file: Path) -> None:
    never: dict[str, Any] = {"state": "dead", "failures": 5, "succeeded_at": None}
    never = {**row("-"), **never}
    saved(*({**never, "name": name} for name in ("fine", "broken", "slow")))
    result = pollwise("fleet", "check", "--store", STORE)
    assert (result.code, result.out) == (1, "")
    assert "3 targets are dead ('broken', 'fine', 'slow'); the goal (fleet.max_dead" in result.err
    with sqlite3.connect("fleet.db") as connection:
        connection.execute("UPDATE pollwise_fleet_targets SET paused = 1")
    connection.close()
    result = good("fleet", "check", "--store", STORE)
    assert result.out == (
        "nothing to check: all 3 targets are paused; `pollwise fleet resume --all` polls again\n"
    )
    assert good("fleet", "check", "--store", STORE, "--json").json()["ok"] is True


def test_check_fails_for_a_fleet_that_never_ran(file: Path) -> None:
    saved()
    result = pollwise("fleet", "check", "--store", STORE)
    assert result.code == 1
    assert "no target was polled yet; wait if `pollwise fleet run` has just started" in result.err


def test_without_a_polling_node_commands_warn_and_check_fails(file: Path) -> None:
    saved(row("fine", polled_at=-300), row("broken"), row("slow"), polled=False)
    with sqlite3.connect("fleet.db") as connection:
        connection.execute("UPDATE pollwise_fleet_targets SET polled_at = ?", [time.time() - 300])
    connection.close()
    said = (
        "no node polls this fleet; the figures are 5m old; "
        f"start one with: pollwise fleet run --store {STORE}"
    )
    result = pollwise("fleet", "check", "--store", STORE)
    assert (result.code, result.out) == (1, "")
    assert said in result.err
    found = pollwise("fleet", "check", "--store", STORE, "--json")
    assert found.code == 1
    assert found.json()["missed"] == [said]
    assert found.json()["running"] is False
    assert good("fleet", "status", "--store", STORE).out.splitlines()[1] == said
    assert good("fleet", "top", "--store", STORE).out.splitlines()[1] == said
    facts = good("fleet", "status", "--store", STORE, "--json").json()
    assert (facts["running"], facts["nodes"]) == (False, [])
    assert facts["last_poll_at"] == pytest.approx(time.time() - 300, abs=20)
    assert said in good("fleet", "status", "fine", "--store", STORE).err
    assert said in good("fleet", "dead", "--store", STORE).err
    Path("elsewhere.toml").write_text(FILE)
    words = ("--store", STORE, "--file", "elsewhere.toml")
    assert "start one with: pollwise fleet run --file elsewhere.toml --store" in (
        good("fleet", "status", *words).out
    )


def test_a_fleet_that_was_never_polled_is_reported(file: Path) -> None:
    saved(polled=False)
    result = pollwise("fleet", "check", "--store", STORE)
    assert result.code == 1
    assert (
        "no node polls this fleet; no target was ever polled; start one with: pollwise"
        in result.err
    )
    assert "polled yet" not in result.err


def test_retry_all_skips_paused_targets(file: Path) -> None:
    dead = {"state": "dead", "failures": 5, "error": "gone", "failed_at": -9}
    saved(row("broken", **dead), row("slow", paused=1, **dead))
    found = good("fleet", "retry", "--all", "--store", STORE, "--json").json()
    assert found["targets"] == ["broken"]


def test_check_says_when_its_only_target_is_paused(file: Path) -> None:
    """Also if it was never polled: somebody paused it on purpose."""
    file.write_text(FILE.split('[[target]]\nname = "broken"')[0])
    never: dict[str, Any] = {"paused": 1, "polled_at": None, "succeeded_at": None}
    saved({**row("fine"), **never})
    result = good("fleet", "check", "--store", STORE)
    assert result.out.startswith("nothing to check: its only target is paused")


def test_quiet_hours_are_no_outage(file: Path) -> None:
    """A target that its quiet hours defer is neither late nor stale, as the store says."""
    now = time.time()
    more = json.dumps({"deferred": now - 3600, "max_interval": 300.0})
    saved(
        row("fine", succeeded_at=-3610, polled_at=-3610, due=5400, more=more),
        row("broken"),
        row("slow", interval=3600.0, paused=1),
    )
    result = good("fleet", "check", "--store", STORE)
    assert result.out.startswith("meets its goals: 3 targets, 1 paused, 1 in quiet hours, the")
    lines = good("fleet", "status", "--store", STORE).out.splitlines()
    assert lines[0].startswith("3 targets · 0 due · 0 stale · 0 broken")
    assert lines[0].endswith("1 in quiet hours")
    quiet = next(line for line in lines if line.startswith("fine"))
    assert quiet.split()[2] == "quiet"
    assert "in 1h 30m" in quiet or "in 1h 29m" in quiet
    assert lines.index(quiet) == 4  # behind what is polled, before what is paused
    assert "not polled in its quiet hours" in good("fleet", "status", "fine", "--store", STORE).out
    found = state("fine")
    assert (found["plan"], found["stale"], found["score"]) == ("quiet", False, 1.0)


def test_check_notices_a_clock_that_was_set_back(file: Path) -> None:
    ahead = {"succeeded_at": 3600, "polled_at": 3600, "due": 3610}
    saved(row("fine", **ahead), row("broken", **ahead), row("slow", **ahead))
    result = pollwise("fleet", "check", "--store", STORE)
    assert result.code == 1
    assert "3 targets were not polled since the clock was set back" in result.err


def test_resume_all_resumes_what_was_just_paused(file: Path) -> None:
    """The pause is not carried out yet, and counts all the same; so do other orders."""
    saved(row("fine"), row("broken"), row("slow"))
    good("fleet", "pause", "fine", "--store", STORE)
    for what, names in (
        ("resume", ["fine"]), ("resume", []), ("pause", ["fine", "broken", "slow"]),
        ("pause", []), ("resume", ["fine", "broken", "slow"]),
    ):  # fmt: skip
        found = good("fleet", what, "--all", "--store", STORE, "--json").json()
        assert found == {"order": what, "targets": names, "running": True}
    assert good("fleet", "resume", "--all", "--store", STORE).out == "nothing to resume\n"


def test_a_closed_breaker_that_is_pending_is_not_closed_twice(file: Path) -> None:
    dead = {"state": "dead", "failures": 5, "error": "gone", "failed_at": -9}
    saved(row("broken", **dead))
    found = good("fleet", "close-breaker", "--all", "--store", STORE, "--json").json()
    assert found["targets"] == ["broken"]
    for what in ("close-breaker", "retry"):
        found = good("fleet", what, "--all", "--store", STORE, "--json").json()
        assert found["targets"] == []


def test_orders_that_nobody_takes_are_shown_as_pending(file: Path) -> None:
    saved(row("fine"), row("broken"), polled=False)
    result = good("fleet", "pause", "fine", "--store", STORE)
    assert result.out.startswith("pause: fine. Pending: no node polls this fleet; the figures are ")
    found = good("fleet", "retry", "fine", "--store", STORE, "--json").json()
    assert found == {"order": "retry", "targets": ["fine"], "running": False}
    assert state("fine")["pending"] == ["pause", "retry"]
    assert state("broken")["pending"] == []
    lines = good("fleet", "status", "--store", STORE).out.splitlines()
    assert lines[0].endswith("2 pending orders")
    assert any("healthy (pause, retry pending)" in line for line in lines)
    one = good("fleet", "status", "fine", "--store", STORE).out
    assert any(
        line.split() == ["pending", "orders", "pause,", "retry"] for line in one.splitlines()
    )
    # Whoever polls next carries them out.
    with Command("fleet", "run", "--store", STORE) as command:
        command.err.until("fleet_ordered")
        wait_until(lambda: bool(state("fine")["paused"]), "the pause", within=20)
        assert state("fine")["pending"] == []
        assert command.stopped() == 0


def test_commands_that_do_not_poll_need_no_secrets(file: Path) -> None:
    secret = '\n[[target]]\nname = "page"\ntype = "http"\nurl = "https://x:${NO_PASSWORD}@y.org/"\n'
    file.write_text(FILE + secret)
    saved(row("fine"), row("broken"), row("slow", interval=3600.0), row("page"))
    for words in (("check",), ("status",), ("top",), ("dead",), ("pause", "page")):
        assert good("fleet", *words, "--store", STORE).err == ""
    assert state("page")["type"] == "http"
    result = pollwise("fleet", "run", "--store", STORE)
    assert result.code == 2
    assert "the environment variable NO_PASSWORD is not set" in result.err


def test_a_file_alone_is_checked_without_a_store(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('[[target]]\nname = "a"\ntype = "http"\nurl = "https://${SHOP}.example/"\n')
    result = good("fleet", "check", path)
    assert "shop.toml is correct: 1 targets, 0 groups, 0 channels" in result.out
    found = json.loads(good("fleet", "check", path, "--json").out)
    assert (found["ok"], found["targets"]) == (True, 1)
    assert list(tmp_path.iterdir()) == [path]
    path.write_text('[[target]]\nname = "a"\ntype = "http"\nurl = "a"\njson = "$.x"\n')
    result = pollwise("fleet", "check", path)
    assert result.code != 0
    assert "has no scheme" in result.err
    assert "begins with $" in result.err
    result = pollwise("fleet", "check", path, "--store", STORE)
    assert result.code != 0
    assert "leave out --file and --store" in result.err
