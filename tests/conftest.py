"""How the property tests draw their examples, and the real servers that tests share.

In CI the same tree must give the same result each time, so examples are drawn from the names of the
tests. Elsewhere they are drawn at random, which finds new cases; a case that was found is added to
its test explicitly.

A server starts when the first test asks for it and ends with the session; a test that breaks its
server asks for its own. Servers from Debian may be missing: then their tests are skipped, but never
in CI.

Tests start many processes, so bytecode is cached even if PYTHONDONTWRITEBYTECODE is set, as in many
containers. Otherwise each process would compile all its imports, and take twice as long to start.
`make clean` removes the caches.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.brokers import Nats, OwnNats, OwnRabbitMQ, RabbitMQ
from tests.support.clouds import MiniStack
from tests.support.daemons import Missing
from tests.support.kafka import Kafka
from tests.support.servers import OwnPostgres, OwnRedis, PgBouncer, Postgres, Redis, Servers
from tests.support.traces import Traces

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # until the tests are collected
#: Half of the examples that Hypothesis would draw: each run draws new ones. No time limits, because
#: a busy machine would exceed them.
LAWS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", LAWS)
settings.register_profile("ci", LAWS, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "suite")


def pytest_configure() -> None:
    """Let SIGINT and SIGHUP reach the commands that tests start, however the tests were started.

    A shell ignores SIGINT for `make test &`, and nohup ignores SIGHUP; children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


#: Files that take long come first. Each runs in one process, so a late one would run alone.
LONG = (
    "web/browser/test_pages", "test_docs", "queues/test_conformance", "web/browser/test_actions",
    "queues/objects/test_servers", "queues/http/test_conformance", "cli/test_fleet",
    "cli/test_worker_processes", "controller/http/test_schema", "agent/test_attacks",
    "agent/test_agent", "agent/test_processes", "queues/sqs/test_conformance",
    "worker/test_servers_in_trouble", "worker/test_quiet", "worker/test_doomed",
    "queues/test_waiting", "support/test_servers", "controller/security/test_security",
    "outbox/test_relay_kills", "queues/postgres/test_stress", "controller/test_two_controllers",
    "test_examples", "test_types", "test_packaging",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turns = {Path(__file__).parent / f"{name}.py": turn for turn, name in enumerate(LONG)}
    items.sort(key=lambda item: turns.get(item.path, len(LONG)))


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests, which live until the end, from garbage collection.

    They are a million objects, and each full collection would examine all of them.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo the logging settings of a test or a command when the test ends."""
    loggers = logging.getLogger("pollwise"), logging.getLogger()
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers[:], each.propagate = handlers, propagate
        if each.level != level:
            each.setLevel(level)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres(servers: Servers) -> Postgres:
    """The newest Postgres, shared: do not stop it, and do not change data of other tests."""
    return servers.postgres()


@pytest.fixture(scope="session")
def postgres_oldest(servers: Servers) -> Postgres:
    """The oldest Postgres that is supported, shared."""
    return servers.postgres(oldest=True)


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> PgBouncer:
    """PgBouncer in transaction mode in front of `postgres`, shared."""
    return postgres.pgbouncer()


@pytest.fixture(scope="session")
def redis(servers: Servers) -> Redis:
    """The newest Valkey, shared."""
    return servers.redis()


@pytest.fixture(scope="session")
def redis_oldest(servers: Servers) -> Redis:
    """The oldest Redis that is supported, shared."""
    return servers.redis(oldest=True)


@pytest.fixture(scope="session")
def ministack(servers: Servers) -> MiniStack:
    """A server that speaks S3 and SQS, shared: each test has a prefix or a queue of its own."""
    return servers.ministack()


@pytest.fixture(scope="session")
def fast_ministack(servers: Servers) -> MiniStack:
    """The same, for the clock of `tests.support.fast`."""
    return servers.ministack(fast=True)


@pytest.fixture(scope="session")
def rabbitmq(servers: Servers) -> RabbitMQ:
    """RabbitMQ, shared: each test has exchanges and queues of its own."""
    return servers.begin(RabbitMQ(servers), {})


@pytest.fixture(scope="session")
def nats(servers: Servers) -> Nats:
    """NATS with JetStream, shared: each test has a stream of its own."""
    return servers.begin(Nats(servers), {})


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """A mock cluster of Kafka, shared: each test has a topic of its own."""
    with Kafka() as kafka:
        yield kafka


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """The program has configured a tracer provider, and these are its spans."""
    traces = Traces()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", traces.provider)
    yield traces
    traces.provider.shutdown()


@pytest.fixture
def own_postgres(servers: Servers) -> Iterator[OwnPostgres]:
    """`own_postgres(oldest=False, **settings)` starts one that the test may break."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(closing(servers.postgres(**given)))
    from tests.queues.benches import migrated

    migrated.cache_clear()  # another server may get the port of this one


@pytest.fixture
def own_redis(servers: Servers) -> Iterator[OwnRedis]:
    """`own_redis(oldest=False, **settings)` starts one that the test may break."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(closing(servers.redis(**given)))


@pytest.fixture
def own_rabbitmq(servers: Servers) -> Iterator[OwnRabbitMQ]:
    """`own_rabbitmq(**settings)` starts one that the test may break."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(closing(servers.begin(RabbitMQ(servers), given)))


@pytest.fixture
def own_nats(servers: Servers) -> Iterator[OwnNats]:
    """`own_nats(**settings)` starts one that the test may break."""
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(closing(servers.begin(Nats(servers), given)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    yield from skipped_if_missing()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    yield from skipped_if_missing()


def skipped_if_missing() -> Generator[None, None, None]:
    try:
        yield
    except Missing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    """A shared database that has the tables of queues."""
    from tests.queues.benches import migrated

    return migrated(postgres.dsn())


@pytest.fixture
def name() -> str:
    """A queue name that no other test uses."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(params=["sqlite", "postgres", "redis", "folder"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> str:
    """A queue of the test's own on each kind of store that processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db?queue={name}&synchronous=off"
    if request.param == "folder":
        (tmp_path / "bucket").mkdir()
        return f"file://{tmp_path}/bucket?queue={name}"
    server = request.getfixturevalue(request.param)
    where = server.url() if request.param == "redis" else server.create_database(name)
    return f"{where}?queue={name}"
