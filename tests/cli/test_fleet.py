"""`pollwise fleet …`: run it, watch it from another process, give it orders."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import stat
import sys
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest

from pollwise.controller.security.tokens import Tokens
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.fleet.stores.postgres.store import TABLES
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.storage.postgres.schema import script
from pollwise.storage.sql import migrations
from tests.cli.console import Command, Screen, good, plain, pollwise
from tests.cli.fleets import FILE, STORE, row, saved, state
from tests.support.daemons import wait_until
from tests.support.servers import OwnPostgres, Postgres


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "fleet.toml"
    path.write_text(FILE)
    return path


def new_token(command: Command) -> str:
    """The token that a fleet wrote to a private file, and not to its output."""
    path = Path(command.err.until(r"a new token of the API is in (\S+),")[1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    path.unlink()
    assert token not in "".join(command.err.all)
    return token


def test_a_fleet_runs_and_is_watched_and_takes_orders(file: Path) -> None:
    words = ("--store", STORE, "--api-port", 0, "--metrics-port", 0)
    with Command("fleet", "run", *words) as command:
        metrics = command.err.until(r"metrics on (http://\S+)")[1]
        token = new_token(command)
        url = command.err.until(r"API on (http://127.0.0.1:\d+)/api/fleet/state")[1]
        wait_until(lambda: state("fine")["last_success_at"] is not None, "a success", within=20)
        assert state("slow")["state"] == "closed"
        wait_until(lambda: state("broken")["failures"] >= 3, "an open breaker", within=30)
        assert state("broken")["state"] == "open"
        assert state("broken")["last_error"] == "'false' exited with 1"
        # One broken target makes the process no less healthy.
        with urllib.request.urlopen(f"{url}/livez") as answer:
            assert answer.status == 200
        request = urllib.request.Request(
            f"{url}/api/fleet/state", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["breakers"]["open"] == 1
        with urllib.request.urlopen(metrics) as answer:
            text = answer.read().decode()
            assert 'pollwise_fleet_poll_total{group="shaky",result="failed",type="command"}' in text
            assert 'pollwise_fleet_targets{group="",type="command"} 2.0' in text
            assert "target=" not in text
        # Orders from another process.
        result = good("fleet", "pause", "fine", "--store", STORE)
        assert "pause: fine" in result.out
        said = command.err.until("fleet_ordered")[0]
        line = command.err.all[-1]
        assert "order=pause targets=fine count=1" in line, said
        assert re.search(r"by='cli: \S+@\S+'", line)
        request = urllib.request.Request(
            f"{url}/api/fleet/audit", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request) as answer:
            [entry] = json.load(answer)["entries"]
        assert (entry["action"], entry["what"]) == ("target.pause", "'fine'")
        assert entry["address"] == "the command line"
        assert "@" in entry["who"]
        wait_until(lambda: bool(state("fine")["paused"]), "the pause", within=20)
        good("fleet", "close-breaker", "--all", "--store", STORE)
        wait_until(lambda: state("broken")["failures"] < 3, "the closed breaker", within=20)
        assert good("fleet", "resume", "--all", "--store", STORE, "--json").json() == {
            "order": "resume", "targets": ["fine"], "running": True
        }  # fmt: skip
        wait_until(lambda: not state("fine")["paused"], "the resumption", within=20)
        assert command.stopped() == 0
    assert token not in "".join(
        each.read_text(errors="replace") for each in Path().iterdir() if each.is_file()
    )


def test_a_change_by_the_api_survives_a_restart_and_config_show_says_which_won(file: Path) -> None:
    Path("pollwise.toml").write_text(
        f'[fleet]\nstore = "{STORE}"\n[fleet.polling]\nenabled = true\n'
    )

    def shown(env: dict[str, str] | None = None) -> tuple[str, str]:
        with Command("config", "show", "--json", env=env) as command:
            assert command.end() == 0
            rows = {each["key"]: each for each in json.loads(command.out.all[0])}
        return rows["fleet.polling.enabled"]["value"], rows["fleet.polling.enabled"]["origin"]

    assert shown() == ("true", "pollwise.toml")
    assert not Path("fleet.db").exists()  # looking made nothing
    with Command("fleet", "run", "--api-port", 0) as command:
        token = new_token(command)
        url = command.err.until(r"API on (http://127.0.0.1:\d+)/")[1]
        request = urllib.request.Request(
            f"{url}/api/fleet/polling",
            data=b'{"enabled": false}',
            headers={"Authorization": f"Bearer {token}"},
            method="PATCH",
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        assert command.stopped() == 0
    assert shown() == ("false", f"changed at run time, kept in {STORE}")
    variable = "POLLWISE_FLEET_POLLING_ENABLED"
    assert shown({variable: "true"}) == ("true", f"environment variable {variable}")
    with Command("fleet", "run") as command:
        command.err.until("fleet_started")
        wait_until(lambda: state("fine")["interval"] == 1.0, "the base interval", within=20)
        assert command.stopped() == 0


def test_config_show_goes_on_when_the_store_cannot_be_asked(folder: Path) -> None:
    Path("pollwise.toml").write_text('[fleet]\nstore = "postgresql://a:hunter2@127.0.0.1:1/x"\n')
    result = good("config", "show")
    assert "are not shown: postgresql://a@127.0.0.1:1/x" in result.err
    assert "fleet.polling.enabled" in result.out
    assert "hunter2" not in result.out + result.err


def test_when_a_target_is_given_up_on_is_a_setting(file: Path) -> None:
    words = ("--set", "fleet.dead_after=1", "--set", "fleet.recheck=10m")
    with Command("fleet", "run", "--store", STORE, *words) as command:
        command.err.until("fleet_started")
        wait_until(lambda: state("broken")["state"] == "dead", "a dead target", within=20)
        found = state("broken")
        assert found["failures"] == 1
        assert found["next_at"] - found["last_error_at"] == pytest.approx(600, abs=1)
        assert command.stopped() == 0


def test_a_second_run_on_a_file_is_refused_and_one_after_a_kill_is_not(file: Path) -> None:
    with Command("fleet", "run", "--store", STORE) as first:
        first.err.until("fleet_started")
        result = pollwise("fleet", "run", "--store", STORE)
        assert result.code != 0
        assert f"another process (pid {first.pid}, host " in result.err
        assert "polls this store; use Postgres for several nodes" in result.err
        first.send(signal.SIGKILL)
        first.end()
    with Command("fleet", "run", "--store", STORE) as second:
        second.err.until("fleet_started")
        assert second.stopped() == 0
    with Command("fleet", "run", "--store", STORE) as third:
        third.err.until("fleet_started")
        assert third.stopped() == 0


def test_a_stopped_fleet_has_no_node(file: Path) -> None:
    with Command("fleet", "run", "--store", STORE) as command:
        command.err.until("fleet_started")
        facts = good("fleet", "status", "--store", STORE, "--json").json()
        assert facts["running"] is True
        assert facts["nodes"][0]["node"].endswith(f"-{command.pid}")
        command.send(signal.SIGKILL)
        command.end()
    assert good("fleet", "status", "--store", STORE, "--json").json()["running"] is False


def test_status_shows_the_stalest_first(file: Path) -> None:
    saved(
        row("fine", succeeded_at=-30),
        row("slow", succeeded_at=-4000, due=-60),
        row("broken", state="open", failures=4, error="OSError: \x1b[31mno", succeeded_at=-70),
    )
    lines = good("fleet", "status", "--store", STORE).out.splitlines()
    assert lines[0] == "3 targets · 1 due · 2 stale · 1 broken · 0 dead · 0 paused · 0 never"
    assert lines[1] == "nodes: elsewhere-17 (3)"
    assert [line.split()[0] for line in lines[2:]] == ["target", "slow", "broken", "fine"]
    assert "1h 06m ago" in lines[3]
    assert "late 1m 00s" in lines[3]
    assert "OSError: \\x1b[31mno" in lines[4]
    assert "200 OK" in lines[5]
    found = good("fleet", "status", "--store", STORE, "--json", "--limit", 1).json()
    assert [each["name"] for each in found["target_list"]] == ["slow"]
    one = good("fleet", "status", "broken", "--store", STORE).out
    assert "group              shaky" in one
    assert "failures in a row  4" in one
    assert "state              broken (its breaker is open: it is polled less" in one
    [told] = good("fleet", "status", "broken", "--store", STORE, "--json").json()
    assert told["state"] == "open"  # as metrics and the API have it


def test_status_of_a_target_shows_what_changed(file: Path) -> None:
    reading = {"value": "x", "summary": "200, red", "diff": " a\n-red \x1b[31m\n+blue"}
    saved(row("fine", more=json.dumps({"reading": reading})))
    lines = good("fleet", "status", "fine", "--store", STORE).out.splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("what changed"))
    assert [line.split()[-1] for line in lines[at : at + 3]] == ["a", "\\x1b[31m", "+blue"]
    (found,) = good("fleet", "status", "fine", "--store", STORE, "--json").json()
    assert found["diff"] == reading["diff"]


@pytest.mark.parametrize(
    ("given", "word", "phrase"),
    [
        ({}, "healthy", "healthy"),
        ({"state": "confirming", "failures": 1}, "confirming", "confirming (it failed, and"),
        ({"state": "backing off", "failures": 2}, "backing off", "backing off"),
        ({"state": "open", "failures": 3}, "broken", "broken (its breaker is open"),
        ({"state": "open", "failures": 3, "due": -1}, "half-open", "half-open (one poll is"),
        ({"state": "dead", "failures": 5}, "dead", "dead (it failed for long"),
        ({"paused": 1}, "paused", "paused"),
        ({"paused": 1, "state": "dead"}, "paused", "paused; dead (it failed for long"),
    ],
)
def test_states_are_shown_in_unambiguous_words(
    folder: Path, given: dict[str, Any], word: str, phrase: str
) -> None:
    saved(row("t", **given))
    lines = good("fleet", "status", "--store", STORE).out.splitlines()
    assert re.match(rf"t +\? +{word}  ", lines[3])
    shown = good("fleet", "status", "t", "--store", STORE).out
    assert f"state              {phrase}" in shown
    assert re.search(r"\bclosed\b", "\n".join(lines) + shown) is None


def test_dead_targets_are_listed(file: Path) -> None:
    saved(row("fine"), row("broken", state="dead", failures=5, error="gone", failed_at=-9))
    lines = good("fleet", "dead", "--store", STORE).out.splitlines()
    assert lines[1].split()[0] == "broken"
    assert lines[1].endswith("gone")
    [found] = good("fleet", "dead", "--store", STORE, "--json").json()
    assert (found["name"], found["last_error"]) == ("broken", "gone")
    assert good("fleet", "retry", "--all", "--store", STORE, "--json").json()["targets"] == [
        "broken"
    ]


def test_without_a_file_the_targets_of_the_store_are_shown(folder: Path, file: Path) -> None:
    saved(row("one"), row("two", paused=1))
    file.unlink()
    found = good("fleet", "status", "--store", STORE, "--json").json()
    assert [each["name"] for each in found["target_list"]] == ["one", "two"]
    assert good("fleet", "dead", "--store", STORE).out == "no dead targets\n"
    assert "nothing to retry" in good("fleet", "retry", "--all", "--store", STORE).out


def test_top_is_a_live_view(file: Path) -> None:
    saved(
        row("fine", succeeded_at=-30, due=8),
        row("slow", succeeded_at=-4000, interval=3600.0, due=1800),
        row("broken", state="half-open", failures=4, error="no route to host"),
    )
    with Screen(100, 20, "fleet", "top", "--store", STORE, "--every", "200ms", env={}) as screen:
        screen.until(r"3 targets · 0 due")
        screen.until(r"slow +command +healthy +1h 06m ago +in (?:30m 00s|29m \d+s) +1h 00m +200 OK")
        screen.until(r"broken +command +half-open .* no route to host")
        screen.until(r"fine +command +healthy +3\ds ago +in \d+")
        screen.until("q quits")
        with sqlite3.connect("fleet.db") as connection:
            connection.execute("UPDATE pollwise_fleet_targets SET paused = 1 WHERE name = 'fine'")
        connection.close()
        screen.until(r"fine +command +paused")  # it looks again
        assert "\x1b[?1049h" in screen.raw  # on a screen of its own
        screen.send(signal.SIGINT)
        assert screen.end() == 0
        assert "\x1b[?1049l" in screen.raw


@pytest.mark.parametrize(
    ("how", "code"),
    [("q", 0), ("Q", 0), ("xyzq", 0), (signal.SIGINT, 0), (signal.SIGTERM, 143),
     (signal.SIGHUP, 129)],
)  # fmt: skip
def test_however_top_ends_the_terminal_is_as_it_was(file: Path, how: Any, code: int) -> None:
    saved(row("fine"))
    with Screen(100, 20, "fleet", "top", "--store", STORE, "--every", "1h", env={}) as screen:
        before = screen.settings
        screen.until("q quits")
        assert screen.settings != before  # keys come at once, and are not shown
        if isinstance(how, str):
            screen.press(how)
        else:
            screen.send(how)
        assert screen.end() == code
        assert screen.settings == before
        assert screen.raw.rindex("\x1b[?1049l") > screen.raw.rindex("\x1b[?1049h")
        assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")  # a cursor again
        assert "Traceback" not in screen.raw


def test_top_warns_when_no_node_polls_and_still_fits(file: Path) -> None:
    saved(*(row(f"t{number:02}") for number in range(30)), polled=False)
    file.unlink()
    words = ("fleet", "top", "--store", STORE, "--every", "100ms", "--for", "300ms")
    with Screen(60, 10, *words, env={}) as screen:
        assert screen.end() == 0
    lines = plain(screen.raw.replace("\x1b[H", "\n")).splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("no node polls this fleet; the figures are") for line in lines)
    assert "q quits" in plain(screen.raw)


@pytest.mark.parametrize(("columns", "rows"), [(40, 8), (200, 60)])
def test_top_fits_any_terminal(file: Path, columns: int, rows: int) -> None:
    saved(*(row(f"t{number:02}", succeeded_at=-number) for number in range(30)))
    file.unlink()
    words = ("fleet", "top", "--store", STORE, "--every", "100ms", "--for", "300ms")
    with Screen(columns, rows, *words, env={}) as screen:
        assert screen.end() == 0
        lines = plain(screen.raw.replace("\x1b[H", "\n")).splitlines()
        assert max(map(len, lines)) <= columns
        assert "t29" in screen.raw
        assert ("… and" in screen.raw) is (rows < 30)


def test_a_pipe_gets_one_look(file: Path) -> None:
    saved(row("fine"))
    lines = good("fleet", "top", "--store", STORE).out.splitlines()
    assert len(lines) == 6
    assert "\x1b" not in "".join(lines)
    assert "quits" not in "".join(lines)
    assert good("fleet", "top", "--store", STORE, "--json").json()["targets"] == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("status",), 2, "no store is given"),
        (("status", "--store", "fleet.db"), 2, "is not a fleet URL"),
        (("status", "--store", "sqlite:///none.db"), 2, "none.db"),
        (("status", "--store", "sqlit:///none.db"), 2, "known: sqlite, postgresql"),
        (("status", "--store", "redis://x"), 2, "known: sqlite, postgresql"),
        (("status", "--store", "sqlite:///x.db?flet=a"), 2, "did you mean 'fleet'?"),
        (("status", "--store", "sqlite://"), 2, "names no file"),
        (("pause", "--store", STORE), 2, "name the targets to pause, or give --all"),
        (("pause", "a", "--all", "--store", STORE), 2, "or give --all"),
        (("top", "--store", STORE, "--every", "0s"), 2, "every"),
        (("migrate", "--store", STORE, "--sql"), 2, "needs no migration"),
        (("run", "--file", "none.toml"), 2, "none.toml cannot be read"),
        (("run", "--set", "fleet.budgt=3"), 2, "did you mean fleet.budget?"),
        (("run", "--set", "fleet.budget=0"), 2, "budget = 0.0 must be a finite number"),
        (("run", "--api-port", "99999999"), 2, "fleet.api_port"),
        (("run", "--concurrency", "0"), 2, "fleet.concurrency"),
        (("run", "--api-tokens", "sqlite:///none.db"), 2, "needs the API; give --api-port"),
    ],
)
def test_bad_input(file: Path, words: tuple[str, ...], code: int, said: str) -> None:
    result = pollwise("fleet", *words)
    assert result.code == code, result.err
    assert said in result.err
    assert not Path("none.db").exists()


def test_a_target_that_is_no_longer_in_the_file_can_be_removed(file: Path) -> None:
    saved(row("fine"), row("old", state="dead", failures=5, error="gone", failed_at=-9))
    result = pollwise("fleet", "remove", "fine", "--store", STORE)
    assert result.code == 2
    assert "'fine' is still in fleet.toml; delete it there" in result.err
    result = pollwise("fleet", "remove", "older", "--store", STORE)
    assert result.code == 1
    assert "did you mean 'old'?" in result.err
    assert good("fleet", "remove", "old", "--store", STORE).out == "removed: old\n"
    file.unlink()
    found = good("fleet", "status", "--store", STORE, "--json").json()
    assert [each["name"] for each in found["target_list"]] == ["fine"]


def test_a_function_may_lie_beside_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("watched.py").write_text("def orders():\n    return 'seventeen'\n")
    file.write_text('[[target]]\nname = "orders"\ntype = "function"\ncall = "watched:orders"\n')
    saved()
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])  # as a script has it
    assert good("fleet", "status", "--store", STORE).err == ""


def test_a_probe_that_hangs_in_its_thread_does_not_keep_the_process(file: Path) -> None:
    Path("hangs.py").write_text(
        "import threading\nfrom pollwise.runtime import signals\nsignals.END_WITHIN = 1\n"
        "def hang():\n    print('begun', flush=True)\n    threading.Event().wait()\n"
    )
    file.write_text('[[target]]\nname = "x"\ntype = "function"\ncall = "hangs:hang"\n')
    with Command("fleet", "run", "--set", "fleet.grace=0s") as command:
        command.out.until("begun")
        assert command.stopped() == 70
    assert "the process did not end in time after a signal" in command.err.all[-1]


def test_a_broken_file_does_not_stop_views_and_orders(file: Path) -> None:
    saved(row("fine"), row("broken", state="dead", failures=5, error="gone", failed_at=-9))
    file.write_text(FILE + "\n[[target]]\nname = 'worse'\n")
    for words in (
        ("status",),
        ("dead",),
        ("pause", "fine"),
        ("resume", "fine"),
        ("retry", "--all"),
    ):
        result = good("fleet", *words, "--store", STORE)
        assert "type is missing" in result.err
        assert "only the targets in the store are used" in plain(result.err).replace("\n", " ")
        assert "nothing was" not in result.err.lower()  # whoever polls goes on
    found = good("fleet", "status", "--store", STORE, "--json").json()
    assert {each["name"] for each in found["target_list"]} == {"broken", "fine"}
    result = pollwise("fleet", "check", "--store", STORE)
    assert result.code == 2
    assert result.err.endswith("Nothing was checked.\n")


def test_an_unknown_target_is_reported_with_the_nearest_name(file: Path) -> None:
    saved(row("fine"))
    result = pollwise("fleet", "pause", "fin", "--store", STORE)
    assert (result.code, result.out) == (1, "")
    assert "this fleet has no target 'fin'; did you mean 'fine'?" in result.err


def test_a_file_with_bad_lines_starts_nothing(folder: Path) -> None:
    Path("fleet.toml").write_text('[[target]]\nname = "a"\ntype = "htp"\n[[target]]\nname = "a"\n')
    result = pollwise("fleet", "run", "--store", STORE)
    assert result.code == 2
    lines = result.err.splitlines()
    assert lines[0] == "error: fleet.toml has 3 errors:"
    assert [line.split()[0] for line in lines[1:4]] == [
        "fleet.toml:1:", "fleet.toml:4:", "fleet.toml:4:"
    ]  # fmt: skip
    assert lines[4] == "Nothing was started."
    assert not Path("fleet.db").exists()


def test_settings_for_an_unknown_group_are_refused_or_reported(file: Path) -> None:
    saved(row("fine"), row("broken"), row("slow", interval=3600.0))
    Path("pollwise.toml").write_text("[fleet.groups.shakey.polling]\nenabled = false\n")
    said = (
        "[fleet.groups.shakey.polling] (pollwise.toml): no target is in a group 'shakey'; "
        "did you mean 'shaky'?"
    )
    for words, code, end in (
        (("fleet", "run", "--store", STORE), 2, "Nothing was started."),
        (("fleet", "check", "--store", STORE), 2, "Nothing was checked."),
        (("config", "check"), 2, "did you mean 'shaky'?"),
        (("config", "show"), 0, "did you mean 'shaky'?"),
    ):
        result = pollwise(*words)
        assert result.code == code, words
        assert said in result.err
        assert result.err.endswith(f"{end}\n")
    Path("pollwise.toml").write_text("[fleet.groups.shaky.polling]\nenabled = false\n")
    assert "no target is in" not in good("config", "show").err
    good("config", "check")
    # A variable has capitals and no dashes, and means the group all the same.
    file.write_text(FILE.replace("shaky", "Shaky-One"))
    Path("pollwise.toml").unlink()
    variable = "POLLWISE_FLEET_GROUPS_SHAKY_ONE_POLLING_ENABLED"
    for words in (("config", "show"), ("fleet", "check", "--store", STORE)):
        with Command(*words, env={variable: "false"}) as command:
            assert command.end() == 0
            assert command.err.all == []
            assert words[0] == "fleet" or any(
                "fleet.groups.Shaky-One.polling.enabled" in line for line in command.out.all
            )
    # Declared, but still without targets: the start of a rollout.
    file.write_text(FILE + "\n[group.new]\ntimeout = '5s'\n[group.shaky]\n")
    Path("pollwise.toml").write_text("[fleet.groups.new.polling]\nenabled = false\n")
    good("config", "check")
    good("fleet", "check", "--store", STORE)


def test_a_setting_that_is_kept_for_a_group_that_is_gone_stops_nothing(file: Path) -> None:
    async def keep() -> None:
        store = SqliteFleetStore("fleet.db")
        await store.keep_settings({"fleet.groups.gone.polling.enabled": False})
        await store.close()

    asyncio.run(keep())
    with Command("fleet", "run", "--store", STORE) as command:
        command.err.until(r"WARNING .*no target is in a group 'gone'")
        command.err.until("fleet_started")
        assert command.stopped() == 0


def test_the_api_lets_in_the_tokens_of_a_controller(file: Path) -> None:
    async def made() -> str:
        async with SqliteState("farm.db") as state:
            return (await Tokens(state).make("read", "people"))[1]

    tokens = ("--api-port", 0, "--api-tokens", "sqlite:///farm.db")
    result = pollwise("fleet", "run", *tokens)
    assert result.code == 2
    assert "there is no database at" in result.err

    secret = asyncio.run(made())
    with Command("fleet", "run", *tokens) as command:
        url = command.err.until(r"API on (http://127.0.0.1:\d+)/")[1]
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(f"{url}/api/fleet/state", headers=headers).status_code == 200
        assert httpx.post(f"{url}/api/fleet/pause", headers=headers).status_code == 403
        assert httpx.get(f"{url}/api/fleet/state").status_code == 401
        assert command.stopped() == 0
    assert "new token of the API" not in "".join(command.err.all)
    assert not Path("fleet-token.hash").exists()


def test_a_taken_api_port_is_reported(file: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = pollwise("fleet", "run", "--api-port", port)
    assert result.code == 2
    assert f"cannot be served on 127.0.0.1:{port}" in result.err


def test_several_nodes_on_postgres_from_the_command_line(
    file: Path, own_postgres: OwnPostgres
) -> None:
    store = own_postgres().dsn()
    refused = pollwise("fleet", "run", "--store", store)
    assert refused.code == 2
    assert "Run `pollwise fleet migrate`" in refused.err
    assert "CREATE TABLE" in good("fleet", "migrate", "--store", store, "--sql").out
    versions = [each for each, _ in migrations(TABLES.package)]
    assert good("fleet", "migrate", "--store", store, "--json").json() == {"applied": versions}
    assert "the tables are up to date" in good("fleet", "migrate", "--store", store).out
    options = ("--store", store, "--set", "fleet.lease=2s")

    def held() -> dict[str, int]:
        found = good("fleet", "status", "--store", store, "--json").json()
        return {each["node"]: each["held"] for each in found["nodes"]}

    with (
        Command("fleet", "run", *options, "--node", "one") as one,
        Command("fleet", "run", *options, "--node", "two") as two,
    ):
        wait_until(lambda: sorted(held().values()) == [1, 2], "fair shares", within=30)
        assert "nodes: one (" in good("fleet", "status", "--store", store).out
        good("fleet", "pause", "fine", "slow", "broken", "--store", store)
        wait_until(
            lambda: good("fleet", "status", "--store", store, "--json").json()["paused"] == 3,
            "the pauses on both nodes", within=30,
        )  # fmt: skip
        two.send(signal.SIGKILL)
        wait_until(lambda: held() == {"one": 3}, "the take-over", within=30)
        assert one.stopped() == 0


def test_the_tables_are_those_the_migration_makes(postgres: Postgres) -> None:
    assert (
        script("pollwise", TABLES)
        in good("fleet", "migrate", "--sql", "--store", postgres.dsn()).out
    )
