"""What listeners of a raw queue are told, and when."""

from __future__ import annotations

import asyncio

import pytest

from pollwise.controller.http.queues.hints import HintExchange, HintListener, hint_message
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events, HintsLost, HintsProven
from pollwise.storage.messages import message_of


class Told(MemoryQueue):
    """A queue whose hints say whom they report to."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__("mail", clock=clock)
        self.reports: list[tuple[str, Events]] = []
        self.hints().report_to = lambda *to: self.reports.append(to)  # type: ignore[method-assign]


def test_listeners_are_stirred_when_the_way_that_news_takes_is_proven_or_lost() -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue, exchange = Told(clock), HintExchange()
        first, second = HintListener(), HintListener()
        for listener in (first, second):
            exchange.join(listener, queue)
        [(source, events)] = queue.reports
        assert source == "mail"
        for event in (HintsProven("mail", 0.1), HintsLost("mail", "cut", "wait")):
            waiting = [asyncio.ensure_future(each.next()) for each in (first, second)]
            await clock.advance(3600)
            assert not any(each.done() for each in waiting), "nothing happens by itself"
            events.emit(event)
            assert await asyncio.gather(*waiting) == [None, None]
        # Messages come first, and being woken is not forgotten for them.
        message = hint_message(1)
        first.wake()
        first.say(message)
        assert [await first.next(), await first.next()] == [message, None]
        exchange.leave(first)
        exchange.leave(second)
        await queue.close()

    clock.run(main())


CHECK = message_of("check", "forged", "n", None)
BROADCAST = message_of("broadcast", "forged", "cancelled")
POLLED = message_of("polled", "forged", "salt")
BYE = message_of("bye", "worker")
WANTS = message_of("wants", "forged", "kind")


@pytest.mark.parametrize(
    ("works", "message", "to_others", "to_itself"),
    [
        (True, CHECK, True, True),
        (True, POLLED, True, True),
        (True, BYE, True, True),
        (True, hint_message(3), True, True),
        (True, BROADCAST, False, False),
        (False, hint_message(3), True, True),
        (False, CHECK, False, True),
        (False, BROADCAST, False, False),
        (False, POLLED, False, False),
        (False, BYE, False, False),
        (False, WANTS, False, False),
        (False, "[]", False, False),
        (False, '["hint"]', False, False),
        (True, '{"proven": true}', False, False),
        (True, "x" * 10_000, False, False),
    ],
    ids=lambda given: str(given)[:7],  # the same in each process: a hint has a random name
)
def test_what_a_client_may_send(
    works: bool, message: str, to_others: bool, to_itself: bool
) -> None:
    clock = VirtualClock()

    async def main() -> None:
        queue, exchange = Told(clock), HintExchange()
        sender, other = HintListener(), HintListener()
        for listener in (sender, other):
            exchange.join(listener, queue)
        exchange.take(message, sender, works=works)
        for listener, gets in ((sender, to_itself), (other, to_others)):
            listener.wake()
            assert await listener.next() == (message if gets else None)
            exchange.leave(listener)
        await queue.close()

    clock.run(main())
