"""`pollwise serve` as a process, and its tokens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import ssl
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pollwise.cli.serve import options_from
from pollwise.controller import Controller
from pollwise.controller.http.server import KEEP_ALIVE
from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.values import WorkerRow
from pollwise.controller.workers.runs import RunReport
from pollwise.errors import ConfigError
from pollwise.platforms.limits import allow_open_files
from pollwise.queues.http import client as http_client
from pollwise.settings import load
from tests.cli.console import PATIENCE, Command, good, pollwise
from tests.support.daemons import wait_until
from tests.support.forked import Forked
from tests.support.servers import Postgres

STORE = "sqlite:///jobs.db"


@contextmanager
def served(*words: str, said: list[str] | None = None) -> Iterator[tuple[str, Forked]]:
    """A controller that runs, and its URL. said: gets what it logs until it serves."""
    said = [] if said is None else said
    with closing(
        Forked(["-m", "pollwise", "serve", STORE, "--port", "0", *words], out=False)
    ) as process:
        for line in process.stderr:
            said.append(line)
            found = re.search(r"https?://[\w.:]+", line)
            if found and "serving" in line:
                yield found[0], process
                break
        else:
            pytest.fail(f"it did not start: {said}")
        process.terminate()
        process.communicate(PATIENCE)


def get(url: str, token: str | None = None, **given: Any) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE, **given) as answer:
        return json.load(answer)


def test_the_first_start_makes_an_admin_token(folder: Path) -> None:
    file = folder / "pollwise-admin.token"
    with served() as (url, process):
        assert url.startswith("http://127.0.0.1:")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = file.read_text().strip()
        assert get(f"{url}/api/stats", token)["workers"] == 0
        assert get(f"{url}/livez") == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    file.unlink()
    with served() as (url, _):
        assert not file.exists()  # there is a token already
        assert get(f"{url}/api/stats", token)["workers"] == 0


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "0.0.0.0", "--trusted-proxy", "10.0.0.1"), False),
        (("--host", "127.0.0.2"), False),
        (("--host", "localhost"), False),
    ],
)
def test_an_open_port_without_tls_is_warned_of(
    folder: Path, words: tuple[str, ...], warned: bool
) -> None:
    said: list[str] = []
    with served(*words, said=said):
        pass
    warning = [line for line in said if "tokens cross the network in clear text" in line]
    assert len(warning) == warned, said


def test_a_second_store_in_a_folder_leaves_the_token_of_the_first(folder: Path) -> None:
    file = folder / "pollwise-admin.token"
    file.write_text("that of another farm")
    refused = pollwise("serve", "sqlite:///second.db", "--port", "0")
    assert refused.code != 0
    said = " ".join(refused.err.split())
    assert "pollwise-admin.token cannot be written: it exists already" in said
    assert "--token-file" in said
    assert "remove" not in said
    assert file.read_text() == "that of another farm"
    assert [each.name for each in folder.iterdir()] == [file.name], "and no database is left"


def test_the_attempts_of_a_job_and_their_logs(folder: Path) -> None:
    async def main() -> str:
        options = ControllerOptions(artefacts=folder / "artefacts", heartbeat_timeout=1)
        async with Controller(STORE, options) as controller:
            job_id = await controller.put("build", attempts=2)
            [row] = [await registered(controller)]
            known = await controller.registry.get(row.id)
            assert known is not None
            for text, state in ((b"first\n", "failed"), (b"second\n", "done")):
                [run] = await controller.runs.claim(known, 1)
                await controller.logs.append(run.claim, 0, text)
                await controller.runs.finish(known, [RunReport(job_id, state, error="no disk")])
                if state == "failed":
                    await controller.queue.cancel([job_id])
                    assert await controller.jobs.retry(job_id)
            return job_id

    async def registered(controller: Controller) -> WorkerRow:
        return await controller.registry.register(
            "mini", {}, 1, token_hash="h", expires_at=None, who="test", address=""
        )

    job_id = asyncio.run(main())
    rows = json.loads(good("serve", "attempts", job_id, "--store", STORE, "--json").out)
    assert [(each["state"], each["worker_name"], each["error"]) for each in rows] == [
        ("failed", "mini", "no disk"), ("done", "mini", None),
    ]  # fmt: skip
    shown = good("serve", "attempts", job_id, "--store", STORE).out
    assert "no disk" in shown
    assert "mini" in shown
    whole = good("serve", "log", job_id, "--store", STORE).out
    assert (whole.count("first"), whole.count("second")) == (1, 1)
    one = good("serve", "log", job_id, "--attempt", 1, "--store", STORE).out
    assert "second" in one, "the newest with this number"
    told = json.loads(good("serve", "log", job_id, "--store", STORE, "--json").out)
    assert (told["log"], told["attempt"]) == (whole, None)
    for words in (("log", "99"), ("attempts", "99"), ("log", job_id, "--attempt", "7")):
        refused = pollwise("serve", *words, "--store", STORE)
        assert refused.code == 1
        assert "there is no job '99'" in refused.err or "has no log" in refused.err
    assert pollwise("serve", "log", "1", "--store", "sqlite:///none.db").code != 0
    assert not (folder / "none.db").exists()


@contextmanager
def raw(url: str) -> Iterator[socket.socket]:
    host, port = url.rpartition("/")[2].split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        yield connection


def lines_of(process: Forked) -> list[Any]:
    """What a controller says until it has ended, each line as JSON."""
    process.send_signal(signal.SIGTERM)
    return [json.loads(line) for line in process.stderr]


def test_the_server_logs_as_we_do_and_no_requests_unless_told(folder: Path) -> None:
    with served("--log-format", "json") as (url, process):
        get(f"{url}/livez?token=hunter2")
        with raw(url) as connection:
            connection.sendall(b"what is this?\r\n\r\n")
            while connection.recv(1000):
                pass
        lines = lines_of(process)
    [warning] = [each for each in lines if each["action"] == "log"]
    assert warning["logger"] == "uvicorn.error"
    assert warning["message"] == "Invalid HTTP request received."
    assert "hunter2" not in json.dumps(lines)
    assert not [each for each in lines if each["action"] == "request"]


def test_a_websocket_that_is_refused_is_no_error_of_the_server(folder: Path) -> None:
    with served("--log-format", "json") as (url, process):
        for path in ("/api/workers/ws", "/api/queue/mail/ws"):
            with pytest.raises(InvalidStatus) as refused:
                connect(
                    url.replace("http:", "ws:") + path,
                    additional_headers={"Authorization": "Bearer nobodys"},
                )
            assert refused.value.response.status_code == 401
        lines = lines_of(process)
    assert not [each for each in lines if each["level"] == "error"], lines


def test_requests_are_logged_if_told_without_their_queries(folder: Path) -> None:
    with served("--log-format", "json", "--access-log") as (url, process):
        get(f"{url}/livez?token=hunter2")
        lines = lines_of(process)
    [request] = [each for each in lines if each["action"] == "request"]
    assert (request["method"], request["path"], request["status"]) == ("GET", "/livez", 200)
    assert request["address"].startswith("127.0.0.1:")
    assert "hunter2" not in json.dumps(lines)


def test_tokens_are_made_where_a_controller_was_and_nowhere_else(
    folder: Path, postgres: Postgres
) -> None:
    def refused(store: str) -> str:
        result = pollwise("serve", "token", "create", "worker", "--name", "w", "--store", store)
        assert result.code == 2, result.err
        return " ".join(result.err.split())

    said = refused("sqlite:///jbos.db")
    assert f"there is no database at '{folder}/jbos.db'" in said
    assert "start `pollwise serve sqlite:///jbos.db`" in said
    with closing(sqlite3.connect("plain.db")) as database:
        database.execute("CREATE TABLE notes (text)")
    assert "plain.db holds no controller's state, which `pollwise serve` makes" in refused(
        "sqlite:///plain.db"
    )
    assert sorted(each.name for each in folder.iterdir()) == ["plain.db"]
    with closing(sqlite3.connect("plain.db")) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("notes",)]
    for elsewhere in ("memory://", "redis://:hunter2@cache/0", "sqs://jobs", "http://farm"):
        said = refused(elsewhere)
        assert "holds no tokens: they are in the controller's state" in said
        assert "hunter2" not in said
    database_url = postgres.create_database(f"tokens_{os.getpid()}")
    assert "migrate" in refused(database_url)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("sqs://jobs", "SQS hands out the next message"),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/jobs", "SQS hands out the next"),
        ("http://localhost:8420", "is the address of a controller"),
        ("https://builds.example.com/farm", "is the address of a controller"),
    ],
)
def test_stores_that_cannot_stand_behind_a_controller(folder: Path, store: str, why: str) -> None:
    result = pollwise("serve", store)
    assert result.code == 2, result.err
    said = " ".join(result.err.split())
    assert f"{store} " in said
    assert why in said
    assert "Use sqlite:///jobs.db or postgresql://" in said
    assert "option" not in said
    assert list(folder.iterdir()) == []


def test_tokens_from_the_command_line(folder: Path) -> None:
    store = ("--store", STORE)
    with served():
        pass  # the first start makes the database
    made = good("serve", "token", "create", "put", "--name", "ci", *store, "--json").json()
    assert made["token"].startswith("pollwise_")
    plain = good("serve", "token", "create", "worker", "--name", "w", *store).out.strip()
    assert plain.startswith("pollwise_")
    rows = good("serve", "token", "list", *store, "--json").json()
    assert {row["name"] for row in rows} == {"first admin", "ci", "w"}
    assert "hash" not in rows[0]
    rotated = good("serve", "token", "rotate", made["id"], *store).out.strip()
    assert rotated != made["token"]
    assert good("serve", "token", "revoke", made["id"], *store).out == "The token ci is revoked.\n"
    with sqlite3.connect("jobs.db") as database:
        noted = database.execute(
            "select who, action, what from pollwise_controller_audit order by id"
        ).fetchall()
    by = "command line"
    assert noted[0] == (by, "token.create", made["id"])
    assert noted[2:] == [(by, "token.rotate", made["id"]), (by, "token.revoke", made["id"])]
    [workers] = [row["id"] for row in rows if row["name"] == "w"]
    revoked = good("serve", "token", "revoke", workers, *store).out
    assert "and the workers that registered with it" in " ".join(revoked.split())
    gone = pollwise("serve", "token", "rotate", made["id"], *store)
    assert gone.code == 1
    assert pollwise("serve", "token", "create", "root", "--name", "x", *store).code == 2
    assert pollwise("serve", "token", "create", "admin", "--name", "x").code == 2  # which store?


def test_state_may_lie_elsewhere(folder: Path) -> None:
    state = "sqlite:///state.db"
    with served("--state", state) as (url, _):
        token = good("serve", "token", "create", "admin", "--name", "me", "--store", state)
        assert get(f"{url}/api/stats", token.out.strip())["workers"] == 0


def test_tls(folder: Path) -> None:
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), check=True, capture_output=True, cwd=folder)
    with served("--tls-cert", "cert.pem", "--tls-key", "key.pem") as (url, _):
        context = ssl.create_default_context(cafile="cert.pem")
        assert url.startswith("https://")
        assert get(f"{url}/livez", context=context) == {"status": "ok"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "no store is named"),
        (["serve", "jobs.db"], "is not a queue URL"),
        (["serve", STORE, "--tls-cert", "c.pem"], "tls_key"),
        (["serve", STORE, "--tls-cert", "c.pem", "--tls-key", "k.pem"], "no such file"),
        (["serve", STORE, "--trusted-proxy", "everybody"], "not an address or network"),
        (["serve", STORE, "--set", "controller.min_interval"], "has no value"),
        (["serve", STORE, "--set", "controller.min_intervall=1s"], "min_interval"),
        (["serve", STORE, "--set", "controller.port=70000"], "65535"),
        (["serve", "redis://nowhere/0"], "--state sqlite:///state.db"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_bad_input(folder: Path, words: list[str], said: str) -> None:
    result = pollwise(*words)
    assert result.code == 2, result.err
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert list(folder.iterdir()) == []


def test_a_port_that_is_taken(folder: Path) -> None:
    with served() as (url, _):
        port = url.rpartition(":")[2]
        os.environ.pop("COLUMNS", None)
        result = pollwise("serve", STORE, "--port", port)
        assert result.code == 2
        assert "Choose another port" in " ".join(result.err.split())


def test_settings_become_options() -> None:
    settings = load(overrides={"controller.heartbeat_timeout": "30s"}, environ={}).controller
    chosen = options_from(settings)
    assert chosen.heartbeat_timeout == 30
    assert options_from(load(environ={}).controller) == ControllerOptions()
    environ = {"POLLWISE_CONTROLLER_HEARTBEAT_TIMEOUT": "90s"}
    assert options_from(load(environ=environ).controller).heartbeat_timeout == 90


def test_trusted_networks() -> None:
    assert ControllerOptions().trusted_proxies == ()
    given = ControllerOptions(trusted_proxies="10.0.0.1, 10.1.0.0/16,::1")
    assert given.trusted_proxies == ("10.0.0.1/32", "10.1.0.0/16", "::1/128")
    with pytest.raises(ConfigError, match="trusted_proxies"):
        ControllerOptions(trusted_proxies="*")


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], "127.0.0.1"),
        (["--trusted-proxy", "10.0.0.0/8"], "127.0.0.1"),
        (["--trusted-proxy", "127.0.0.0/8"], "192.0.2.7"),
    ],
    ids=["none", "another", "this one"],
)
def test_forwarded_headers_are_believed_from_where_told(
    folder: Path, words: list[str], address: str
) -> None:
    with served(*words) as (url, _):
        token = (folder / "pollwise-admin.token").read_text().strip()
        request = urllib.request.Request(
            f"{url}/api/workers/register",
            data=b'{"name": "mini"}',
            headers={"Authorization": f"Bearer {token}", "X-Forwarded-For": "192.0.2.7"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            worker = json.load(answer)["worker_id"]
        assert get(f"{url}/api/workers/{worker}", token)["address"] == address


def test_connections_last_longer_than_clients_keep_them() -> None:
    # Else each poll that follows a hint opens a connection, or is sent into one that is closing.
    assert KEEP_ALIVE > http_client.KEEP_ALIVE


def test_as_many_connections_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


MAILERS = """
import asyncio, pathlib
import pollwise

