"""Every source keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pollwise.testing.contracts import SourceContract
from tests.sources.benches import (
    BucketBench,
    FeedBench,
    FolderBench,
    ImapBench,
    LinkedBench,
    LocalBucketBench,
    OrderedBucketBench,
    PostgresRowsBench,
    RedisBench,
    SinceBench,
    SqliteRowsBench,
    TokenBench,
)

BENCHES: dict[str, Callable[[pytest.FixtureRequest, Path], SourceContract]] = {
    "folder": lambda _, folder: FolderBench(folder),
    "feed": lambda _, folder: FeedBench(folder),
    "linked": lambda _, folder: LinkedBench(folder),
    "since": lambda _, folder: SinceBench(folder),
    "token": lambda _, folder: TokenBench(folder),
    "sqlite": lambda _, folder: SqliteRowsBench(folder),
    "postgres": lambda request, folder: PostgresRowsBench(
        folder, request.getfixturevalue("postgres")
    ),
    "redis": lambda request, folder: RedisBench(folder, request.getfixturevalue("redis")),
    "bucket": lambda request, folder: BucketBench(
        folder, request.getfixturevalue("ministack"), request.getfixturevalue("monkeypatch")
    ),
    "ordered-bucket": lambda request, folder: OrderedBucketBench(
        folder, request.getfixturevalue("ministack"), request.getfixturevalue("monkeypatch")
    ),
    "imap": lambda _, folder: ImapBench(folder),
    "local-bucket": lambda _, folder: LocalBucketBench(folder),
}


@pytest.mark.parametrize("check", SourceContract.checks())
@pytest.mark.parametrize("kind", BENCHES)
def test_contract(kind: str, check: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    BENCHES[kind](request, tmp_path).run(check)
