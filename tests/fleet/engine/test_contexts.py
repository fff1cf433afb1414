"""Context variables: no probe sees what another poll has set."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pollwise.fleet import Target
from tests.fleet.world import SAME, fleet_for, running
from tests.support.kit import virtually

owner: ContextVar[str] = ContextVar("owner", default="nobody")


def test_no_poll_sees_a_value_of_another() -> None:
    found: dict[str, list[str]] = {}

    async def main(clock: Any) -> None:
        def note(target: Target) -> None:
            found.setdefault(target.name, []).append(owner.get())
            owner.set(target.name)

        async def at_once(target: Target, context: object) -> object:
            note(target)
            return SAME

        async def waits(target: Target, context: object) -> object:
            note(target)
            await clock.sleep(0.5)
            assert owner.get() == target.name
            return SAME

        async def fails(target: Target, context: object) -> object:
            note(target)
            await clock.sleep(0.5)
            raise OSError("on purpose")

        async def hangs(target: Target, context: object) -> object:
            note(target)
            await clock.sleep(60)
            return SAME

        fleet = fleet_for(clock, concurrency=3)
        for probe in (at_once, waits, fails, hangs):
            for number in range(5):
                name = f"{probe.__name__} {number}"
                fleet.add(Target(name, probe, "5s", timeout="2s"))
        async with running(fleet):
            await clock.advance(120)

    virtually(main)
    assert len(found) == 20
    assert all(len(values) > 1 for values in found.values())
    assert {value for values in found.values() for value in values} == {"nobody"}
