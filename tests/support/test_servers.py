"""The real servers that the tests of the queues stand on: they start, break, and recover."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
import redis as redis_client

from tests.support import daemons
from tests.support import servers as module
from tests.support.daemons import HOST, Missing, ServerFailed, free_port, wait_until
from tests.support.servers import OwnPostgres, OwnRedis, PgBouncer, Postgres, Redis, Servers

ROOT = Path(__file__).resolve().parents[2]


def test_the_newest_postgres_answers(postgres: Postgres) -> None:
    ((version,),) = postgres.execute("SHOW server_version")
    assert version == postgres.version
    assert int(version.split(".")[0]) >= 18


def test_the_oldest_postgres_answers(postgres_oldest: Postgres) -> None:
    ((version,),) = postgres_oldest.execute("SHOW server_version")
    assert version.startswith(postgres_oldest.version)


def test_servers_listen_on_loopback_alone(postgres: Postgres, redis: Redis) -> None:
    assert postgres.execute("SHOW listen_addresses") == [(HOST,)]
    assert redis.execute("CONFIG", "GET", "bind") == {"bind": HOST}


def test_a_role_needs_its_password_and_has_no_rights(postgres: Postgres) -> None:
    postgres.create_role("ordinary", "pass/word")
    assert postgres.execute("SELECT current_user", user="ordinary") == [("ordinary",)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        postgres.execute("CREATE SCHEMA of_ordinary", user="ordinary")
    wrong = postgres.dsn(user="ordinary").replace("pass%2Fword", "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_a_database_is_made_again(postgres: Postgres) -> None:
    postgres.create_database("anew")
    postgres.execute("CREATE TABLE t ()", dbname="anew")
    postgres.create_database("anew")
    postgres.execute("CREATE TABLE t ()", dbname="anew")


@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
def test_postgres_keeps_what_was_committed(own_postgres: OwnPostgres, oldest: bool) -> None:
    postgres = own_postgres(oldest=oldest)
    postgres.execute("CREATE TABLE t (n int)")
    for n, end in enumerate((postgres.stop, lambda: postgres.stop("immediate"), postgres.kill)):
        postgres.execute("INSERT INTO t VALUES (%s)", [n])
        with psycopg.connect(postgres.dsn()) as open_session:
            open_session.execute("INSERT INTO t VALUES (-1)")
            end()
            with pytest.raises(psycopg.OperationalError):
                open_session.execute("SELECT 1")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, postgres.port))
        postgres.start()
    assert postgres.execute("SELECT n FROM t ORDER BY n") == [(0,), (1,), (2,)]


def test_a_restart_changes_settings(own_postgres: OwnPostgres) -> None:
    postgres = own_postgres(max_connections=20)
    assert postgres.execute("SHOW max_connections") == [("20",)]
    port = postgres.port
    postgres.restart(max_connections=10, max_wal_senders=0)
    assert postgres.execute("SHOW max_connections") == [("10",)]
    assert postgres.port == port


def test_a_paused_postgres_is_silent_until_it_is_resumed(own_postgres: OwnPostgres) -> None:
    postgres = own_postgres()
    with (
        psycopg.connect(postgres.dsn(), autocommit=True) as session,
        ThreadPoolExecutor(1) as thread,
    ):
        with postgres.paused():
            answer = thread.submit(session.execute, "SELECT 1")
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.1)
            with socket.create_connection((HOST, postgres.port), timeout=5):
                pass  # the kernel accepts it, though nobody will answer
        assert answer.result(timeout=30).fetchone() == (1,)
    assert postgres.execute("SELECT 1") == [(1,)]


def test_an_administrator_ends_sessions(own_postgres: OwnPostgres) -> None:
    postgres = own_postgres()
    with psycopg.connect(postgres.dsn(application_name="some one"), autocommit=True) as session:
        assert postgres.sessions() == ["some one"]
        assert postgres.disconnect_all() == 1
        with pytest.raises(psycopg.errors.AdminShutdown):
            session.execute("SELECT 1")


@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
def test_a_standby_follows_refuses_writes_and_takes_over(
    own_postgres: OwnPostgres, oldest: bool
) -> None:
    postgres = own_postgres(oldest=oldest)
    standby = postgres.standby()
    postgres.execute("CREATE TABLE t AS SELECT 1 AS n")
    standby.catch_up()
    assert standby.execute("SELECT n FROM t") == [(1,)]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        standby.execute("INSERT INTO t VALUES (2)")
    postgres.kill()
    standby.promote()
    standby.execute("INSERT INTO t VALUES (2)")
    assert standby.execute("SELECT count(*) FROM t") == [(2,)]


def test_pgbouncer_shares_connections_between_transactions(pgbouncer: PgBouncer) -> None:
    with (
        psycopg.connect(pgbouncer.dsn(), autocommit=True) as one,
        psycopg.connect(pgbouncer.dsn(), autocommit=True) as other,
    ):
        query = "SELECT pg_backend_pid()"
        assert one.execute(query).fetchall() == other.execute(query).fetchall()


def test_pgbouncer_knows_roles_made_after_it(pgbouncer: PgBouncer) -> None:
    pgbouncer.postgres.create_role("late_role", "late secret")
    with psycopg.connect(pgbouncer.dsn(user="late_role")) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("late_role",)
    wrong = pgbouncer.dsn(user="late_role").replace("late%20secret", "wrong")
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(wrong)


def test_pgbouncer_outlives_its_postgres_and_breaks_alone(own_postgres: OwnPostgres) -> None:
    postgres = own_postgres()
    pgbouncer = postgres.pgbouncer(default_pool_size=1)
    for breaking in (postgres.restart, pgbouncer.restart, pgbouncer.kill):
        breaking()
        if not pgbouncer.running:
            pgbouncer.start()
        with psycopg.connect(pgbouncer.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert pgbouncer.admin("SHOW POOLS")


def test_both_redis_answer(redis: Redis, redis_oldest: Redis) -> None:
    assert redis.version.startswith("9.")
    assert redis_oldest.version.startswith("6.2.")
    for server in (redis, redis_oldest):
        assert server.execute("PING") is True
        with server.client() as client:
            info = client.info("server")
        assert server.version in {info.get("valkey_version"), info["redis_version"]}


@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
def test_redis_keeps_what_it_was_told_to_keep(own_redis: OwnRedis, oldest: bool) -> None:
    server = own_redis(oldest=oldest, appendonly="yes")
    for n, breaking in enumerate((server.restart, server.kill)):
        server.execute("SET", "n", n)
        breaking()
        with pytest.raises(ServerFailed, match="runs already" if server.running else "not run"):
            server.start() if server.running else server.stop()
        if not server.running:
            server.start()
        assert server.execute("GET", "n") == str(n)
    server.restart(appendonly="no")
    assert server.execute("GET", "n") is None


def test_redis_with_a_password(own_redis: OwnRedis) -> None:
    server = own_redis(requirepass="p@ss/word", maxmemory="5mb", maxmemory_policy="allkeys-lru")
    assert server.execute("CONFIG", "GET", "maxmemory-policy") == {
        "maxmemory-policy": "allkeys-lru"
    }
    with redis_client.Redis.from_url(server.url(password="wrong")) as client:
        with pytest.raises(redis_client.AuthenticationError):
            client.ping()


def test_a_paused_redis_is_silent_until_it_is_resumed(own_redis: OwnRedis) -> None:
    server = own_redis()
    with socket.create_connection((HOST, server.port)) as wire:
        with server.paused():
            wire.sendall(b"PING\r\n")
            wire.settimeout(0.1)
            with pytest.raises(TimeoutError):
                wire.recv(1)
        wire.settimeout(30)
        assert wire.recv(64) == b"+PONG\r\n"


def test_a_server_that_does_not_start_says_what_it_logged(servers: Servers) -> None:
    with pytest.raises(ServerFailed, match=r"(?s)ended while it started.*no_such_setting"):
        servers.postgres(no_such_setting=1)
    with pytest.raises(ServerFailed, match=r"(?s)ended while it started.*no-such-setting"):
        servers.redis(no_such_setting=1)


def test_a_port_that_somebody_took_meanwhile_is_given_up(
    servers: Servers, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([redis.port, redis.port, free_port(), free_port()])
    monkeypatch.setattr(daemons, "free_port", lambda: next(ports))
    with closing(servers.redis()) as other:
        assert other.port != redis.port
        assert other.execute("PING") is True


def test_a_server_that_ended_by_itself_starts_again(own_redis: OwnRedis) -> None:
    server = own_redis()
    with server.client() as client, suppress(redis_client.ConnectionError):
        client.shutdown(nosave=True)
    wait_until(lambda: not server.running, "its end")
    server.start()
    assert server.execute("PING") is True


def test_nothing_is_left_when_servers_are_closed(servers: Servers, postgres: Postgres) -> None:
    with Servers(servers.templates) as others:
        postgres, redis = others.postgres(), others.redis()
        standby = postgres.standby()
        redis.pause()
        postgres.kill()
        pids = [redis.pid, *standby.pids()]
    assert not others.folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


CHILD = """
import sys
from pathlib import Path
from tests.support.servers import Servers
servers = Servers({sys.argv[1]: Path(sys.argv[2])})
started = [servers.postgres(), servers.redis()]
print(servers.folder, *[pid for each in started for pid in each.pids()], flush=True)
sys.stdin.read()
"""


def test_servers_end_with_a_process_that_is_killed(servers: Servers, postgres: Postgres) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, postgres.version, servers.templates[postgres.version]],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    folder, *pids = child.stdout.readline().split()
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)

    def all_gone() -> bool:
        return not Path(folder).exists() and not any(Path("/proc", pid).exists() for pid in pids)

    wait_until(all_gone, "the end of the servers of a killed process")


def test_what_debian_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Missing, match="no-such-program is not installed: run scripts/system-deps"):
        module.debian("no-such-program")
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    with pytest.raises(Missing, match="run scripts/system-deps"):
        module.oldest_postgres()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as somebody else")
def test_root_starts_postgres_from_a_private_tree(
    servers: Servers, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = module.newest_postgres()
    monkeypatch.setattr(module, "everyone_reaches", lambda path: path != private)
    with Servers(servers.templates) as others:
        assert others.postgres().execute("SELECT 1") == [(1,)]
