"""The benches for sources: real servers, and a cursor in SQLite."""

from __future__ import annotations

import json
import secrets
import sqlite3
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pollwise.sources import (
    Bucket,
    Feed,
    Folder,
    HttpJson,
    ImapFolder,
    RedisStream,
    Source,
    SqlRows,
)
from pollwise.testing.contracts import SourceContract
from tests.fleet.probes.kit import Request, Web, page, web
from tests.fleet.probes.net.servers import served
from tests.sources.imap_server import Mailbox
from tests.support.clouds import BUCKET, CREDENTIALS, MiniStack
from tests.support.proxy import Proxy
from tests.support.servers import Postgres, Redis


class CursorBench(SourceContract):
    """Cursors in a file of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cursor = f"sqlite:///{folder}/cursors.db"

    @abstractmethod
    def opened(self) -> Source[Any]: ...

    async def source(self) -> Source[Any]:
        return self.keep(self.opened())


class FolderBench(CursorBench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.inbox = folder / "inbox"
        self.inbox.mkdir()

    def opened(self) -> Source[Any]:
        return Folder(
            self.inbox, "*.txt", cursor=self.cursor, limit=self.batch or 1, quiet=0, watch=False
        )

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            (self.inbox / f"{key}.txt").write_text(key)

    def key(self, item: Any) -> str:
        return str(item.path.stem)

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        away = self.inbox.with_name("away")
        self.inbox.rename(away)
        try:
            yield
        finally:
            away.rename(self.inbox)


class SqliteRowsBench(CursorBench):
    """Two rows have one watermark each time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "shop.db"
        self.execute("CREATE TABLE orders (id TEXT, at INTEGER)")

    def execute(self, text: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(text, values)

    def opened(self) -> Source[Any]:
        return SqlRows(
            f"sqlite:///{self.path}", "SELECT * FROM orders;", watermark="at",
            cursor=self.cursor, limit=self.batch or 1,
        )  # fmt: skip

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.execute("INSERT INTO orders VALUES (?, (SELECT count(*) / 2 FROM orders))", key)

    def key(self, item: Any) -> str:
        return str(item["id"])

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        with closing(sqlite3.connect(self.path)) as connection, fast_to_fail():
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            yield


@contextmanager
def fast_to_fail() -> Iterator[None]:
    """Report a locked file at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pollwise.fleet.probes.sql.BUSY", 0.0)
        yield


class PostgresRowsBench(CursorBench):
    """By time, with an overlap."""

    def __init__(self, folder: Path, server: Postgres) -> None:
        super().__init__(folder)
        self.server = server
        self.database = f"rows_{secrets.token_hex(6)}"
        self.url = server.create_database(self.database)
        self.execute("CREATE TABLE orders (id text, at timestamptz)")

    def execute(self, text: str, *values: Any) -> Any:
        return self.server.execute(text, list(values), dbname=self.database)

    def opened(self) -> Source[Any]:
        return SqlRows(
            self.url, "SELECT *, '100%' AS share FROM orders", watermark="at", overlap="1m",
            cursor=self.cursor, limit=self.batch or 1,
        )  # fmt: skip

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.execute(
                "INSERT INTO orders SELECT %s, '2026-01-01T00:00Z'::timestamptz"
                " + count(*) * interval '7 seconds' FROM orders",
                key,
            )

    def key(self, item: Any) -> str:
        assert item["share"] == "100%"
        return str(item["id"])

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        self.accept("false")
        self.server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [self.database],
        )
        try:
            yield
        finally:
            self.accept("true")

    def accept(self, whether: str) -> None:
        self.server.execute(f"ALTER DATABASE {self.database} ALLOW_CONNECTIONS {whether}")


class ProxiedBench(CursorBench):
    """A shared server behind a proxy of the test's own, which can refuse connections."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder)
        self.proxy = Proxy(port)
        self.name = f"source-{secrets.token_hex(6)}"

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        self.proxy.refuse()
        self.proxy.cut()
        try:
            yield
        finally:
            self.proxy.accept()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        with self.proxy:
            async with super().serving():
                yield


class RedisBench(ProxiedBench):
    def __init__(self, folder: Path, server: Redis) -> None:
        super().__init__(folder, server.port)
        self.server = server

    def opened(self) -> Source[Any]:
        url = self.proxy.through(self.server.url())
        return RedisStream(url, self.name, cursor=self.cursor, limit=self.batch or 1)

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.server.execute("XADD", self.name, "*", "key", key)

    def key(self, item: Any) -> str:
        return str(item.fields["key"])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with super().serving():
            yield
        self.server.execute("DEL", self.name)


class BucketBench(ProxiedBench):
    ordered = False

    def __init__(self, folder: Path, server: MiniStack, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, server.port)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        self.store = server.store()
        self.url = f"s3://{BUCKET}/{self.name}?endpoint={self.proxy.through(server.endpoint)}"

    def opened(self) -> Source[Any]:
        return Bucket(self.url, ordered=self.ordered, cursor=self.cursor, limit=self.batch or 1)

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.store.put(f"{self.name}/in/{key}", b"x")

    def key(self, item: Any) -> str:
        assert item.name.startswith(f"{self.name}/in/")
        return str(item.name.rpartition("/")[2])


class OrderedBucketBench(BucketBench):
    ordered = True


class LocalBucketBench(CursorBench):
    """A folder as a bucket, which has no prefix."""

    def opened(self) -> Source[Any]:
        return Bucket(
            f"file://{self.folder}/bucket", ordered=True, cursor=self.cursor,
            limit=self.batch or 1,
        )  # fmt: skip

    async def add(self, keys: Sequence[str]) -> None:
        (self.folder / "bucket").mkdir(exist_ok=True)
        for key in keys:
            (self.folder / "bucket" / key).write_text("x")

    def key(self, item: Any) -> str:
        return str(item.name)


class WebBench(CursorBench):
    """A server of the test's own; `items` in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.items: list[dict[str, Any]] = []
        self.down = False
        self.server: Web | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with web(self._answer) as self.server, super().serving():
            yield

    def url(self, path: str) -> str:
        assert self.server is not None
        return self.server.url(path)

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            n = len(self.items)
            self.items.append({"id": key, "changed": f"2026-01-01T00:{n // 2:02d}:00Z"})

    def key(self, item: Any) -> str:
        return str(item["id"])

    def _answer(self, request: Request) -> bytes:
        if self.down:
            return page("sorry", "503 Service Unavailable")
        query = {key: values[0] for key, values in parse_qs(urlsplit(request.path).query).items()}
        return self.answer(query, request.headers)

    @abstractmethod
    def answer(self, query: dict[str, str], headers: dict[str, str]) -> bytes: ...

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        self.down = True
        try:
            yield
        finally:
            self.down = False


class LinkedBench(WebBench):
    """An API with the newest first, pages in the Link header, and ETags."""

    def opened(self) -> Source[Any]:
        return HttpJson(self.url("/items"), link=True, cursor=self.cursor)

    def answer(self, query: dict[str, str], headers: dict[str, str]) -> bytes:
        start = int(query.get("from", 0))
        newest = self.items[::-1]
        more: dict[str, Any] = {}
        if start + 4 < len(newest):
            more["link"] = f'</items?from={start + 4}>; rel="next", </items>; rel="first"'
        body = json.dumps(newest[start : start + 4])
        etag = f'"{hash(body)}"'
        if headers.get("if-none-match") == etag:
            return page(b"", "304 Not Modified", 0, etag=etag)
        return page(body, etag=etag, **more)


class SinceBench(WebBench):
    """An API that selects by time, with numbered pages, the oldest first."""

    def opened(self) -> Source[Any]:
        return HttpJson(
            self.url("/items?kind=all"), items="data.items", field="changed", since="since",
            page="page", cursor=self.cursor,
        )  # fmt: skip

    def answer(self, query: dict[str, str], headers: dict[str, str]) -> bytes:
        assert query["kind"] == "all"
        found = [each for each in self.items if each["changed"] >= query.get("since", "")]
        start = 4 * (int(query["page"]) - 1)
        return page(json.dumps({"data": {"items": found[start : start + 4]}}))

    async def drained(self, source: Source[Any]) -> list[str]:
        # The page after the last one is empty, and so is one whose items are all known.
        found: list[str] = []
        while True:
            batch = await source()
            found += [self.key(item) for item in batch.items]
            if batch.capacity is None:
                return found


class TokenBench(WebBench):
    """An API with a token for the next page in its answer, the newest first."""

    def opened(self) -> Source[Any]:
        return HttpJson(
            self.url("/items"), items="items", next="paging.next", next_param="after",
            cursor=self.cursor,
        )  # fmt: skip

    def answer(self, query: dict[str, str], headers: dict[str, str]) -> bytes:
        start = int(query.get("after", 0))
        newest = self.items[::-1]
        following = start + 4 if start + 4 < len(newest) else None
        body = {"items": newest[start : start + 4], "paging": {"next": following}}
        return page(json.dumps(body))


class FeedBench(WebBench):
    def opened(self) -> Source[Any]:
        return Feed(self.url("/feed"), cursor=self.cursor, limit=self.batch or 1)

    def key(self, item: Any) -> str:
        return str(item.id)

    def answer(self, query: dict[str, str], headers: dict[str, str]) -> bytes:
        entries = "".join(
            f"<entry><id>{each['id']}</id><updated>{each['changed']}</updated></entry>"
            for each in self.items[::-1]
        )
        etag = f'"{len(self.items)}"'
        if headers.get("if-none-match") == etag:
            return page(b"", "304 Not Modified", 0, etag=etag)
        return page(f"<feed>{entries}</feed>", etag=etag)


class ImapBench(CursorBench):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mailbox = Mailbox()
        self.address = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with served(self.mailbox) as self.address, super().serving():
            yield

    def opened(self) -> Source[Any]:
        return ImapFolder(
            self.address, "me", 'se"cret', tls=False, cursor=self.cursor, limit=self.batch or 1
        )

    async def add(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.mailbox.put(f"Subject: {key}\r\n\r\ntext of {key} {{5}}\r\n".encode())

    def key(self, item: Any) -> str:
        return str(item.message["subject"])

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        self.mailbox.broken = True
        self.mailbox.drop_all()
        try:
            yield
        finally:
            self.mailbox.broken = False
