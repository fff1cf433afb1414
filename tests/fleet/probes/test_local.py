"""Probes of commands, databases and functions."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shlex
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet.probes import make_probe
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.targets import ProbeContext, Reading, Target
from tests.fleet.probes.kit import polled, really
from tests.support.daemons import wait_until
from tests.support.servers import OwnPostgres, Postgres


def failure(type: str, timeout: float = 20, **options: Any) -> ProbeError:
    async def main() -> ProbeError:
        with pytest.raises(ProbeError) as raised:
            await polled(type, timeout=timeout, **options)
        return raised.value

    return really(main)


def reading(type: str, **options: Any) -> Reading:
    return really(lambda: polled(type, **options))


def refusal(type: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", type, options=options))
    return str(raised.value)


# Commands


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def test_a_command_is_its_output_and_its_exit_status() -> None:
    found = reading("command", run=python("print('hello 7')"), regex=r"\d")
    assert found.value == "7"
    assert found.facts["exit"] == 0
    text = shlex.join(python("print('{\"a\": [1, 2]}')"))
    assert reading("command", run=text, json="a[1]").value == "2"
    whole = reading("command", run=["echo", "a"]), reading("command", run=["echo", "b"])
    assert whole[0].value != whole[1].value


def test_there_is_no_shell() -> None:
    found = reading("command", run="echo $HOME; echo `id` > /tmp/never", regex=".*")
    assert found.value == "$HOME; echo `id` > /tmp/never"


def test_a_status_that_was_not_expected_is_a_failure_with_its_last_word() -> None:
    code = "import sys; print('first\\nlast word', file=sys.stderr); sys.exit(3)"
    error = failure("command", run=python(code))
    assert not error.permanent
    assert "exited with 3: last word" in str(error)
    found = reading("command", run=python(code), expect=[0, 3])
    assert str(found.value).startswith("exit 3 ")
    killed = failure("command", run=python("import os; os.kill(os.getpid(), 9)"))
    assert "SIGKILL" in str(killed)


def test_a_program_that_is_not_there_is_for_good() -> None:
    assert failure("command", run=["/nowhere/at-all"]).permanent
    assert failure("command", run=["/etc/passwd"]).permanent


def test_environment_and_folder(tmp_path: Path) -> None:
    code = "import os; print(os.environ['SEEN'], os.getcwd())"
    found = reading(
        "command", run=python(code), env={"SEEN": "yes"}, folder=str(tmp_path), regex=".*"
    )
    assert found.value == f"yes {tmp_path}"


def test_endless_output_is_not_taken() -> None:
    error = failure("command", run=["yes"], limit="64KiB")
    assert error.permanent
    assert "raise limit" in str(error)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


HANGS = """
import os, signal, subprocess, sys
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
child.wait()
"""


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    async def main() -> None:
        polling = asyncio.ensure_future(polled("command", run=[*python(HANGS), str(note)]))
        await asyncio.to_thread(
            wait_until, lambda: note.exists() and note.read_text().endswith("\n"), "the child"
        )
        polling.cancel()  # as the fleet does when its time is over
        with pytest.raises(asyncio.CancelledError):
            await polling

    really(main)
    for pid in map(int, note.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid), f"the end of {pid}")  # type: ignore[misc]


def test_a_child_that_keeps_the_output_open_holds_nothing_up(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '1000']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); print('done')"
    )
    found = reading("command", run=[*python(code), str(note)], regex=".*")
    assert found.value == "done"
    pid = int(note.read_text())
    wait_until(lambda: not alive(pid), "the end of the child")


def test_options_of_commands_are_checked() -> None:
    assert "run is missing" in refusal("command")
    assert "has no program" in refusal("command", run=[])
    assert "cannot be split" in refusal("command", run="echo 'a")
    assert "must be a list of texts" in refusal("command", run=["a", 1])
    assert "is not a folder" in refusal("command", run="a", folder="/nowhere")
    said = refusal("command", run="a", env={"TOKEN": 7})
    assert "must have text for 'TOKEN'" in said


# SQLite


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop 1.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, state TEXT, raw BLOB)")
        rows = [(1, "new", b"\xff"), (2, "done", None)]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    connection.close()
    return path


def url_of(path: Path) -> str:
    return f"sqlite:///{path}".replace(" ", "%20")


def test_the_first_rows_of_a_query_are_the_reading(shop: Path) -> None:
    count = reading("sql", url=url_of(shop), query="SELECT count(*) FROM orders")
    assert (count.value, count.facts["value"]) == ("2", 2)
    query = "SELECT id, state, raw FROM orders ORDER BY id"
    assert json.loads(str(reading("sql", url=url_of(shop), query=query).value))[0][:2] == [1, "new"]
    both = reading("sql", url=url_of(shop), query="SELECT id FROM orders ORDER BY id", rows=2)
    assert both.value == "[[1],[2]]"
    assert reading("sql", url=url_of(shop), query="SELECT 1 WHERE 0").value == "[]"


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM orders",
        "PRAGMA user_version = 7",
        "SELECT 1; DELETE FROM orders",
        "ATTACH 'other.db' AS other",
        "SELECT nonsense FROM orders",
    ],
)
def test_nothing_is_written_to_sqlite(
    shop: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.parent)
    before = shop.read_bytes()
    with suppress(ProbeError):
        reading("sql", url=url_of(shop), query=query)
    assert shop.read_bytes() == before
    other = shop.parent / "other.db"
    assert not other.exists() or other.stat().st_size == 0


def test_a_missing_or_invalid_file_is_permanent(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    assert failure("sql", url=url_of(missing), query="SELECT 1").permanent
    assert not missing.exists()
    (tmp_path / "text.db").write_text("no database" * 200)
    url = url_of(tmp_path / "text.db")
    assert failure("sql", url=url, query="SELECT * FROM sqlite_schema").permanent


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


def test_a_query_whose_time_is_over_is_ended_in_sqlite(shop: Path) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await polled("sql", timeout=0.1, url=url_of(shop), query=ENDLESS)

    really(main)  # which would wait for the thread


# Postgres


def test_the_first_rows_of_postgres_are_the_reading(postgres: Postgres) -> None:
    url = postgres.dsn()
    found = reading("sql", url=url, query="SELECT now() > '2000-01-01', 7, '{1,2}'::int[], 1.50")
    assert found.value == '[[true,7,[1,2],"1.50"]]'
    many = "SELECT generate_series(1, 100000000)"
    assert reading("sql", url=url, query=many, rows=3).value == "[[1],[2],[3]]"
    assert reading("sql", url=url, query="SHOW server_version_num").facts["rows"] == 1
    assert reading("sql", url=url, query="SELECT sum(n) FROM (VALUES (1.5), (2)) AS t(n)").facts[
        "value"
    ] == pytest.approx(3.5)
    assert "value" not in reading("sql", url=url, query="SELECT 'NaN'::numeric").facts


def test_nothing_is_written_to_postgres(postgres: Postgres) -> None:
    url = postgres.create_database("probed")
    postgres.execute("CREATE TABLE orders AS SELECT 1 AS id", dbname="probed")
    for query in (
        "DELETE FROM orders RETURNING id",
        "SELECT 1; DELETE FROM orders",
        "COMMIT; DELETE FROM orders",
        "CREATE TABLE more (id int)",
        "SELECT nextval('nothing')",
    ):
        assert failure("sql", url=url, query=query).permanent
    assert postgres.execute("SELECT count(*) FROM orders", dbname="probed") == [(1,)]


def test_a_query_whose_time_is_over_is_ended_in_postgres(postgres: Postgres) -> None:
    url = postgres.create_database("probed_slowly")

    async def main() -> None:
        with pytest.raises((ProbeError, TimeoutError)):
            await polled("sql", timeout=0.5, url=url, query="SELECT pg_sleep(1000)")

    really(main)
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'probed_slowly'"
    wait_until(lambda: postgres.execute(query) == [(0,)], "the end of the query")


def test_an_unreachable_server_is_transient_and_shows_no_password(
    own_postgres: OwnPostgres,
) -> None:
    server = own_postgres()
    server.create_role("watcher")
    right = server.dsn(user="watcher", password="secret")
    assert reading("sql", url=right, query="SELECT 1").value == "1"
    wrong = failure("sql", url=server.dsn(user="watcher", password="hunter2"), query="SELECT 1")
    assert "hunter2" not in str(wrong)
    server.stop()
    gone = failure("sql", url=right, query="SELECT 1")
    assert not gone.permanent
    assert "secret" not in str(gone)


def test_options_of_sql_are_checked() -> None:
    said = refusal("sql", url="mysql://app:hunter2@db/x")
    assert "query is missing" in said
    assert "must start with postgresql:// or sqlite://" in said
    assert "hunter2" not in said
    assert "has no scheme" in refusal("sql", url="shop.db", query="SELECT 1")
    assert "sqlite:////absolute.db" in refusal("sql", url="sqlite://shop.db", query="SELECT 1")


# Functions


async def of_two(target: Target, context: ProbeContext) -> str:
    return f"{target.name} {context.last}"


def of_one(target: Target) -> dict[str, str]:
    return {"name": target.name}


def of_none() -> bytes:
    return b"bytes"


def of_three(a: int, b: int, c: int) -> None: ...


NOT_CALLABLE = 7


class Callable2:
    async def __call__(self, target: Target, context: ProbeContext) -> str:
        return "object"


AN_OBJECT = Callable2()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("of_two", "t None"),
        ("of_one", '{"name": "t"}'),
        ("of_none", b"bytes"),
        ("AN_OBJECT", "object"),
    ],
)
def test_any_function_is_a_probe(name: str, value: object) -> None:
    assert reading("function", call=f"{__name__}:{name}").value == value


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nonsense", "must be written as 'module:function'"),
        ("no.such.module:x", "ModuleNotFoundError"),
        (f"{__name__}:nothing", "AttributeError"),
        (f"{__name__}:NOT_CALLABLE", "is not a function"),
        (f"{__name__}:of_three", "must take (target, context)"),
        ("", "call is missing"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused(call: str, said: str) -> None:
    assert said in refusal("function", call=call)


def test_a_plain_function_runs_beside_the_event_loop() -> None:
    def where() -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return f"thread of {os.getpid()}"
        return "loop"

    async def main() -> None:
        probe = as_probe(where)
        assert probe is as_probe(where)
        assert as_probe(of_two) is of_two
        found = await probe(Target("t", probe), ProbeContext(None, 0.0, 0.0))
        assert found.value == f"thread of {os.getpid()}"

    really(main)


def test_a_decorated_function_gets_what_its_decorator_takes() -> None:
    def depth(target: Target, session: str) -> str:
        return f"{target.name} {session}"

    @functools.wraps(depth)
    def adds(target: Target) -> str:
        return depth(target, "session")

    def named(target: Target) -> str:
        return target.name

    @functools.wraps(named)
    def passes_on(*given: Any) -> str:
        return named(*given)

    async def main() -> None:
        for function, value in ((adds, "t session"), (passes_on, "t")):
            probe = as_probe(function)
            found = await probe(Target("t", probe), ProbeContext(None, 0.0, 0.0))
            assert found.value == value

    really(main)
