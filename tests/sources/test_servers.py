"""Buckets and Redis Streams, beyond the contract."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, StoreError
from pollwise.runtime.events import Events
from pollwise.runtime.loop import poll
from pollwise.sources import Bucket, RedisStream
from pollwise.sources.listed import REMEMBERED
from tests.support.servers import Redis

#: Seconds that anything may take on a busy machine.
PATIENCE = 240.0


# Redis Streams.


def test_a_held_poll_returns_as_soon_as_there_is_an_entry(redis: Redis, name: str) -> None:
    async def main() -> None:
        async with RedisStream(redis.url(), name) as source:
            loop = poll(source, Fixed(0, hold="1h"), spread=False, events=Events(quiet=True))
            waiting = asyncio.ensure_future(anext(loop))
            async with asyncio.timeout(PATIENCE):
                while not redis.execute("INFO", "clients")["blocked_clients"]:
                    await asyncio.sleep(0.01)  # real time: the server holds the poll
            redis.execute("XADD", name, "*", "a", b"\xff1")
            async with asyncio.timeout(PATIENCE):
                [entry] = await waiting
            assert entry.fields == {"a": "\udcff1"}
            assert entry.added_at > 1_700_000_000
            assert loop.counts.polls == 1
            loop.stop()

    asyncio.run(main())


def test_a_short_hold_ends_empty_and_a_cut_hold_releases_the_connection(
    redis: Redis, name: str
) -> None:
    async def main() -> None:
        async with RedisStream(redis.url(), name) as source:
            assert (await source(0.01)).items == ()
            held = asyncio.ensure_future(source(3600.0))
            await asyncio.sleep(0)
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held
            redis.execute("XADD", name, "*", "a", "1")
            assert len((await source()).items) == 1

    asyncio.run(main())


def test_a_key_that_is_no_stream_is_an_error(redis: Redis, name: str) -> None:
    redis.execute("SET", name, "x")

    async def main() -> None:
        async with RedisStream(redis.url(), name) as source:
            with pytest.raises(StoreError, match="WRONGTYPE"):
                await source()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "given", "said"),
    [
        ("http://h", {"stream": "s"}, "Redis URL"),
        ("redis://h", {"stream": ""}, "stream"),
        ("redis://h", {"stream": "s", "limit": 0}, "limit"),
    ],
)
def test_options_of_a_stream_that_are_wrong(url: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RedisStream(url, **given)


def test_the_name_of_a_stream_has_no_password() -> None:
    assert RedisStream("redis://me:hunter2@h:7/1", "s").name == "redis:redis://h:7/1#s"


# Buckets.


def test_an_object_that_is_written_again_comes_again_and_one_that_is_gone_is_forgotten(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")

    async def main() -> None:
        async with Bucket(f"file://{tmp_path}") as source:
            assert sorted(each.name for each in (await source()).items) == ["a", "b"]
            (tmp_path / "a").write_text("12")
            (tmp_path / "b").unlink()
            assert [(each.name, each.size) for each in (await source()).items] == [("a", 2)]
            assert list((await source()).items) == []
            assert len(source._state["seen"]) == 1

    asyncio.run(main())


def test_a_bucket_that_is_too_full_can_still_be_read_in_order(tmp_path: Path) -> None:
    for n in range(REMEMBERED + 1):
        (tmp_path / f"{n:05d}").touch()

    async def main() -> None:
        async with Bucket(f"file://{tmp_path}") as source:
            with pytest.raises(StoreError, match="more than 10,000 objects"):
                await source()
        async with Bucket(f"file://{tmp_path}", ordered=True, limit=3000) as source:
            sizes = [len((await source()).items) for _ in range(5)]
            assert sizes == [3000, 3000, 3000, REMEMBERED + 1 - 9000, 0]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://bucket", "scheme"),
        ("s3:///x", "does not name a bucket"),
        ("s3://me:hunter2@bucket/x", "holds credentials"),
        ("s3://bucket/x?reigon=eu", "does not take 'reigon'"),
        ("file://host/x", "does not name a folder"),
        ("s3://bucket/x?endpoint=nowhere", "endpoint"),
    ],
)
def test_the_url_of_a_bucket_is_checked(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        Bucket(url)
    assert "hunter2" not in str(raised.value)
