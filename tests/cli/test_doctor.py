"""`pollwise doctor`: ok, note and bad, and no job is changed."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pollwise.cli import doctor
from pollwise.outbox import NewRecord
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import STATES
from tests.cli.console import Result, files, good, pollwise
from tests.cli.test_outbox import kill, put
from tests.cli.test_queue import bury
from tests.queues.benches import migrated
from tests.support.servers import Postgres, Redis

URL = "sqlite:///jobs.db"


def findings(result: Result) -> dict[str, tuple[str, str]]:
    """What a doctor with --json found: level and text by check."""
    return {each["check"]: (each["level"], each["says"]) for each in result.json()}


def test_a_machine_that_is_well() -> None:
    found = findings(good("doctor", "--json"))
    assert list(found) == ["python", "sqlite", "metrics", "settings"]
    assert {level for level, _ in found.values()} == {"ok"}
    text = good("doctor").out
    assert [line.split()[:2] for line in text.splitlines()] == [["ok", check] for check in found]


def test_a_queue_that_is_well(folder: Path) -> None:
    good("queue", "put", URL, "greet")
    before = files(folder)
    found = findings(good("doctor", URL, "--json"))
    assert found["queue"] == ("ok", "sqlite:///jobs.db?queue=default: 1 ready, 0 dead")
    assert found["hints"] == ("ok", "reach other processes on this machine")
    assert found["disk"][0] in ("ok", "note")
    assert f"free in {folder}" in found["disk"][1]
    assert files(folder) == before


def test_little_free_space_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    good("queue", "put", URL, "greet")
    monkeypatch.setattr(doctor, "FREE_MIN", 2**80)
    level, says = findings(good("doctor", URL, "--json"))["disk"]
    assert level == "note"
    assert "MiB free" in says


@pytest.mark.parametrize("url", [URL, "file:///{folder}/queue", "sqlite:///shop.db?outbox=x"])
def test_a_disk_that_takes_no_more_is_bad(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url.format(folder=folder)
    if "outbox" in url:
        good("outbox", "migrate", url)
    else:
        good("queue", "put", url, "greet")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = pollwise("doctor", url, "--json")
    assert result.code == 1
    level, says = findings(result)["disk"]
    assert level == "bad"
    assert "No space left on device; puts and claims fail" in says


def test_a_disk_that_is_full_in_truth(folder: Path) -> None:
    place = folder / "small"
    place.mkdir()
    words = f"""
        mount -t tmpfs -o size=2m tmpfs {place} || exit 77
        cd {place} && {sys.executable} -m pollwise queue put {URL} greet || exit 1
        head -c 3m /dev/zero > fill
        {sys.executable} -m pollwise doctor {URL} --json
    """
    # A mount of its own, which is gone with the shell.
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", words], capture_output=True, text=True, check=False
    )
    if ran.returncode != 1 or not ran.stdout:
        pytest.skip(f"this user may not mount a small disk: {ran.stderr}")
    found = {each["check"]: each for each in json.loads(ran.stdout.splitlines()[-1])}
    assert found["disk"]["level"] == "bad"
    assert "No space left on device" in found["disk"]["says"]


def test_a_server_that_takes_no_writes_is_bad(postgres: Postgres, redis: Redis) -> None:
    url = f"{migrated(postgres.dsn())}?queue=well"
    for well in (url, f"{redis.url()}?queue=well"):
        level, says = findings(good("doctor", well, "--json"))["writing"]
        assert (level, says) == ("ok", "a job can be put, claimed and finished")
    for each in ("well", doctor.OWN_NAME):
        counted = good("queue", "stats", url.replace("well", each), "--json").json()
        assert sum(counted[state] for state in STATES) == 0
    result = pollwise("doctor", f"{url}&options=-c%20default_transaction_read_only%3Don", "--json")
    assert result.code == 1
    level, says = findings(result)["writing"]
    assert level == "bad"
    assert "read-only" in says


def test_dead_letters_are_noted() -> None:
    bury("no")
    found = findings(good("doctor", URL, "--json"))
    assert found["dead jobs"] == ("note", f"1: pollwise queue list '{URL}' --state dead")
    assert "\nnote dead jobs  1: " in good("doctor", URL).out


def test_hints_that_reach_less_far_are_noted() -> None:
    assert findings(good("doctor", "memory://", "--json"))["hints"] == (
        "note",
        "reach this process only",
    )
    good("queue", "put", URL, "greet")
    level, says = findings(good("doctor", f"{URL}?watch=0", "--json"))["hints"]
    assert (level, says[:4]) == ("note", "off:")


def test_hints_that_do_not_arrive_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    good("queue", "put", URL, "greet")
    monkeypatch.setattr(doctor, "HINT_DEADLINE", 0.01)
    monkeypatch.setattr(
        "pollwise.storage.sqlite.watched_file.WatchedFile.send_to_others", Hints.send_to_others
    )
    result = pollwise("doctor", f"{URL}?watch=10ms", "--json")
    assert result.code == 1
    level, says = findings(result)["hints"]
    assert level == "bad"
    assert "check that the folder is writable" in says


def test_a_missing_extra_is_noted_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "prometheus_client" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert findings(good("doctor", "--json"))["metrics"] == (
        "note",
        "not installed: pip install 'pollwise[metrics]'",
    )


def test_an_old_sqlite_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 7, 0))
    result = pollwise("doctor", "--json")
    assert result.code == 1
    assert findings(result)["sqlite"][0] == "bad"


def test_bad_settings_are_bad(folder: Path) -> None:
    (folder / "pollwise.toml").write_text("[worker]\nlease = '1x'\nconcurrency = '[red]\\u001b'\n")
    result = pollwise("doctor", "--json")
    assert (result.code, result.err) == (1, "")
    assert findings(result)["settings"][0] == "bad"
    text = pollwise("doctor")
    assert text.code == 1
    assert "\n- worker.lease = '1x' (pollwise.toml)" in text.out
    assert "\x1b" not in text.out


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///jobs.db", "there is no database at jobs.db"),
        ("sqlite:///no/such.db", "there is no database"),
        ("sqlite:///text", "not a database"),
        ("nosuch://", "no queue has the scheme"),
        ("sqlite:///jobs.db?watch=often", "watch = 'often'"),
    ],
)
def test_a_queue_that_cannot_be_opened_is_bad(url: str, says: str, folder: Path) -> None:
    (folder / "text").write_text("not a database\n" * 100)
    before = files(folder)
    result = pollwise("doctor", url, "--json")
    assert (result.code, result.err) == (1, "")
    level, told = findings(result)["queue"]
    assert level == "bad"
    assert says in told
    assert files(folder) == before


# An outbox


@pytest.fixture(params=["sqlite", "postgres"])
def outbox_url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite:///shop.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database(f"doctor_{uuid.uuid4().hex}")


def test_an_outbox_that_is_well(outbox_url: str) -> None:
    good("outbox", "migrate", outbox_url)
    put(outbox_url, [NewRecord("order.placed", 1, "a"), NewRecord("order.placed", 2, "a")])
    found = findings(good("doctor", outbox_url, "--outbox", "--json"))
    level, says = found["outbox"]
    assert (level, says[-17:]) == ("ok", ": 2 ready, 0 dead")
    assert "blocked keys" not in found
    if outbox_url.startswith("sqlite"):
        level, says = found["journal"]
        assert (level, says[:7]) == ("note", "delete:")
        with closing(sqlite3.connect("shop.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        named = f"{outbox_url}?outbox=default"
        assert findings(good("doctor", named, "--json"))["journal"] == ("ok", "wal")
    else:
        level, says = found["hints"]
        assert (level, says[:26]) == ("ok", "proven: a check came back ")


def test_blocked_keys_are_noted(outbox_url: str) -> None:
    good("outbox", "migrate", outbox_url)
    put(outbox_url, [NewRecord("order.placed", 1, "a")])
    kill(outbox_url, "a")
    found = findings(good("doctor", outbox_url, "--outbox", "--json"))
    assert found["blocked keys"] == ("note", f"1: pollwise outbox blocked '{outbox_url}'")


def test_an_outbox_that_is_not_migrated_is_bad(outbox_url: str, folder: Path) -> None:
    sqlite3.connect("shop.db").close()
    before = files(folder)
    result = pollwise("doctor", outbox_url, "--outbox", "--json")
    assert (result.code, result.err) == (1, "")
    level, says = findings(result)["outbox"]
    assert level == "bad"
    assert "pollwise outbox migrate" in says
    assert files(folder) == before


def test_an_outbox_needs_its_url() -> None:
    result = pollwise("doctor", "--outbox")
    assert result.code == 2
    assert "--outbox needs the URL" in result.err
