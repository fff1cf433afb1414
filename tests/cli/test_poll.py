"""`pollwise poll`: each item once, as a line of JSON; what is committed, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from pollwise.cli.output import Unread
from pollwise.cli.sources import commands
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ProbeRefused
from pollwise.fleet.probes.feed import FeedEntry
from pollwise.sources import Folder, MailMessage, StreamEntry
from tests.cli.console import Command, Result, pollwise

CURSOR = ("--cursor", "sqlite:///cursors.db")
INBOX = "folder:///inbox?pattern=*.txt&quiet=0"


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def put(inbox: Path, *names: str) -> None:
    for name in names:
        (inbox / f"{name}.txt").write_text(name)


def names(result: Result | Sequence[str]) -> list[str]:
    lines = result.out.splitlines() if isinstance(result, Result) else result
    return sorted(Path(json.loads(line)["path"]).stem for line in lines)


def test_each_item_is_printed_once(inbox: Path) -> None:
    put(inbox, "a", "b", "c", "d", "e")
    # The limit of two makes three polls; all of them are done.
    assert names(pollwise("poll", f"{INBOX}&limit=2", *CURSOR, "--once")) == list("abcde")
    put(inbox, "f")
    result = pollwise("poll", INBOX, *CURSOR, "--once")
    assert (result.code, names(result), result.err) == (0, ["f"], "")
    result = pollwise("poll", INBOX, *CURSOR, "--once")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert len(names(pollwise("poll", INBOX, "--once"))) == 6  # without a cursor


def test_max_ends_it_and_the_rest_is_left_for_the_next_run(inbox: Path) -> None:
    put(inbox, "a", "b", "c", "d", "e")
    found = []
    for maximum, count in ((3, 3), (1, 1), (9, 1)):
        words = ("--max", maximum, "--once") if maximum == 9 else ("--max", maximum)
        result = pollwise("poll", f"{INBOX}&limit=2", *CURSOR, *words)
        assert (result.code, len(names(result))) == (0, count)
        found += names(result)
    assert sorted(found) == list("abcde")


def test_it_runs_until_it_is_stopped(inbox: Path) -> None:
    with Command("poll", INBOX, *CURSOR, "--every", "20ms") as running:
        put(inbox, "a")
        running.out.until(r"a\.txt")
        put(inbox, "b")
        running.out.until(r"b\.txt")
        running.send(signal.SIGINT)
        assert running.end() == 0
        assert "Traceback" not in "\n".join(running.err.join())
    assert names(pollwise("poll", INBOX, *CURSOR, "--once")) == []


def test_what_could_not_be_written_is_printed_again(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(inbox, "a")
    readable, writable = os.pipe()
    os.close(readable)
    with monkeypatch.context() as patch, os.fdopen(writable, "w") as out:
        patch.setattr("sys.stdout", out)
        with pytest.raises(Unread):
            asyncio.run(commands._poll(INBOX, Fixed(1), CURSOR[1], once=True, maximum=None))
        with suppress(BrokenPipeError):
            out.close()
    assert names(pollwise("poll", INBOX, *CURSOR, "--once")) == ["a"]


def test_the_cursor_is_saved_after_the_lines(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(inbox, "a")
    done: list[str] = []
    commit, written = Folder.commit, commands._print

    async def committing(self: Folder) -> None:
        if self._pending is not None:
            done.append("commit")
        await commit(self)

    def printing(items: Sequence[Any]) -> None:
        written(items)
        done.append(f"print {len(items)}")

    monkeypatch.setattr(Folder, "commit", committing)
    monkeypatch.setattr(commands, "_print", printing)
    pollwise("poll", INBOX, *CURSOR, "--once")
    assert done == ["print 1", "commit"]


def test_a_poll_that_fails_for_good_is_code_1(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = pollwise("poll", "folder:///none", "--once")
    assert (result.code, result.out) == (1, "")
    assert "none does not exist; create the folder" in result.err

    monkeypatch.setenv("WORD", "hunter2/")
    url = "json+http://me:${WORD}@127.0.0.1:9/orders?key=hunter2"
    result = pollwise("poll", url, "--once")
    assert (result.code, result.out) == (1, "")
    assert "could not connect" in result.err
    assert "hunter2" not in result.err

    async def refused(self: Folder, state: object, hold: float) -> None:
        raise ProbeRefused("the folder is refused")

    monkeypatch.setattr(Folder, "_find", refused)
    result = pollwise("poll", INBOX)
    assert (result.code, "error: the folder is refused" in result.err) == (1, True)

    async def broken(self: Folder, state: object, hold: float) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Folder, "_find", broken)
    result = pollwise("poll", INBOX, "--once")
    assert (result.code, "ZeroDivisionError: by zero" in result.err) == (1, True)


def test_a_cursor_that_another_process_moved(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(inbox, "a")
    assert pollwise("poll", INBOX, *CURSOR, "--once").code == 0
    put(inbox, "b")
    written = commands._print

    def moving(items: Sequence[Any]) -> None:
        written(items)
        with closing(sqlite3.connect("cursors.db")) as connection, connection:
            assert connection.execute("UPDATE pollwise_cursors SET cursor = '{}'").rowcount == 1

    monkeypatch.setattr(commands, "_print", moving)
    result = pollwise("poll", INBOX, *CURSOR)
    assert (result.code, names(result)) == (1, ["b"])
    assert "was moved by another process" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sqlite:///shop.db"], "use pollwise.sources.SqlRows in Python"),
        ([INBOX, "--every", "soon"], "--every = 'soon' is not a duration"),
        ([INBOX, "--every", "5s", "--once"], "--every and --once contradict each other"),
        ([INBOX, "--strategy", "fixed 1s", "--every", "5s"], "--strategy and --every contradict"),
        ([INBOX, "--strategy", "adaptve"], "did you mean 'adaptive'?"),
        ([INBOX, "--strategy", ""], "strategy '' is unknown"),
        ([INBOX, "--strategy", "worth"], "give poll_cost and wait_cost"),
        ([INBOX, "--max", "0"], "greater than or equal to 1"),
        ([INBOX, "--cursor", "cursors.db"], "is not a cursor URL"),
        ([INBOX, "--log-level", "loud"], "log level 'loud' is not one of"),
    ],
)
def test_bad_input_is_code_2(inbox: Path, words: list[str], said: str) -> None:
    result = pollwise("poll", *words)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_items_as_json() -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"] = "Grüße", "Ada <ada@x.example>"
    raw = mail.as_bytes()
    entry = FeedEntry({"id": "7", "title": "T", "updated": "2026-01-01T00:00:00Z"})
    lines = [
        commands._line(item)
        for item in (
            StreamEntry("5-0", {"a": "b"}), MailMessage(3, len(raw), raw), entry,
            {"n": float("nan"), "b": b"\xff"}, "text",
        )
    ]  # fmt: skip
    stream, message, news, odd, text = map(json.loads, lines)
    assert stream == {"id": "5-0", "fields": {"a": "b"}}
    assert (message["subject"], message["uid"], message["is_cut"]) == ("Grüße", 3, False)
    assert (message["from"], message["to"]) == ("Ada <ada@x.example>", None)
    assert news == {"id": "7", "moment": 1767225600.0, "texts": entry.texts}
    assert odd == {"n": "NaN", "b": "/w=="}
    assert text == "text"
