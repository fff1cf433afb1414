"""`/livez` and `/readyz` over HTTP, and messages to systemd over a real socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pollwise.errors import ConfigError
from pollwise.observe.health import server as module
from pollwise.observe.health.process import Blocked, KnownHealth
from pollwise.observe.health.server import REQUEST_MAX, HealthServer
from pollwise.observe.health.systemd import STATUS_MAX, Notifier
from tests.support.daemons import wait_until

PATIENCE = 60.0


class Told(KnownHealth):
    """A health that the test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.why: list[str] = []
        self.loop: Blocked | None = None

    def blocked(self) -> Blocked | None:
        return self.loop

    def _reasons(self) -> list[str]:
        return self.why

    def change(self, *why: str) -> None:
        self.why = list(why)
        self._report()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def server(told: Told) -> Iterator[HealthServer]:
    server = HealthServer(told, 0)
    yield server
    server.close()


def port_of(server: HealthServer) -> int:
    return int(server.url.rpartition(":")[2])


def asked(server: HealthServer, path: str, method: str = "GET") -> tuple[int, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=PATIENCE)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body) if body else None


def said(server: HealthServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port_of(server)), PATIENCE) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer


def test_ok_or_why_not(server: HealthServer, told: Told) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert asked(server, "/livez") == asked(server, "/readyz") == (200, {"status": "ok"})
    told.why = ["no store", "no “place”"]
    assert asked(server, "/livez") == (200, {"status": "ok"})
    assert asked(server, "/readyz") == (503, {"status": "not ready", "reasons": told.why})
    told.loop = Blocked(61.0, "job 7")
    blocked = "the event loop has been blocked for 61 s by job 7"
    assert asked(server, "/livez") == (503, {"status": "blocked", "reasons": [blocked]})
    assert asked(server, "/readyz")[1] == {"status": "not ready", "reasons": [blocked, *told.why]}
    told.stop()
    assert asked(server, "/readyz?x=1") == (503, {"status": "not ready", "reasons": ["stopping"]})


def test_other_requests(server: HealthServer) -> None:
    assert asked(server, "/livez", "HEAD") == (200, None)
    assert asked(server, "/readyz", "POST")[0] == 405
    for path in ("/", "/healthz", "/livez/", "/../livez", "/metrics"):
        assert asked(server, path)[0] == 404
    for request in (
        b"nonsense\r\n\r\n",
        b"\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"\xff\x00 / x\r\n\r\n",
    ):
        assert said(server, request).startswith(b"HTTP/1.1 400 ")


def test_a_large_request_is_not_read(server: HealthServer) -> None:
    answer = b""
    with suppress(ConnectionError):  # reset, while most of it is unread
        answer = said(server, b"GET /livez HTTP/1.1\r\nX: " + b"a" * 64 * REQUEST_MAX)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert asked(server, "/livez")[0] == 200


@pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\nX: "])
def test_slow_clients_are_dropped(
    begun: bytes, server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_WITHIN", 0.1)
    assert said(server, begun) == b"", "closed without an answer"


def test_only_some_are_answered_at_a_time(server: HealthServer) -> None:
    idle = [
        socket.create_connection(("127.0.0.1", port_of(server)), PATIENCE)
        for _ in range(module.REQUESTS_MAX)
    ]
    wait_until(lambda: server._places._value == 0, "all places to be taken")
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        asked(server, "/livez")
    for each in idle:
        each.close()
    wait_until(lambda: server._places._value == module.REQUESTS_MAX, "free places")
    assert asked(server, "/livez")[0] == 200


def test_a_port_that_is_taken(server: HealthServer, told: Told) -> None:
    with pytest.raises(ConfigError, match=r"health cannot be served on 127\.0\.0\.1:\d+: .*in use"):
        HealthServer(told, port_of(server))


def test_closing_ends_its_thread(told: Told) -> None:
    server = HealthServer(told, 0)
    server.close()
    assert not any(each.name == "pollwise-health" for each in threading.enumerate())
    with pytest.raises(ConnectionError):
        asked(server, "/livez")


class Systemd:
    """What systemd is for a service: a socket that it reads."""

    def __init__(self, address: str | bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(PATIENCE)

    def heard(self) -> list[str]:
        return self._socket.recv(65536).decode().splitlines()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    systemd = Systemd(str(tmp_path / "notify"))
    yield systemd
    systemd.close()


def test_systemd_hears_each_change(systemd: Systemd, told: Told, tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/bin"}
    notifier = Notifier.from_environment(environ)
    assert environ == {"PATH": "/bin"}, "programs that handlers start do not speak for us"
    assert notifier is not None
    assert notifier.every is None
    server = HealthServer(told, None, notifier=notifier)
    assert server.url == ""
    told.change("not polled yet")
    assert systemd.heard() == ["STATUS=not ready: not polled yet"]
    told.change()
    assert systemd.heard() == ["READY=1", "STATUS=polling"]
    told.change("a\nREADY=0", "b" * 1000)
    (status,) = systemd.heard()
    assert status.startswith("STATUS=not ready: a READY=0; bbb")
    assert len(status) == len("STATUS=") + STATUS_MAX
    told.change()
    assert systemd.heard() == ["STATUS=polling"]
    told.stop()
    assert systemd.heard() == ["STOPPING=1", "STATUS=stopping"]
    server.close()


def test_signs_of_life_only_while_the_loop_lives(
    systemd: Systemd, told: Told, tmp_path: Path
) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000"}
    notifier = Notifier.from_environment({**environ, "WATCHDOG_PID": str(os.getpid())})
    assert notifier is not None
    assert notifier.every == 0.01
    questions = threading.Semaphore(0)

    def blocked() -> Blocked | None:
        questions.release()
        return told.loop

    told.blocked = blocked  # type: ignore[method-assign]
    server = HealthServer(told, None, notifier=notifier)
    assert systemd.heard() == systemd.heard() == ["WATCHDOG=1"]
    told.loop = Blocked(1.0)
    questions.acquire(timeout=PATIENCE)
    while questions.acquire(blocking=False):
        pass
    for _ in range(3):  # asked three more times
        assert questions.acquire(timeout=PATIENCE)
    systemd._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        for _ in range(100):
            systemd.heard()
    for _ in range(3):
        assert questions.acquire(timeout=PATIENCE)
    with pytest.raises(BlockingIOError):
        systemd.heard()
    server.close()


def test_an_abstract_socket(told: Told) -> None:
    name = f"pollwise-{os.getpid()}"
    systemd = Systemd(f"\0{name}".encode())
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": f"@{name}"})
    assert notifier is not None
    notifier.alive()
    assert systemd.heard() == ["WATCHDOG=1"]
    systemd.close()
    notifier.alive()  # nobody listens any more, and nothing happens
    notifier.close()


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234"])
def test_without_systemd(address: str | None) -> None:
    environ = {"WATCHDOG_USEC": "1000000"} | ({} if address is None else {"NOTIFY_SOCKET": address})
    assert Notifier.from_environment(environ) is None


@pytest.mark.parametrize(
    "environ", [{"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_PID": "1"}]
)
def test_a_watchdog_of_another_process(environ: dict[str, str]) -> None:
    given = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1000000", **environ}
    notifier = Notifier.from_environment(given)
    assert notifier is not None
    assert notifier.every is None
    notifier.close()
