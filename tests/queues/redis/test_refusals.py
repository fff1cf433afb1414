"""What the queue in Redis refuses, and how it words that: plainly, and never with a password."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from redis import exceptions as trouble

import pollwise
from pollwise.errors import (
    ConfigError,
    PayloadError,
    PollwiseError,
    SchemaError,
    StoreError,
    StoreUnavailable,
)
from pollwise.queues.base import Queue
from pollwise.queues.redis import store as redis_store
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.storage.redis.connections import RedisAddress, explained
from tests.queues.redis.kit import within
from tests.support.servers import OwnRedis, Redis

SECRET = "s3cret%2F"


def refusal(url: str, **options: Any) -> PollwiseError:
    """What the first call raises; it never shows the password."""

    async def main() -> None:
        async with RedisQueue(url, timeout="5s", **options) as queue:
            await queue.put(NewJob("job"))

    with pytest.raises(PollwiseError) as raised:
        asyncio.run(main())
    assert "s3cret" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost", "begins with one of redis://"),
        ("localhost:6379", "begins with one of redis://"),
        ("redis://:s3cret@localhost:port/0", "cannot be read"),
        ("redis://:s3cret@localhost/jobs", "'jobs' is not a Redis database"),
        ("redis://:s3cret@localhost/-1", "'-1' is not a Redis database"),
        ("redis://localhost/0?db=1", "takes no '?'"),
        ("unix://", "does not name a socket"),
    ],
)
def test_urls_that_are_wrong(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RedisQueue(url)
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["", "a{b", "}", "a\0b", "x" * 201])
def test_prefixes_that_are_wrong(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        RedisQueue("redis://localhost", prefix=prefix)


def test_the_url_shows_no_credentials() -> None:
    queue = RedisQueue(f"rediss://me:{SECRET}@[::1]:7000/3", "a b&c", prefix="x:y")
    assert queue.url == "rediss://[::1]:7000/3?queue=a%20b%26c&prefix=x%3Ay"
    assert RedisQueue("unix:///run/redis.sock").url == "unix:///run/redis.sock?queue=default"


def test_open_by_url(redis: Redis, name: str) -> None:
    async def main() -> None:
        url = f"{redis.url(2)}?queue={name}&prefix=mine&keep=1d&timeout=5s&allow_eviction=true"
        async with pollwise.open(url) as queue:
            assert isinstance(queue, RedisQueue)
            await queue.put(NewJob("job"))
            assert (await queue.stats()).ready == 1
            assert queue.url == f"redis://127.0.0.1:{redis.port}/2?queue={name}&prefix=mine"

    asyncio.run(main())


def test_nobody_there() -> None:
    error = refusal("redis://:s3cret@127.0.0.1:1/0")
    assert isinstance(error, StoreUnavailable)
    assert "127.0.0.1:1/0 cannot be reached" in str(error)


def test_passwords(own_redis: OwnRedis) -> None:
    server = own_redis(requirepass="s3cret/")
    within(server.url(), "default", lambda queue: queue.stats())
    for url in (server.url(password="s3cret-not"), server.url(password="s3cret", user="nobody")):
        error = refusal(url)
        assert error.permanent, error  # type: ignore[attr-defined]
        assert "Correct the user and the password" in str(error)
    error = refusal(f"redis://127.0.0.1:{server.port}/0")
    assert type(error) is StoreError
    assert "needs a password" in str(error)


def test_a_password_where_none_is_wanted(redis: Redis) -> None:
    error = refusal(redis.url(password="s3cret"))
    assert type(error) is StoreError, error


def test_a_database_that_does_not_exist(redis: Redis) -> None:
    error = refusal(redis.url(99))
    assert type(error) is StoreError
    assert "Correct the database's number" in str(error)


def test_a_user_without_rights(own_redis: OwnRedis, name: str) -> None:
    server = own_redis()
    server.execute(
        "ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "&*", "+@read", "+@connection"
    )
    error = refusal(server.url(user="reader", password="s3cret"))
    assert type(error) is StoreError
    assert str(error).endswith("+@all -@dangerous +info ~{pollwise:* &{pollwise:*")
    error = refusal(server.url(user="reader", password="s3cret"), prefix="shop")
    assert str(error).endswith("+@all -@dangerous +info ~{shop:* &{shop:*")
    # What the message advises is enough.
    rights = ("on", ">s3cret", "~{pollwise:*", "&{pollwise:*", "+@all", "-@dangerous", "+info")
    server.execute("ACL", "SETUSER", "worker", *rights)
    url = server.url(user="worker", password="s3cret")

    async def work(queue: Queue) -> None:
        await queue.put(NewJob("job", key="k", unique="u"))
        claims = await queue.claim("w", 1, 60)
        await queue.settle([Settlement.done(claim) for claim in claims])

    within(url, name, work)


def test_a_server_without_tls_where_tls_is_spoken(redis: Redis) -> None:
    async def main() -> None:
        url = redis.url().replace("redis://", "rediss://")
        async with RedisQueue(url, timeout="300ms") as queue:
            with pytest.raises(StoreUnavailable, match="The server may not use TLS there"):
                await queue.stats()

    asyncio.run(main())


@pytest.mark.parametrize("oldest", [False, True])
def test_a_full_server_is_reported_without_the_line_of_a_script(
    own_redis: OwnRedis, oldest: bool
) -> None:
    server = own_redis(oldest=oldest)
    within(server.url(), "default", lambda queue: queue.put(NewJob("job")))
    server.execute("CONFIG", "SET", "maxmemory", "1")
    error = refusal(server.url())
    assert type(error) is StoreUnavailable
    assert str(error).endswith(
        "OOM command not allowed when used memory > 'maxmemory'. The server's memory is full; "
        "raise maxmemory or work off the queue."
    ) or str(error).endswith(
        "/0: command not allowed when used memory > 'maxmemory'. The server's memory is full; "
        "raise maxmemory or work off the queue."
    )


def test_a_failed_listening_connection_says_why(name: str) -> None:
    async def main() -> None:
        async with RedisQueue("redis://:s3cret@127.0.0.1:1/0", name) as queue:
            with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
                await queue._channel._transport.listen(lambda _: None, lambda: None)
        advice = getattr(caught.value, "advice", None)
        assert advice == "The listening connection could not be opened; see the reason."

    asyncio.run(main())


def test_hints_that_may_not_be_published_cost_no_job(own_redis: OwnRedis, name: str) -> None:
    server = own_redis()
    rights = ("on", ">s3cret", "~*", "resetchannels", "+@all")
    server.execute("ACL", "SETUSER", "mute", *rights)
    url = server.url(user="mute", password="s3cret")
    within(url, name, lambda queue: queue.put([NewJob("job"), NewJob("job")]))
    assert within(url, name, lambda queue: queue.stats()).ready == 2


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_throws_jobs_away(own_redis: OwnRedis, policy: str) -> None:
    server = own_redis(maxmemory="100mb", maxmemory_policy=policy)
    error = refusal(server.url())
    assert type(error) is StoreError
    assert policy in str(error)
    assert "allow_eviction=true" in str(error)

    async def accept() -> None:
        async with RedisQueue(server.url(), allow_eviction=True) as queue:
            await queue.put(NewJob("job"))

    asyncio.run(accept())


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_server_that_throws_away_only_what_has_an_end(own_redis: OwnRedis, policy: str) -> None:
    server = own_redis(maxmemory="100mb", maxmemory_policy=policy)
    within(server.url(), "default", lambda queue: queue.put(NewJob("job")))
    with server.client() as client:
        mortal = [key for key in client.scan_iter() if client.ttl(key) >= 0]
    assert all(":answer:" in key for key in mortal), f"these would be thrown away: {mortal}"


def test_a_server_that_is_too_old() -> None:
    with OldServer("5.0.7") as server:
        error = refusal(server.url)
    assert type(error) is StoreError
    assert "is Redis 5.0.7; Pollwise needs Redis 6.2" in str(error)


class OldServer:
    """Says that it is an old Redis, and knows nothing else."""

    def __init__(self, version: str) -> None:
        self._info = f"# Server\r\nredis_version:{version}\r\n".encode()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            for command in data.split(b"*")[1:]:
                known = command.partition(b"\r\n")[2].startswith(b"$4\r\nINFO")
                said = b"$%d\r\n%b\r\n" % (len(self._info), self._info)
                writer.write(said if known else b"-ERR unknown command\r\n")
        writer.close()

    def __enter__(self) -> OldServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


def test_keys_of_another_program(redis: Redis, name: str) -> None:
    redis.execute("SET", f"{{theirs:{name}}}:jobs", "their own")
    error = refusal(redis.url(), name=name, prefix="theirs")
    assert type(error) is SchemaError
    assert f"'{{theirs:{name}}}:jobs' is a string of another program" in str(error)
    assert redis.execute("KEYS", f"{{theirs:{name}}}*") == [f"{{theirs:{name}}}:jobs"]


@pytest.mark.parametrize(("layout", "advice"), [("5", "Upgrade"), ("2", "Work the queue off")])
def test_a_layout_of_another_version(redis: Redis, name: str, layout: str, advice: str) -> None:
    redis.execute("HSET", f"{{pollwise:{name}}}:meta", "layout", layout)
    error = refusal(redis.url(), name=name)
    assert type(error) is SchemaError
    assert f"layout {layout}" in str(error)
    assert advice in str(error)


def test_a_payload_too_large(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        with pytest.raises(PayloadError, match="max_payload_bytes"):
            await queue.put([NewJob("job"), NewJob("job", "x" * 2**20)])
        assert (await queue.stats()).ready == 0

    within(redis.url(), name, work)


def test_a_batch_too_large(redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "MOST_PUT_BYTES", 5000)

    async def work(queue: Queue) -> None:
        with pytest.raises(ConfigError, match="split it"):
            await queue.put([NewJob("job", "x" * 1000) for _ in range(5)])
        await queue.put(NewJob("job", "x" * 6000))
        assert (await queue.stats()).ready == 1

    within(redis.url(), name, work)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (trouble.ReadOnlyError("You can't write against a read only replica."), StoreUnavailable),
        (
            trouble.ResponseError("Error running script: -READONLY You can't write"),
            StoreUnavailable,
        ),
        (trouble.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailable),
        (trouble.OutOfMemoryError("command not allowed when used memory > ''"), StoreUnavailable),
        (trouble.ResponseError("MISCONF Redis is configured to save RDB"), StoreUnavailable),
        (trouble.MasterDownError("Link with MASTER is down"), StoreUnavailable),
        (trouble.ClusterDownError("The cluster is down"), StoreUnavailable),
        (trouble.TryAgainError("Multiple keys request during rehashing"), StoreUnavailable),
        (trouble.ResponseError("BUSY Redis is busy running a script."), StoreUnavailable),
        (trouble.ConnectionError("max number of clients reached"), StoreUnavailable),
        (trouble.ConnectionError("Connection closed by server."), StoreUnavailable),
        (OSError(113, "No route to host"), StoreUnavailable),
        (trouble.NoPermissionError("this user has no permissions"), StoreError),
        (trouble.AuthenticationError("invalid username-password pair"), StoreError),
        (trouble.ResponseError("WRONGTYPE Operation against a key"), SchemaError),
        (trouble.ResponseError("something new"), StoreError),
    ],
    ids=str,
)
def test_errors_in_our_words(error: Exception, kind: type[StoreError]) -> None:
    told = explained(error, RedisAddress("redis://me:s3cret@db.example:6379/1"))
    assert isinstance(told, kind)
    assert told.permanent == (kind is not StoreUnavailable)
    assert "redis://db.example:6379/1" in str(told)
    assert "s3cret" not in str(told)
