"""Every source keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pollwise.testing.sources import (
    SOURCE_CHECKS,
    NotCapable,
    SourceBench,
    SourceCheck,
    name_of,
    run,
)
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

#: Seconds that a check may take on a busy machine.
PATIENCE = 240.0
BENCHES: dict[str, Callable[[pytest.FixtureRequest, Path], SourceBench]] = {
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


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=name_of)
@pytest.mark.parametrize("kind", BENCHES)
def test_contract(
    kind: str, check: SourceCheck, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            await run(check, BENCHES[kind](request, tmp_path))

    try:
        asyncio.run(main())
    except NotCapable as reason:
        pytest.skip(str(reason))
