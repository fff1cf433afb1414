"""Notes of limits that another program wrote, and a clock that was put back: claims go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Concurrency, Rate, limits_from
from pollwise.queues.notes import NOTE_VALUE_MAX, NewNote
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.clock import SteppedClock
from pollwise.testing.conformance import Bench
from tests.queues.benches import MemoryBench, PostgresBench, RedisBench, SqliteBench
from tests.support.servers import Postgres

LONG = "9" * 400
NOT_OURS = [
    "{broken", "null", "[]", "5", '"x"', "{}", '{"most":5}x', '{"unknown":1}', '{"fair":"yes"}',
    '{"most":NaN}', '{"most":1e400}', '{"most":0}', '{"most":-5}', '{"most":1.5}', '{"most":true}',
    '{"most":"5"}', '{"most":1000001}', '{"most":%s}' % ("9" * 5000), '{"most_each":1e30}',
    '{"rate":5}', '{"rate":"abc"}', '{"rate":{}}', '{"rate":{"a":1,"b":2,"c":3}}',
    '{"rate":[1,60]}', '{"rate":[1,60,1,1]}', '{"rate":["5","60","1"]}', '{"rate":[1,null,1]}',
    '{"rate":[0,60,1]}', '{"rate":[0.5,60,1]}', '{"rate":[Infinity,60,1]}',
    '{"rate":[' + LONG + ',60,1]}', '{"rate":[1000001,60,1]}',
    '{"rate":[1,0,1]}', '{"rate":[1,-60,1]}', '{"rate":[1,1e-300,1]}', '{"rate":[1,1e300,1]}',
    '{"rate":[1,true,1]}', '{"rate":[1,Infinity,1]}', '{"rate":[1,' + LONG + ',1]}',
    '{"rate":[1,60,0]}', '{"rate":[1,60,1.5]}', '{"rate":[1,60,3000000000]}',
    '{"rate":[1,60,Infinity]}', '{"rate":[1,60,' + LONG + ']}',
    '{"rate_each":[1,60]}', '{"rate_each":[1e12,1e-9,1]}',
    '{"most":1,"weights":5}', '{"most_each":1,"weights":[]}', '{"most_each":1,"weights":{"a":0}}',
    '{"most_each":1,"weights":{"a":1.5}}', '{"most_each":1,"weights":{"a":"x"}}',
    '{"most_each":1,"weights":{"a":null}}', '{"most_each":1,"weights":{"a":1001}}',
    '{"most_each":1,"weights":{"":3}}', r'{"most_each":1,"weights":{"a\u0000b":3}}',
    r'{"most_each":1,"weights":{"\ud800":3}}',
    '{"fair":true,"weights":{"a":2147483647,"b":2147483647}}',
    '{"most":1,"by":7}', '{"most":1,"by":""}', r'{"most":1,"by":"\u0000"}',
    '{"most":1,"set_at":"x"}', '{"most":1,"set_at":null}', '{"most":1,"set_at":-1}',
    '{"most":1,"set_at":1e18}', '{"most":1,"set_at":NaN}', '{"most":1,"set_at":' + LONG + '}',
    "[" * (NOTE_VALUE_MAX - 1), '{"most":1,"by":"%s"}' % ("x" * NOTE_VALUE_MAX),
]  # fmt: skip


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[SteppedClock], Bench]:
    if request.param == "memory":
        return MemoryBench
    if request.param == "sqlite":
        return lambda clock: SqliteBench(clock, tmp_path / "jobs.db")
    server = request.getfixturevalue(request.param)
    if isinstance(server, Postgres):
        return lambda clock: PostgresBench(clock, server.dsn())
    return lambda clock: RedisBench(clock, server.url())


async def claimed(queue: Queue, kinds: list[str] | None = None) -> list[str]:
    """The kinds of the jobs that a claim gets, which are then done."""
    claims = await queue.claim("w", 10, "30s", kinds=kinds)
    await queue.settle([Settlement.done(claim) for claim in claims])
    return sorted(claim.job.kind for claim in claims)


@pytest.mark.parametrize("value", NOT_OURS, ids=lambda value: value[:40])
def test_a_note_that_is_not_ours_gives_no_limits(value: str) -> None:
    assert limits_from("x", value) is None


def test_a_note_that_is_not_ours_stops_no_claim(
    make_bench: Callable[[SteppedClock], Bench],
) -> None:
    clock = SteppedClock()
    bench = make_bench(clock)

    async def main() -> None:
        try:
            queue = await bench.queue()
            for value in NOT_OURS:
                await queue._write_note(NewNote("limits", "x", value))
                await queue.put([NewJob("x", limit_group=group) for group in ("a", "a", None)])
                await queue.put([NewJob("y")])
                assert await claimed(queue, ["y"]) == ["y"], value
                assert await claimed(queue, ["x", "y"]) == ["x"] * 3, value
                await queue.put([NewJob("x"), NewJob("y")])
                assert await claimed(queue) == ["x", "y"], value
                assert await queue.limits.list() == [], value
                assert await queue.limits.use() == [], value
            # Jobs that waited in turns are found, and the limits can be set again.
            await queue.limits.set("x", Concurrency(1, by="tenant"))
            await queue.put([NewJob("x", limit_group=group) for group in "aab"])
            await queue._write_note(NewNote("limits", "x", '{"rate":[1,-60,1]}'))
            assert await claimed(queue) == ["x"] * 3
            await queue.limits.set("x", Concurrency(1))
            await queue.put([NewJob("x"), NewJob("x")])
            assert await claimed(queue) == ["x"]
        finally:
            await bench.close()

    clock.run(main())


@pytest.mark.parametrize("by", [None, "tenant"])
def test_a_rate_goes_on_when_the_clock_is_put_back(
    make_bench: Callable[[SteppedClock], Bench], by: str | None
) -> None:
    clock = SteppedClock()
    bench = make_bench(clock)

    async def main() -> None:
        try:
            queue = await bench.queue()
            await queue.limits.set("x", Rate(60, "1m", by=by, burst=1))
            await queue.put([NewJob("x", limit_group="a") for _ in range(4)])
            assert await claimed(queue) == ["x"]
            clock._epoch -= 7200
            assert await claimed(queue) == []
            for _ in range(3):
                await clock.advance(1)
                assert await claimed(queue) == ["x"]
        finally:
            await bench.close()

    clock.run(main())
