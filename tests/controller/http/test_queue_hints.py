"""What listeners of a raw queue are told, and when."""

from __future__ import annotations

import asyncio

from pollwise.controller.http.queues.hints import HintExchange, HintListener, hint_message
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events, HintsLost, HintsProven


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
