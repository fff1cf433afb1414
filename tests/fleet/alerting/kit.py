"""Shared by the tests of alerts: a channel that records its notices, and probes with a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pollwise.alerts.channels.base import Channel
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Notice
from pollwise.errors import ChannelError
from pollwise.fleet import Fleet, ProbeContext, Reading, Target
from pollwise.runtime.clock import VirtualClock
from tests.fleet.world import fleet_for


class Noted(Channel):
    """Records its notices with the time; fails while it has an `error`."""

    def __init__(self, name: str = "ops", **options: Any) -> None:
        super().__init__(name, options)  # type: ignore[arg-type]
        self.sent: list[tuple[float, Notice]] = []
        self.error: ChannelError | None = None
        self.refused = 0

    async def _send(self, notice: Notice) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            self.refused += 1
            raise self.error
        self.sent.append((asyncio.get_running_loop().time(), notice))

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(notice.target, notice.event) for _, notice in self.sent]

    def of(self, event: str) -> list[Notice]:
        return [notice for _, notice in self.sent if notice.event == event]


class Switches:
    """Answers of targets by their names: a reading, or an exception that is raised."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.polls: dict[str, int] = {}

    async def __call__(self, target: Target, context: ProbeContext) -> object:
        self.polls[target.name] = self.polls.get(target.name, 0) + 1
        answer = self.answers.get(target.name, Reading("fine"))
        if callable(answer):
            answer = answer(context)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def fail(self, *names: str) -> None:
        self.answers |= dict.fromkeys(names, ConnectionError("no answer"))

    def restore(self, *names: str) -> None:
        for name in names:
            del self.answers[name]


def fleet_with(clock: VirtualClock, *channels: Channel, to: Any = None, **given: Any) -> Fleet:
    """A fleet whose rules go to all of these channels."""
    alerts = Alerts(channels, to=[each.name for each in channels] if to is None else to)
    fleet = fleet_for(clock, **given)
    fleet.alerts = alerts
    return fleet


async def until(holds: Callable[[], Any], within: float = 600.0) -> None:
    """Wait until a condition holds, in the time of the event loop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not holds():
        if loop.time() > end:
            raise AssertionError("it did not happen in time")
        await asyncio.sleep(0.05)