worker = pollwise.Worker("{url}?queue=mail&token_file=worker.token&keep=1d")

@worker.handle("greet")
async def greet(job):
    print("hello", job.payload, flush=True)

@worker.handle("fail", retry=pollwise.Retry.fixed("10ms", attempts=2))
def fail(job):
    raise ValueError("no good")

@worker.handle("long")
async def long(job):
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    print("long", flush=True)
"""


def test_a_token_goes_to_a_new_private_file(folder: Path) -> None:
    with served():
        pass
    (folder / "there").write_text("something else")
    (folder / "link").symlink_to("elsewhere")
    before = good("serve", "token", "list", "--store", STORE, "--json").json()
    words = ("--name", "w", "--store", STORE)
    for name, why in (("there", "File exists"), ("link", "File exists"), ("no/t", "No such file")):
        refused = pollwise("serve", "token", "create", "worker", *words, "--out", name)
        assert refused.code == 2
        assert why in refused.err
    assert pollwise("serve", "token", "create", "root", *words, "--out", "root.token").code == 2
    assert good("serve", "token", "list", "--store", STORE, "--json").json() == before
    assert [each for each in ("root.token", "elsewhere", "no") if (folder / each).exists()] == []
    mask = os.umask(0)
    try:
        made = good("serve", "token", "create", "worker", *words, "--out", "t", "--json").json()
    finally:
        os.umask(mask)
    secret = (folder / "t").read_text().strip()
    assert stat.S_IMODE((folder / "t").stat().st_mode) == 0o600
    assert secret.startswith("pollwise_")
    assert made["file"] == "t"
    assert secret not in json.dumps(made)
    told = good("serve", "token", "rotate", made["id"], "--store", STORE, "--out", "new").out
    assert (folder / "new").read_text().strip() not in told
    assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o600
    assert pollwise("serve", "token", "rotate", "nobody", "--store", STORE, "--out", "x").code == 1
    assert not (folder / "x").exists()


@pytest.mark.parametrize("strategy", [(), ("--set", "worker.polling.hold=5s")], ids=["", "held"])
def test_a_worker_needs_no_more_than_the_scopes_of_the_docs(
    folder: Path, strategy: tuple[str, ...]
) -> None:
    words = ("--access-log", "--log-format", "json", "--set", "controller.queues=mail,thumbnails")
    with served(*words) as (url, process):
        for scope in ("worker", "put"):
            made = ("--name", scope, "--out", f"{scope}.token", "--store", STORE)
            good("serve", "token", "create", scope, *made)
        (folder / "mailers.py").write_text(MAILERS.format(url=url))
        mail = f"{url}?queue=mail&token_file="
        with Command("worker", "mailers:worker", "--set", "worker.lease=3s", *strategy) as worker:
            worker.err.until("hints_proven")
            for job in (("greet", '"Ann"'), ("long",), ("fail",)):
                good("queue", "put", f"{mail}put.token", *job)
            worker.err.until("job_dead")
            lines = [json.loads(process.stderr.readline())]
            while lines[-1].get("path") != "/api/queue/mail/renew":
                lines.append(json.loads(process.stderr.readline()))
            (folder / "go").touch()
            worker.out.until("long")
            assert worker.out.all == ["hello Ann", "long"]
            good("doctor", f"{mail}worker.token")

            def settled() -> bool:
                counted = good("queue", "stats", f"{mail}worker.token", "--json").json()
                return (counted["done"], counted["dead"]) == (2, 1)

            wait_until(settled, "all jobs are settled")
            assert worker.stopped() == 0, worker.err.all
        good("worker", "mailers:worker", "--once")  # prunes before it ends
        [dead] = good("queue", "list", f"{mail}put.token", "--state", "dead", "--json").json()
        assert dead["errors"][-1]["error"] == "ValueError: no good"
        lines += lines_of(process)
    asked = [each for each in lines if each["action"] == "request"]
    used = {each["path"].removeprefix("/api/queue/mail") for each in asked}
    assert used >= {"/put", "/claim", "/renew", "/settle", "/prune", "/hint", "/stats", "/jobs"}
    assert {each["status"] for each in asked} <= {101, 200}, asked


def test_a_queue_that_is_not_open_is_refused_with_what_to_do(folder: Path) -> None:
    with served() as (url, _):
        words = ("--name", "w", "--out", "worker.token", "--store", STORE)
        good("serve", "token", "create", "worker", *words)
        (folder / "mailers.py").write_text(MAILERS.format(url=url))
        with Command("worker", "mailers:worker") as worker:
            worker.err.until("the queue 'mail' is open to admins only.*controller.queues")
            assert worker.end() == 2
