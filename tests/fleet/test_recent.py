"""The last readings of a target are kept packed, and survive a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pollwise.fleet import Fleet, FleetRunOptions, Target
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.recent import (
    RECENT_MAX,
    PastReading,
    as_text,
    from_text,
    past_readings,
    recorded,
)
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events


def test_the_last_readings_are_kept_in_order() -> None:
    given = [
        PastReading(1_700_000_000.25 + 37.0 * n, n % 3 > 0, n % 5 == 0, 0.0123 * n, 60.0 * n)
        for n in range(RECENT_MAX + 7)
    ]
    recent = b""
    for each in given:
        recent = recorded(recent, each)
    found = past_readings(from_text(as_text(recent)))
    assert len(found) == RECENT_MAX
    for one, kept in zip(given[-RECENT_MAX:], found, strict=True):
        assert (kept.ok, kept.changed) == (one.ok, one.changed)
        assert kept.at == pytest.approx(one.at, abs=0.5)
        assert kept.latency == pytest.approx(one.latency, rel=1e-3)
        assert kept.wait == pytest.approx(one.wait, rel=1e-3)
    assert found[-1].at == given[-1].at
    assert len(as_text(recent)) < 400


def test_extreme_times_are_clipped() -> None:
    year = 365 * 86400.0
    recent = recorded(b"", PastReading(1e9, True, False, -1.0, 10 * year))
    recent = recorded(recent, PastReading(1e9 - 5.0, False, False, year, -2.0))
    first, last = past_readings(recent)
    assert (first.at, last.at) == (1e9 - 5.0, 1e9 - 5.0)  # the clock was set back
    assert first.latency == 0.0
    assert first.wait > 40 * 86400
    assert (last.wait, last.ok) == (0.0, False)


@pytest.mark.parametrize(
    "text", [None, 3, "", "é", "AAAA", as_text(b"\0" * 8), as_text(b"\xff" * 15)]
)
def test_anything_else_counts_as_no_readings(text: object) -> None:
    assert past_readings(from_text(text)) == []


def test_a_fleet_records_its_polls_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock(1_700_000_000.0)
    polls = 0

    async def probe(target: Target) -> str:
        nonlocal polls
        polls += 1
        await clock.sleep(0.25)
        if polls == 2:
            raise ConnectionError("refused")
        return "one" if polls < 4 else "two"

    async def ran(seconds: float) -> list[PastReading]:
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
        fleet = Fleet(
            FleetRunOptions(signals=False, seed=1), store=store, clock=clock,
            events=Events(quiet=True),
        )  # fmt: skip
        fleet.add(Target("a", as_probe(probe), interval="60s", group="pages"))
        running = asyncio.ensure_future(fleet.run())
        await clock.advance(seconds)
        fleet.stop()
        await running
        [saved] = await store.load(["a"])
        assert (saved.type, saved.group) == ("function", "pages")
        await store.close()
        return past_readings(from_text(saved.more.get("recent")))

    async def main() -> None:
        first = await ran(200.0)
        assert [(each.ok, each.changed) for each in first][:4] == [
            (True, False), (False, False), (True, False), (True, True),
        ]  # fmt: skip
        assert all(each.latency == pytest.approx(0.25, rel=1e-3) for each in first)
        assert first[0].wait == pytest.approx(60.0, abs=1.0)
        assert first[1].wait < 10.0  # a quick poll confirms the failure
        again = await ran(130.0)
        assert len(again) > len(first)
        assert again[0].at == pytest.approx(first[0].at, abs=1.0)

    clock.run(main())
