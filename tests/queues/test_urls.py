from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.errors import ConfigError, MissingExtra
from pollwise.queues.base import MAX_PAYLOAD_BYTES
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import VirtualClock


def test_memory() -> None:
    queue = open_queue("memory://")
    assert isinstance(queue, MemoryQueue)
    assert (queue.name, queue.keep) == ("default", None)
    assert queue.max_payload_bytes == MAX_PAYLOAD_BYTES


def test_http_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("queue", "client"):
        monkeypatch.delitem(sys.modules, f"pollwise.queues.http.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'pollwise\[http\]'"):
        open_queue("http://controller/")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///data/jobs.db", "data/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("SQLite:///Jobs.DB", "Jobs.DB"),
        ("sqlite:///my%20jobs%3F.db", "my jobs?.db"),
    ],
)
def test_sqlite_paths(url: str, path: str) -> None:
    queue = open_queue(url)
    assert isinstance(queue, SqliteQueue)
    assert queue.path == Path(path)
    assert not queue.path.exists(), "opening touches nothing"


def test_options() -> None:
    queue = open_queue(
        "sqlite:///jobs.db?queue=mail&keep=7d&max_payload_bytes=65536&synchronous=off&watch=50ms"
    )
    assert isinstance(queue, SqliteQueue)
    assert (queue.name, queue.keep, queue.max_payload_bytes) == ("mail", 7 * 86400, 65536)
    assert (queue._store._synchronous, queue._watch) == ("off", 0.05)
    memory = open_queue("memory://?queue=mail&keep=10s")
    assert (memory.name, memory.keep) == ("mail", 10)


def test_the_clock_is_passed_on() -> None:
    clock = VirtualClock()
    assert open_queue("memory://", clock=clock).clock is clock
    assert open_queue("sqlite:///jobs.db", clock=clock).clock is clock


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is not a queue URL"),
        ("jobs.db", "sqlite:///jobs.db"),
        ("sqlite:/jobs.db", "is not a queue URL"),
        (None, "is not a queue URL"),
        ("sqlite://[", "is not a queue URL"),
        ("kafka://broker", "no queue has the scheme 'kafka'; known: memory, sqlite"),
        ("postgresql+psycopg://db/shop", "names no driver: write postgresql:// instead of"),
        ("db+sqlite:///jobs.db", "write sqlite:// instead of db+sqlite://"),
        ("sqlite://", "does not name a file"),
        ("sqlite:///", "does not name a file"),
        ("sqlite://jobs.db", "sqlite:///relative.db"),
        ("sqlite://host/jobs.db", "does not name a file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///a%00b", "does not name a file"),
        ("sqlite:///jobs.db#1", "write it as %23"),
        ("memory://mail", "memory://?queue=name"),
        ("memory:///mail", "memory://?queue=name"),
        ("memory://?que=mail", "did you mean 'queue'?"),
        ("memory://?synchronous=off", "do not take 'synchronous'"),
        ("sqlite:///jobs.db?timeout=5", "known: queue, keep, max_payload_bytes, synchronous"),
        ("sqlite:///jobs.db?queue=a&queue=b", "queue is given twice: 'a' and 'b'"),
        ("sqlite:///jobs.db?queue=", "queue = ''"),
        ("sqlite:///jobs.db?queue=a%0Ab", "printable"),
        ("sqlite:///jobs.db?keep=soon", "keep = 'soon' is not a duration"),
        ("sqlite:///jobs.db?keep=0", "keep = '0' must be above 0"),
        ("sqlite:///jobs.db?watch=-1s", "watch = '-1s' must be 0 or more"),
        ("sqlite:///jobs.db?synchronous=fast", "not one of full, normal, off"),
        ("sqlite:///jobs.db?max_payload_bytes=1MB", "max_payload_bytes = '1MB'"),
        ("sqlite:///jobs.db?max_payload_bytes=0", "at least 1"),
    ],
)
def test_bad_urls_are_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_queue(url)
    assert says in str(caught.value)


names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30)


@given(name=names, path=names)
@example(name="0", path="/")
@example(name="0", path="..")
def test_a_queue_can_be_opened_again_by_its_url(name: str, path: str) -> None:
    if Path(path).name in ("", ".."):
        with pytest.raises(ConfigError, match="is not a file name"):
            SqliteQueue(path, name)
    elif path != ":memory:":
        queue = SqliteQueue(path, name)
        again = open_queue(queue.url)
        assert isinstance(again, SqliteQueue)
        assert (again.name, again.path, again.url) == (name, queue.path, queue.url)
    memory = MemoryQueue(name)
    assert (open_queue(memory.url).name, open_queue(memory.url).url) == (name, memory.url)


def test_what_is_no_url_is_answered_with_one_of_each_kind() -> None:
    with pytest.raises(ConfigError) as caught:
        open_queue("jobs.db")
    for url in ("sqlite:///jobs.db", "postgresql://", "redis://", "memory://"):
        assert url in str(caught.value)
