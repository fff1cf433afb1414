"""`pollwise fleet history`: what people and scripts see of the past."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from pollwise.fleet.history.tracker import TargetTracker
from pollwise.fleet.history.values import Period
from pollwise.fleet.stores.base import SavedTarget, SaveExtras
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from tests.cli.console import good, pollwise
from tests.cli.fleets import STORE

DAY = 86400.0


def followed(name: str, days: float, outage: tuple[float, float] | None) -> TargetTracker:
    """Polls every five minutes until now. outage: seconds before now."""
    now = time.time()
    at, failing, count = now - days * DAY, None, 0
    tracker = TargetTracker(name, int(at * 1000))
    while at <= now:
        ok = outage is None or not now - outage[0] <= at < now - outage[1]
        failing, count = (None, 0) if ok else (failing or at, count + 1)
        tracker.polled(
            at, 0.2, ok=ok, changed=False, value="7", failing_since=failing,
            down_since=failing if count > 2 else None, error="OSError: \x1b[31mno answer",
            planned=at + 300, slack=30.0, covered=None,
        )  # fmt: skip
        at += 300
    return tracker


@pytest.fixture(autouse=True)
def store(folder: object) -> None:
    async def made() -> None:
        store = SqliteFleetStore("fleet.db")
        trackers = [followed("well", 3, None), followed("shop", 3, (7200, 3600))]
        for each in trackers:
            rows = each.take()
            extras = SaveExtras(
                [row for row in rows if isinstance(row, Period)],
                [row for row in rows if not isinstance(row, Period)],
            )
            saved = SavedTarget(each.target, more={"history": each.kept()})
            await store.save([saved], extras)
        await store.save([SavedTarget("new")])
        await store.close()

    asyncio.run(made())


def test_the_history_of_a_target_for_people() -> None:
    shown = good("fleet", "history", "shop", "--store", STORE).out
    lines = shown.splitlines()
    assert lines[0].startswith("shop has been up for ")
    assert lines[1].split() == ["window", "uptime", "down", "maintenance", "observed"]
    assert re.fullmatch(r"24h +9[567]\.\d\d% +(1h 0\dm|5\dm \d\ds) +– +1d 0[01]h", lines[2])
    assert "▂ up, █ down, ▒ maintenance, · unknown" in shown
    strip = next(line for line in lines if line.startswith("48 hours"))
    assert strip.count("█") in (1, 2, 3)
    assert strip.count("▂") >= 45
    assert "latency p50" in shown
    assert "value 7 to 7, mean 7" in shown
    assert "down since" in shown
    assert "no answer" in shown
    assert "\x1b" not in shown


def test_the_history_of_a_target_for_scripts() -> None:
    found = good("fleet", "history", "shop", "--since", "24h", "--store", STORE, "--json").json()
    [incident] = found["incidents"]
    assert incident["lasted"] == pytest.approx(3600, abs=600)
    assert found["windows"]["7d"]["down"] == pytest.approx(incident["lasted"], abs=1)
    assert found["uptime"] == pytest.approx(1 - incident["lasted"] / 90_000, abs=0.01)
    assert good("fleet", "history", "new", "--store", STORE).out == "new was never polled\n"
    file = '[[target]]\nname = "newer"\ntype = "tcp"\naddress = "h:1"\n'
    Path("fleet.toml").write_text(file, "utf-8")
    assert good("fleet", "history", "newer", "--store", STORE).out == "newer was never polled\n"
    assert good("fleet", "history", "newer", "--store", STORE, "--json").json()["state"] is None


def test_the_uptimes_of_all_targets_the_worst_first() -> None:
    lines = good("fleet", "history", "--all", "--store", STORE).out.splitlines()
    assert [line.split()[0] for line in lines] == ["target", "shop", "well", "new"]
    assert lines[2].split()[-4:] == ["100%"] * 4
    assert lines[3].split()[1:] == ["new", "–", "–", "–", "–", "–"]
    found = good("fleet", "history", "--all", "--store", STORE, "--json").json()
    assert {each["name"]: each["state"] for each in found} == {
        "shop": "up", "well": "up", "new": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name one target, or give --all"),
        (("shop", "--all"), "name one target, or give --all"),
        (("shop", "--since", "200d"), "--since = '200d' is above 100d"),
        (("shop", "--since", "x"), "--since"),
        (("shpo",), "this fleet has no target 'shpo'; did you mean 'shop'?"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str) -> None:
    result = pollwise("fleet", "history", *words, "--store", STORE)
    assert result.code != 0
    assert said in result.err
