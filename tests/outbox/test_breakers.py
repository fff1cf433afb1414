"""Breakers on handlers: an outage of a receiver uses up no attempts and leaves no dead records."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.errors import PublishError
from pollwise.outbox import NewRecord
from pollwise.outbox.envelope import Message
from pollwise.outbox.publishers.base import Publisher
from pollwise.outbox.records import Record
from pollwise.runtime.events import BreakerChanged
from tests.outbox.relays import Bench


def test_a_breaker_keeps_attempts_while_the_downstream_is_down() -> None:
    bench = Bench()
    attempts: dict[int, int] = {}
    up = False

    async def main() -> None:
        nonlocal up
        outbox = bench.outbox()

        @outbox.handle(
            "*", retry=Retry.fixed("1s", attempts=3), breaker=Breaker(failures=3, delay="30s")
        )
        async def publish(record: Record) -> None:
            attempts[record.payload] = record.attempt
            if not up:
                raise OSError("down")
            bench.calls.append(("publish", record.payload))

        for number in range(20):
            await bench.store.put(NewRecord("k", number, f"key-{number}"))
        async with outbox.running():
            await bench.clock.advance(25)
            up = True
            await bench.clock.advance(60)
        assert sorted(bench.payloads("publish")) == list(range(20))
        assert (await bench.store.stats()).dead == 0
        assert [e.state for e in bench.events(BreakerChanged)] == ["open", "half-open", "closed"]

    bench.run(main())


def test_trials_of_a_breaker_are_free_however_long_the_outage_lasts() -> None:
    bench = Bench()
    tries: list[int] = []
    up = False

    async def main() -> None:
        nonlocal up
        outbox = bench.outbox()

        @outbox.handle(
            "*",
            retry=Retry.fixed("1s", attempts=4),
            breaker=Breaker(failures=3, delay="5s", max_delay="10s"),
        )
        async def publish(record: Record) -> None:
            tries.append(record.attempt)
            if not up:
                raise OSError("down")

        await bench.put(1)
        async with outbox.running():
            await bench.clock.advance(3600)
            assert len(tries) > 300  # it was tried all the time
            assert set(tries) == {1, 2, 3, 4}  # three failures opened it; the trials are free
            [info] = await bench.store.records()
            assert (info.state, info.error) == ("waiting", "OSError: down")
            up = True
            await bench.clock.advance(15)
        assert (await bench.store.stats()).dead == 0
        assert not await bench.store.records()

    bench.run(main())


def test_a_record_that_always_fails_does_not_keep_a_breaker_open() -> None:
    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox()

        @outbox.handle(
            "*", retry=Retry.fixed("1s", attempts=4), breaker=Breaker(failures=2, delay="5s")
        )
        async def publish(record: Record) -> None:
            if record.kind == "poison":
                raise OSError("always")
            bench.calls.append(("publish", record.payload))

        async with outbox.running():
            await bench.put(2, key="a", kind="poison")
            await bench.clock.advance(60)  # the breaker is open, and nothing else is there to try
            assert (await bench.store.stats()).dead == 0
            for number in range(30):
                await bench.store.put(NewRecord("fine", number, f"key-{number}"))
                await bench.clock.advance(60)
            assert bench.payloads("publish") == list(range(30))
            assert (await bench.store.stats()).dead == 1  # what counted used up its attempts

    bench.run(main())


@pytest.mark.parametrize("relays", [1, 4])
@pytest.mark.parametrize("plain", [True, False], ids=["function", "publisher"])
def test_the_defaults_survive_an_outage_of_ten_minutes(plain: bool, relays: int) -> None:
    bench = Bench()

    class Broker(Publisher[None]):
        async def _open(self) -> None:
            return None

        async def _send(self, client: None, record: Record, message: Message) -> None:
            if bench.clock.now() < down_until:
                tries.append(record.id)
                raise OSError("the broker is down")
            bench.calls.append(("publish", record.payload))

        async def _close(self, client: None) -> None:
            return None

        def _explained(self, error: Exception) -> PublishError:
            return PublishError(str(error))

    down_until = 0.0
    tries: list[str] = []

    async def main() -> None:
        nonlocal down_until
        down_until = bench.clock.now() + 600
        async with AsyncExitStack() as stack:
            for number in range(relays):
                outbox = bench.outbox(relay=f"relay-{number}", seed=number)
                broker = Broker("broker", "broker", (), {"clock": bench.clock})

                async def publish(record: Record, broker: Broker = broker) -> None:
                    await broker(record)

                outbox.handle("*")(publish if plain else broker)
                await stack.enter_async_context(outbox.running())
            for number in range(50):
                await bench.store.put(NewRecord("order.placed", number, f"key-{number % 20}"))
            await bench.clock.advance(800)
        assert sorted(bench.payloads("publish")) == list(range(50))
        assert (await bench.store.stats()).dead == 0
        if not plain:  # each relay's breaker tries one record at a time
            assert len(tries) < relays * (64 + 5 + 40)

    bench.run(main())
