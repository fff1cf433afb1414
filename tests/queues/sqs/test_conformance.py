"""SQS keeps the contract, as far as its capabilities go: standard and FIFO queues.

Each check runs on a queue of its own, against one server whose time can be skipped; the tests then
tell what came of each. Checks of held claims and of hints wait while requests are under way, so
they run side by side in time that passes ten times as fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from aiobotocore.session import get_session

from pollwise.queues.sqs import client
from pollwise.queues.sqs.queue import SqsFifoQueue, SqsQueue
from pollwise.testing.conformance import CHECKS, Bench, Check, NotCapable, name_of, run
from tests.support.clouds import CREDENTIALS, MiniStack
from tests.support.fast import FastClock

#: How many of the checks that wait run at a time.
AT_A_TIME = 4
#: The modules of these checks.
WAITING = ("cancelling", "waking")
#: Seconds in a unit of time that is skipped: much more than this machine ever stalls.
LONG_UNIT = 30.0


class SqsBench(Bench):
    def __init__(self, server: MiniStack, clock: FastClock, name: str) -> None:
        self.server, self.clock, self.name = server, clock, name
        self._made = False

    async def elapse(self, units: float) -> None:
        await self.clock.sleep(units * self.unit)

    async def queue(self, **options: Any) -> SqsQueue:
        kind = SqsFifoQueue if self.name.endswith(".fifo") else SqsQueue
        given = {"endpoint": self.server.endpoint, "linger": 0, "timeout": "100s", **options}
        queue = self.keep(kind(self.name, clock=self.clock, **given))
        if not self._made:
            await queue.create(max_receives=1000)
            self._made = True
        return queue


class SkippingBench(SqsBench):
    unit = LONG_UNIT

    async def elapse(self, units: float) -> None:
        self.clock.fast.skip(units * self.unit)


class MissingBench(SqsBench):
    """Its queues do not exist, and to call SQS is an error: most checks that SQS denies do not."""

    async def queue(self, **options: Any) -> SqsQueue:
        self._made = True
        queue = await super().queue(**options)
        queue._sqs._call = self._called  # type: ignore[method-assign]
        return queue

    async def _called(self, *_: object, **__: object) -> None:
        raise ConnectionError


Results = dict[str, BaseException | None]


@pytest.fixture(scope="module")
def results(fast_ministack: MiniStack) -> Iterator[dict[str, Results]]:
    server = fast_ministack
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        # Each check opens clients, and a session of its own costs more than all its requests.
        patch.setattr(client, "get_session", cache(get_session))
        assert server.fast is not None
        clock = FastClock(server.fast)
        yield {suffix: clock.run(_run_all(server, clock, suffix)) for suffix in ("", ".fifo")}


async def _run_all(server: MiniStack, clock: FastClock, suffix: str) -> Results:
    gate = asyncio.Semaphore(AT_A_TIME)

    async def result(check: Check, bench: type[SqsBench], turn: str = "") -> BaseException | None:
        try:
            await run(check, bench(server, clock, f"{name_of(check)}{turn}{suffix}"))
        except Exception as error:
            return error
        return None

    async def waiting(check: Check) -> BaseException | None:
        async with gate:
            return await result(check, SqsBench)

    those = [check for check in CHECKS if check.__module__.rpartition(".")[2] in WAITING]
    outcomes = await asyncio.gather(*(waiting(check) for check in those))
    results = {}
    for check, came in zip(those, outcomes, strict=True):
        # When this machine stalls for a tenth of a second, a second is gone here: what failed
        # beside others has to fail by itself, too.
        again = came is not None and not isinstance(came, NotCapable)
        results[name_of(check)] = await result(check, SqsBench, "-again") if again else came
    for check in CHECKS:
        if check not in those:
            came = await result(check, MissingBench, "-missing")  # to create a queue takes long
            denied = isinstance(came, NotCapable)
            results[name_of(check)] = came if denied else await result(check, SkippingBench)
    return results


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_contract(suffix: str, check: Check, results: dict[str, Results]) -> None:
    came = results[suffix][name_of(check)]
    if isinstance(came, NotCapable):
        pytest.skip(str(came))
    if came is not None:
        raise came
