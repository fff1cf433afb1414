"""The proxy that breaks connections: each fault is what it says, and nothing else."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest

from tests.support.daemons import HOST, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import OwnRedis, Postgres


class Upper(socketserver.ThreadingTCPServer):
    """Answers each line in capitals, and remembers what it was asked."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), UpperHandler)
        self.heard: list[bytes] = []


class UpperHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        try:
            for line in self.rfile:
                cast(Upper, self.server).heard.append(line)
                self.wfile.write(line.upper())
        except ConnectionError:
            pass


@pytest.fixture
def upper() -> Iterator[Upper]:
    with Upper() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upper: Upper) -> Iterator[Proxy]:
    with Proxy(upper.server_address[1]) as proxy:
        yield proxy


class Wire:
    """A client that sends lines and waits for what comes back."""

    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection((HOST, proxy.port), timeout=30)

    def ask(self, line: bytes) -> bytes:
        self.socket.sendall(line)
        return self.read(len(line))

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer if the connection ends before."""
        got = b""
        while len(got) < size and (more := self.socket.recv(size - len(got))):
            got += more
        return got

    def is_silent(self) -> bool:
        self.socket.settimeout(0.05)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(30)
        return False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()


def test_it_passes_and_counts(proxy: Proxy) -> None:
    with Wire(proxy) as one, Wire(proxy) as other:
        assert one.ask(b"one\n") == b"ONE\n"
        assert other.ask(b"other\n") == b"OTHER\n"
        assert one.ask(b"x" * 300_000 + b"\n") == b"X" * 300_000 + b"\n"
        assert proxy.connections == 2
    wait_until(lambda: proxy.connections == 0, "the end of both")
    counts = proxy.counts
    assert (counts.accepted, counts.requests, counts.answers) == (2, 300_011, 300_011)
    assert counts.exchanges >= 3


def test_it_cuts_and_accepts_again(proxy: Proxy) -> None:
    with Wire(proxy) as one, Wire(proxy) as other:
        one.ask(b"a\n")
        other.ask(b"b\n")
        assert proxy.cut() == 2
        assert one.read(1) == other.read(1) == b""
        assert proxy.connections == 0
    with Wire(proxy) as one:
        assert one.ask(b"c\n") == b"C\n"


def test_it_resets(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        one.ask(b"a\n")
        proxy.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            one.read(1)


def test_it_cuts_after_so_many_bytes(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        proxy.cut_after(5)
        assert one.ask(b"abc\n") == b"ABC\n"
        assert one.ask(b"def\n") == b"D"
    with Wire(proxy) as one:
        assert one.ask(b"ghi\n") == b"GHI\n"


def test_an_answer_is_lost_after_the_work_was_done(proxy: Proxy, upper: Upper) -> None:
    with Wire(proxy) as one:
        assert one.ask(b"settle 1\n") == b"SETTLE 1\n"
        proxy.lose_answer(to=b"settle")
        assert one.ask(b"claim 2\n") == b"CLAIM 2\n"
        assert one.ask(b"settle 3\n") == b""
    assert upper.heard == [b"settle 1\n", b"claim 2\n", b"settle 3\n"]
    proxy.await_lost()
    with Wire(proxy) as one:
        assert one.ask(b"settle 4\n") == b"SETTLE 4\n"


def test_the_text_of_a_request_may_arrive_in_pieces(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        proxy.lose_answer(to=b"settle")
        one.socket.sendall(b"set")
        wait_until(lambda: proxy.counts.requests == 3, "the first piece")
        assert one.ask(b"tle\n") == b""


def test_two_answers_are_lost_one_after_the_other(proxy: Proxy) -> None:
    proxy.lose_answer()
    proxy.lose_answer(fate="reset")
    with Wire(proxy) as one:
        assert one.ask(b"a\n") == b""
    with Wire(proxy) as one, pytest.raises(ConnectionResetError):
        one.ask(b"b\n")
    proxy.await_lost(2)
    with Wire(proxy) as one:
        assert one.ask(b"c\n") == b"C\n"


def test_an_answer_is_lost_and_the_connection_stays(proxy: Proxy, upper: Upper) -> None:
    with Wire(proxy) as one, Wire(proxy) as other:
        proxy.lose_answer(fate="silence")
        one.socket.sendall(b"a\n")
        proxy.await_lost()
        one.socket.sendall(b"b\n")
        wait_until(lambda: len(upper.heard) == 2, "the second request")
        assert one.is_silent()
        assert other.ask(b"c\n") == b"C\n"


def test_a_request_is_lost_before_anybody_saw_it(proxy: Proxy, upper: Upper) -> None:
    with Wire(proxy) as one:
        proxy.lose_request(b"settle")
        assert one.ask(b"claim\n") == b"CLAIM\n"
        assert one.ask(b"settle\n") == b""
    assert upper.heard == [b"claim\n"]


def test_it_refuses_new_connections_alone(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        one.ask(b"a\n")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            Wire(proxy)
        assert one.ask(b"b\n") == b"B\n"
        proxy.accept()
        with Wire(proxy) as other:
            assert other.ask(b"c\n") == b"C\n"


def test_held_connections_are_silent_and_nothing_is_lost(proxy: Proxy, upper: Upper) -> None:
    with Wire(proxy) as one:
        one.ask(b"a\n")
        proxy.hold()
        with Wire(proxy) as other:
            for wire, line in ((one, b"b\n"), (other, b"c\n")):
                wire.socket.sendall(line)
                assert wire.is_silent()
            assert upper.heard == [b"a\n"]
            proxy.release()
            assert one.read(2) == b"B\n"
            assert other.read(2) == b"C\n"


def test_answers_alone_may_be_held(proxy: Proxy, upper: Upper) -> None:
    with Wire(proxy) as one:
        proxy.hold(only="answers")
        one.socket.sendall(b"a\n")
        wait_until(lambda: upper.heard == [b"a\n"], "the request")
        assert one.is_silent()
        proxy.release()
        assert one.read(2) == b"A\n"


def test_the_end_of_a_held_server_is_not_told(own_redis: OwnRedis) -> None:
    server = own_redis()
    with Proxy(server.port) as proxy, Wire(proxy) as one:
        assert one.ask(b"PING\r\n") == b"+PONG\r"
        assert one.read(1) == b"\n"
        proxy.hold()
        server.kill()
        assert one.is_silent()
        proxy.release()
        assert one.read(1) == b""


def test_all_is_delayed(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        one.ask(b"a\n")
        proxy.delay(0.05)
        begun = time.monotonic()
        assert one.ask(b"b\n") == b"B\n"
        assert time.monotonic() - begun >= 0.1


def test_answers_drip(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        one.ask(b"a\n")
        proxy.drip(2, every=0.02)
        begun = time.monotonic()
        assert one.ask(b"1234567\n") == b"1234567\n"
        assert time.monotonic() - begun >= 0.06


def test_restored_it_forgets_its_faults(proxy: Proxy) -> None:
    with Wire(proxy) as one:
        one.ask(b"a\n")
        proxy.hold()
        proxy.delay(30)
        proxy.drip(every=30)
        proxy.cut_after(1)
        proxy.lose_answer()
        proxy.lose_request()
        proxy.refuse()
        proxy.restore()
        assert one.ask(b"b\n") == b"B\n"
    with Wire(proxy) as one:
        assert one.ask(b"c\n") == b"C\n"


def test_nobody_behind_it_ends_the_connection() -> None:
    with Proxy(1) as proxy, Wire(proxy) as one:
        assert one.read(1) == b""


def test_postgres_loses_the_answer_to_a_commit(postgres: Postgres) -> None:
    postgres.create_database("proxied")
    postgres.execute("CREATE TABLE t (n int)", dbname="proxied")
    with Proxy(postgres.port) as proxy:
        proxy.lose_answer(to=b"INSERT")
        with psycopg.connect(proxy.through(postgres.dsn("proxied")), autocommit=True) as session:
            exchanges = proxy.counts.exchanges
            session.execute("SELECT %s::int", [1])
            assert proxy.counts.exchanges == exchanges + 1
            with pytest.raises(psycopg.OperationalError):
                session.execute("INSERT INTO t VALUES (%s)", [1])
    assert postgres.execute("SELECT n FROM t", dbname="proxied") == [(1,)]
