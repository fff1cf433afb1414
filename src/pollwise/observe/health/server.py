"""The thread that serves `/livez` and `/readyz` over HTTP, and sends messages to systemd.

One thread does both, so that a blocked event loop can still be reported. It sleeps until somebody
asks, or until systemd wants the next sign of life. The server is for probes on a private port: it
answers GET and HEAD, reads only a small request, and keeps no connection open.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from contextlib import suppress

from pollwise.errors import ConfigError
from pollwise.observe.health.process import KnownHealth
from pollwise.observe.health.systemd import Notifier

#: The largest request that is read, in bytes; how long a client may take to send it and to read the
#: answer, in seconds; and how many are answered at a time. Others are turned away.
REQUEST_MAX = 4096
REQUEST_WITHIN = 5.0
REQUESTS_MAX = 16
#: The largest message between a supervisor and its processes, in bytes.
QUESTION_MAX = 65536
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

Answer = tuple[int, dict[str, object]]


class HealthServer:
    """Serves the health of this process; closed by `close`.

    port: of the HTTP server; 0 takes any free port, None serves none.
    notifier: to systemd.
    supervisor: a socket to the supervisor of this process, which asks for its health and gets each
        change.
    """

    def __init__(
        self,
        health: KnownHealth,
        port: int | None = None,
        host: str = "127.0.0.1",
        notifier: Notifier | None = None,
        supervisor: socket.socket | None = None,
    ) -> None:
        self._health = health
        self._notifier = notifier
        self._supervisor = supervisor
        self._listener = None if port is None else _listening(host, port)
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)
        self._woken, self._waker = socket.socketpair()
        #: Where it serves; "" if it does not.
        self.url: str = ""
        if self._listener is not None:
            name = f"[{host}]" if ":" in host else host
            self.url = f"http://{name}:{self._listener.getsockname()[1]}"
        if notifier is not None:
            health.when_changed(notifier.changed)
        if supervisor is not None:
            supervisor.setblocking(False)
            health.when_changed(self._changed)
            self._changed()
        self._thread = threading.Thread(target=self._serve, name="pollwise-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.close()  # which ends the thread
        self._thread.join()
        if self._listener is not None:
            self._listener.close()
        if self._notifier is not None:
            self._notifier.close()
        if self._supervisor is not None:
            self._supervisor.close()
        self._woken.close()

    def _serve(self) -> None:
        every = None if self._notifier is None else self._notifier.every
        next_sign = time.monotonic()
        known = (self._woken, self._listener, self._supervisor)
        waiting = [each for each in known if each is not None]
        while True:
            left = None if every is None else max(next_sign - time.monotonic(), 0.0)
            readable, _, _ = select.select(waiting, [], [], left)
            if self._woken in readable:
                return
            if self._supervisor in readable:
                self._answer_supervisor()
            if self._listener in readable:
                self._accept()
            if every is not None and time.monotonic() >= next_sign:
                next_sign = time.monotonic() + every
                self._sign()

    def _sign(self) -> None:
        if self._notifier is not None and self._health.blocked() is None:
            self._notifier.alive()

    def _changed(self, _: object = None) -> None:
        self._say(reasons=self._health.reasons())

    def _answer_supervisor(self) -> None:
        if self._supervisor is not None:
            with suppress(OSError):
                self._supervisor.recv(QUESTION_MAX)
                self._say(blocked=self._health.blocked(), reasons=self._health.reasons())

    def _say(self, **values: object) -> None:
        if self._supervisor is not None:
            with suppress(OSError):  # the supervisor is gone, or does not read
                self._supervisor.send(json.dumps(values).encode())

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            client, _ = self._listener.accept()
        except OSError:  # it is gone again, or there are no file descriptors left
            return
        if not self._places.acquire(blocking=False):
            client.close()
            return
        # As many threads as there are places, and each ends soon.
        threading.Thread(target=self._answer, args=[client], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        try:
            with client, suppress(OSError):
                client.sendall(self._response(_read(client)))
                client.shutdown(socket.SHUT_WR)
        finally:
            self._places.release()

    def _response(self, head: bytes) -> bytes:
        line = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return _rendered((400, {"error": "this is not a request of HTTP/1.1"}))
        method, path = line[0], line[1].partition("?")[0]
        asked = {"/livez": self.livez, "/readyz": self.readyz}.get(path)
        if asked is None:
            return _rendered((404, {"error": "here are /livez and /readyz"}), method)
        if method not in ("GET", "HEAD"):
            return _rendered((405, {"error": "only GET and HEAD are answered"}), method)
        return _rendered(asked(), method)

    def livez(self) -> Answer:
        """200 unless the event loop is blocked for too long."""
        reason = self._health.not_live()
        return _answer_of("blocked", [] if reason is None else [reason])

    def readyz(self) -> Answer:
        """200 while it can work; else 503 with the reasons why it cannot."""
        return _answer_of("not ready", self._health.not_ready())


def _answer_of(otherwise: str, reasons: list[str]) -> Answer:
    if not reasons:
        return 200, {"status": "ok"}
    return 503, {"status": otherwise, "reasons": reasons}


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"health cannot be served on {host}:{port}: {error.strerror or error}; choose another "
            "health_port (--health-port) or health_host"
        ) from None
    listener.setblocking(False)
    return listener


def _read(client: socket.socket) -> bytes:
    """The head of a request, or what came of it in time."""
    until = time.monotonic() + REQUEST_WITHIN
    head = b""
    while b"\r\n\r\n" not in head and len(head) < REQUEST_MAX:
        left = until - time.monotonic()
        if left <= 0:
            return b""
        client.settimeout(left)
        piece = client.recv(REQUEST_MAX - len(head))
        if not piece:
            return b""
        head += piece
    client.settimeout(max(until - time.monotonic(), 0.1))
    return head if b"\r\n\r\n" in head else b""


def _rendered(answer: Answer, method: str = "GET") -> bytes:
    code, values = answer
    body = json.dumps(values, ensure_ascii=False).encode()
    lines = [
        f"HTTP/1.1 {code} {_PHRASES[code]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        *(["Allow: GET, HEAD"] if code == 405 else []),
        "Connection: close",
    ]
    head = "\r\n".join([*lines, "", ""]).encode()
    return head if method == "HEAD" else head + body
