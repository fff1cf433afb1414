"""What our own connections cost per call, compared with the clients of psycopg and redis-py.

The same statement with the same parameters and rows, on one connection, one call after the other:
a small call (one row back) and a claim-sized one (100 rows back, or 100 jobs sent). The figures are
medians of interleaved rounds, as calls a second. They show what `storage/postgres/connections.py`
and `storage/redis/connections.py` gain over those clients, which they do not use.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import psycopg  # noqa: E402
import redis.asyncio  # noqa: E402

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, number  # noqa: E402
from pollwise.runtime.clock import Clock  # noqa: E402
from pollwise.storage.postgres import connections as postgres_connections  # noqa: E402
from pollwise.storage.postgres.params import number as number_param  # noqa: E402
from pollwise.storage.redis import connections as redis_connections  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

ROUNDS, ROUNDS_QUICK = 15, 5
#: How long one round of one client lasts, in seconds.
ROUND_S = 0.5
ROWS = (
    "SELECT n, 'resize', '{\"image\": 7, \"width\": 800}', NULL, 0, 1, 1.5::float8, 1.5::float8"
    " FROM generate_series(1, {n}::int) AS n"
)
SIZES = {"small": 1, "claim": 100}

Call = Callable[[], Awaitable[Any]]


async def rate(call: Call) -> float:
    """Calls a second, one after the other."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < ROUND_S:
        await call()
        count += 1
    return count / (time.perf_counter() - began)


async def compared(ours: Call, theirs: Call, rounds: int) -> tuple[float, float]:
    """The median rate of each; rounds alternate, so that both meet the same machine."""
    await ours()
    await theirs()
    mine, others = [], []
    for _ in range(rounds):
        mine.append(await rate(ours))
        others.append(await rate(theirs))
    return common.median(mine), common.median(others)


async def postgres(dsn: str, rounds: int) -> dict[str, tuple[float, float]]:
    found = {}
    ours = postgres_connections.Connections(dsn, "bench", Clock(), timeout=30, most=1)
    theirs = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None)
    try:
        for size, rows in SIZES.items():
            command, params = ROWS.replace("{n}", "$1").encode(), [number_param(rows)]
            statement = ROWS.replace("{n}", "%s")

            async def by_us(command: bytes = command, params: Any = params) -> Any:
                return await ours.rows(command, params)

            async def by_cursor(statement: str = statement, rows: int = rows) -> Any:
                async with theirs.cursor(binary=True) as cursor:
                    await cursor.execute(statement, [rows])
                    return await cursor.fetchall()

            same = [[*map(str, row)] for row in await by_us()]
            assert same == [[*map(str, row)] for row in await by_cursor()]
            found[size] = await compared(by_us, by_cursor, rounds)
    finally:
        await ours.close()
        await theirs.close()
    return found


async def redis_(url: str, rounds: int) -> dict[str, tuple[float, float]]:
    async def no_check(_: redis_connections.Connections) -> None: ...

    found = {}
    address = redis_connections.RedisAddress(url)
    ours = redis_connections.Connections(address, Clock(), 30, no_check)
    theirs = redis.asyncio.Redis.from_url(url, single_connection_client=True)
    try:
        for size, jobs in SIZES.items():
            args = ["resize", '{"image": 7, "width": 800}', "0", "1.5"] * jobs

            async def by_us(args: list[str] = args) -> Any:
                return await ours.send("RPUSH", "bench", *args, within=30)

            async def by_client(args: list[str] = args) -> Any:
                return await theirs.rpush("bench", *args)

            found[size] = await compared(by_us, by_client, rounds)
            await theirs.delete("bench")
    finally:
        await ours.close()
        await theirs.aclose()
    return found


def main() -> None:
    options = common.options(__doc__ or "")
    rounds = ROUNDS_QUICK if options.quick else ROUNDS
    with Servers() as servers:
        found = {
            "Postgres, psycopg's cursor": asyncio.run(postgres(servers.postgres().dsn(), rounds)),
            "Redis, redis-py's client": asyncio.run(redis_(servers.redis().url(), rounds)),
        }
        common.show(common.machine(servers.folder), common.versions())
    common.heading("Calls a second on one connection")
    rows, goals, facts = [], [], {}
    for what, sizes in found.items():
        for size, (ours, theirs) in sizes.items():
            rows.append([what, size, number(ours), number(theirs), f"{ours / theirs:.2f}"])
            facts[f"{what}, {size}"] = {"ours": ours, "theirs": theirs}
            goals.append(
                Goal(
                    f"{what.partition(',')[0]} {size} call / client",
                    ours / theirs,
                    1.0,
                    "×",
                    least=True,
                )
            )
    common.table(("server, client", "call", "ours", "client", "ratio"), rows)
    common.finish(facts, goals, options.json)


if __name__ == "__main__":
    main()
