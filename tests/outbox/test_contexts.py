"""Context variables: no handler of records sees what another call has set."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest

from pollwise import Retry
from tests.outbox.relays import Bench

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("keys", ["one", "each"])
def test_no_record_sees_a_value_of_another(keys: str, concurrency: int) -> None:
    bench = Bench()
    found: dict[str, list[str]] = {}

    def note(name: str, record: Any) -> None:
        found.setdefault(name, []).append(tenant.get())
        tenant.set(f"{name} {record.id}")

    async def main() -> None:
        outbox = bench.outbox(concurrency=concurrency)

        @outbox.handle("*")
        async def plain(record: Any) -> None:
            note("plain", record)

        @outbox.handle("*")
        async def waits(record: Any) -> None:
            note("waits", record)
            await bench.clock.sleep(0.01)
            assert tenant.get() == f"waits {record.id}"

        @outbox.handle("*")
        def thread(record: Any) -> None:
            note("thread", record)

        async def fallback(record: Any) -> None:
            note("fallback", record)

        @outbox.handle("*", retry=Retry.fixed("10ms", attempts=2), fallback=fallback)
        async def raises(record: Any) -> None:
            note("raises", record)
            raise OSError("on purpose")

        for number in range(20):
            await bench.put(1, key="k" if keys == "one" else f"k{number}")
        async with outbox.running():
            await bench.clock.advance(60)

    bench.run(main())
    assert {name: len(calls) for name, calls in found.items()} == {
        "plain": 20, "waits": 20, "thread": 20, "raises": 40, "fallback": 20,
    }  # fmt: skip
    assert {value for calls in found.values() for value in calls} == {"nobody"}
