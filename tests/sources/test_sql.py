"""Rows of a query: late transactions, odd watermarks, and what cannot be one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.errors import ConfigError, ProbeError, ProbeRefused
from pollwise.sources import MemoryCursors, SqlRows
from pollwise.sources.listed import REMEMBERED
from pollwise.sources.sql import decoded, encoded
from tests.support.servers import Postgres


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE orders (id INTEGER, "at" NUMERIC, note TEXT)')
    return path


def insert(path: Path, *rows: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO orders VALUES (?, ?, '50% :x ?')", rows)


def polled(
    path: Path, *steps: Sequence[tuple[Any, ...]] | None, query: str = "SELECT * FROM orders",
    **given: Any,
) -> list[list[Any]]:  # fmt: skip
    """The ids that each poll delivers, after these rows were inserted."""

    async def main() -> list[list[Any]]:
        found: list[list[Any]] = []
        options = {"watermark": "at", **given}
        async with SqlRows(f"sqlite:///{path}", query, **options) as source:
            for rows in steps:
                insert(path, *(rows or ()))
                found.append([row["id"] for row in (await source()).items])
        return found

    return asyncio.run(main())


def test_rows_come_in_order_and_null_never(shop: Path) -> None:
    assert polled(shop, [(1, 5), (2, 3), (3, None)], [(4, 4), (5, 6), (6, 5)]) == [[2, 1], [6, 5]]


def test_a_late_row_is_found_within_the_overlap(shop: Path) -> None:
    steps: Any = ([(1, 100)], [(2, 95)], [(3, 90), (4, 101)], [(5, 89)])
    assert polled(shop, *steps, overlap=10) == [[1], [2], [3, 4], []]
    assert polled(shop, [], overlap=11, limit=3) == [[5, 3, 2]]


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_nothing_within_the_overlap_is_lost_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, marks: list[tuple[int, bool]], limit: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, at NUMERIC, note TEXT)")

    async def main() -> list[int]:
        found: list[int] = []
        url, cursors = f"sqlite:///{path}", MemoryCursors()
        options: Any = {"watermark": "at", "overlap": 30, "limit": limit, "cursor": cursors}
        source = SqlRows(url, "SELECT * FROM orders", **options)
        for n, (mark, restart) in enumerate(marks):
            insert(path, (n, mark))
            found += [row["id"] for row in (await source()).items]
            if restart:
                await source.commit()
                await source.close()
                source = SqlRows(url, "SELECT * FROM orders", **options)
        while (batch := await source()).items:
            found += [row["id"] for row in batch.items]
        await source.close()
        return found

    assert sorted(asyncio.run(main())) == list(range(len(marks)))


def test_too_many_rows_to_remember_are_an_error(shop: Path) -> None:
    insert(shop, *[(n, 7) for n in range(REMEMBERED + 2)])

    async def main() -> None:
        async with SqlRows(
            f"sqlite:///{shop}", "SELECT * FROM orders", watermark="at", limit=REMEMBERED
        ) as source:
            assert len((await source()).items) == REMEMBERED
            with pytest.raises(ProbeRefused, match="have one value of 'at'"):
                await source()
            source._pending = None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("query", "rows", "said"),
    [
        ("SELECT id FROM orders", [(1, 1)], "no such column|no column 'at'"),
        ("SELECT nix", [], "no such column"),
        ("SELECT 1 AS at; DELETE FROM orders", [], "one statement|syntax error"),
        ("SELECT x'00' AS at, 1 AS id", [], "bytes, which cannot be a watermark"),
        ("SELECT 9e999 AS at, 1 AS id", [], "inf, which cannot be a watermark"),
        ("SELECT hex(zeroblob(400)) AS at, 1 AS id", [], "too long for a watermark"),
        ("SELECT at, id FROM orders UNION ALL SELECT 'x', 2", [(1, 1)], "cannot be compared"),
    ],
)
def test_a_query_that_does_not_fit_is_an_error(
    shop: Path, query: str, rows: Any, said: str
) -> None:
    with pytest.raises(ProbeError, match=said):
        polled(shop, rows, query=query)


def test_nothing_can_be_written(shop: Path) -> None:
    insert(shop, (1, 1))
    with pytest.raises(ProbeError):
        polled(shop, [], query="DELETE FROM orders RETURNING id, at")
    assert polled(shop, []) == [[1]]


def test_a_missing_file_is_refused_for_good(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/none.db"
        async with SqlRows(url, "SELECT 1 AS at", watermark="at") as source:
            with pytest.raises(ProbeRefused, match="does not exist"):
                await source()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "mysql://h/d"}, "postgresql:// or sqlite://"),
        ({"url": ""}, "url is missing"),
        ({"query": ""}, "query is missing"),
        ({"watermark": 'a"b'}, "watermark"),
        ({"watermark": ""}, "watermark"),
        ({"overlap": -1}, "overlap"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_options_that_are_wrong_are_refused(given: dict[str, Any], said: str) -> None:
    options: dict[str, Any] = {"url": "sqlite:///x.db", "query": "SELECT 1", "watermark": "a"}
    options |= given
    with pytest.raises(ConfigError, match=said):
        SqlRows(options.pop("url"), options.pop("query"), **options)


@pytest.mark.parametrize(
    "mark",
    [
        5, 1.5, "text", Decimal("1.10"), date(2026, 1, 1), datetime(2026, 1, 1, 2, 3, 4, 5),  # noqa: DTZ001
        datetime(2026, 1, 1, tzinfo=UTC), UUID(int=7),
    ],
)  # fmt: skip
def test_a_watermark_survives_the_cursor(mark: Any) -> None:
    assert decoded(encoded(mark, "c")) == mark
    assert type(decoded(encoded(mark, "c"))) is type(mark)


# Postgres.


def postgres_rows(
    url: str, query: str, act: Callable[[], object] = lambda: None, **given: Any
) -> list[list[Any]]:
    """The ids of two polls, and what happens between them."""

    async def main() -> list[list[Any]]:
        async with SqlRows(url, query, **{"watermark": "at", **given}) as source:
            first = [row["id"] for row in (await source()).items]
            act()
            return [first, [row["id"] for row in (await source()).items]]

    return asyncio.run(main())


def test_a_transaction_that_commits_late_is_found_within_the_overlap(postgres: Postgres) -> None:
    url = postgres.create_database("late_rows")
    run = {"dbname": "late_rows"}
    postgres.execute("CREATE TABLE o (id int, at timestamptz)", **run)
    add = "INSERT INTO o VALUES ({}, '2026-01-01T00:00:{}Z')"
    postgres.execute(add.format(1, 30), **run)

    def late() -> None:
        postgres.execute(add.format(2, 10), **run)

    assert postgres_rows(url, "SELECT * FROM o", late, overlap="1m") == [[1], [2]]
    postgres.execute("DELETE FROM o WHERE id = 2", **run)
    assert postgres_rows(url, "SELECT * FROM o", late) == [[1], []]


@pytest.mark.parametrize("mark", ["1.5::numeric", "'a'::text", "date '2026-01-01'", "1::bigint"])
def test_watermarks_of_postgres_are_read_back(postgres: Postgres, mark: str) -> None:
    query = f"SELECT 1 AS id, {mark} AS at"
    assert postgres_rows(postgres.dsn(), query) == [[1], []]


def test_postgres_writes_nothing_and_says_what_is_wrong(postgres: Postgres) -> None:
    for query, said in (
        ("SELECT lo_create(0) AS at", "read-only"),
        ("SELECT * FROM no_such_table", "no_such_table"),
    ):
        with pytest.raises(ProbeError, match=said) as raised:
            postgres_rows(postgres.dsn(), query)
        assert getattr(raised.value, "permanent", False)


def test_a_slow_query_is_cancelled(postgres: Postgres) -> None:
    query = "SELECT 1 AS id, 1 AS at FROM pg_sleep(600)"
    with pytest.raises(ProbeError, match=r"not answered within 0\.2 s|statement timeout"):
        postgres_rows(postgres.dsn(), query, timeout="200ms")


def test_a_dead_server_is_an_error_without_its_password() -> None:
    with pytest.raises(ProbeError) as raised:
        postgres_rows("postgresql://me:hunter2@127.0.0.1:1/db", "SELECT 1 AS at")
    assert "hunter2" not in str(raised.value)
