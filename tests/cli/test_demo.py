"""`pollwise demo`: its traffic, its figures, its screen, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pollwise.cli import demo
from pollwise.cli.demo import BURST_SECONDS, IDLE_SECONDS, DemoCounts, DemoPlan, run, traffic, view
from pollwise.lab.prices import PRICES, price_named
from pollwise.settings import STRATEGIES, strategy_named
from pollwise.testing import VirtualClock
from tests.cli.console import Command, Screen, good, pollwise

ROW_KEYS = {
    "polls", "polls_empty", "found", "wasted_share", "wait_p50_s", "wait_p95_s", "dollars_a_month",
}  # fmt: skip
KEYS = {"strategy", "recipe", "seconds", "seed", "hints", "price", "jobs", "instead"} | ROW_KEYS


def plan(name: str = "adaptive", **given: Any) -> DemoPlan:
    usual = DemoPlan(demo._strategy(name, PRICES["s3-list"]), PRICES["s3-list"], 60.0, False, 7)
    return replace(usual, **given)


def seen_of(chosen: DemoPlan, folder: Path) -> DemoCounts:
    """Run the demo under a virtual clock."""
    clock = VirtualClock()
    seen = DemoCounts(clock)
    folder.mkdir(exist_ok=True)
    clock.run(run(chosen, seen, folder, live=False))
    return seen


# The traffic


@given(st.integers(0, 1000))
def test_traffic_is_the_same_for_the_same_seed(seed: int) -> None:
    one, other = (list(itertools.islice(traffic(seed), 50)) for _ in range(2))
    assert one == other
    assert one == sorted(one)
    assert one[0] == 0
    assert list(itertools.islice(traffic(seed + 1), 50)) != one


@given(st.integers(0, 200))
def test_traffic_comes_in_bursts(seed: int) -> None:
    times = list(itertools.islice(traffic(seed), 200))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    burst = 0.0
    for gap in gaps:
        if gap >= IDLE_SECONDS[0]:
            assert burst <= BURST_SECONDS[1]
            burst = 0.0
        else:
            burst += gap
    assert any(gap >= IDLE_SECONDS[0] for gap in gaps)


def test_the_demo_is_the_same_for_the_same_seed(folder: Path) -> None:
    one = seen_of(plan(), folder / "one")
    random.random()  # nobody draws from the shared generator
    two = seen_of(plan(), folder / "two")
    other = seen_of(plan(seed=8), folder / "three")
    for name in ("arrivals", "polls", "empty", "found", "waits"):
        assert getattr(one, name) == getattr(two, name)
    assert one.arrivals != other.arrivals
    assert one.arrivals == pytest.approx(
        list(itertools.takewhile(lambda at: at < 60, traffic(7))), abs=1e-6
    )


# The figures


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("hints", [False, True])
def test_every_strategy_finds_the_jobs(name: str, hints: bool, folder: Path) -> None:
    chosen = plan(name, seconds=120.0, hints=hints)
    seen = seen_of(chosen, folder)
    assert seen.seconds() == pytest.approx(120, abs=0.1)
    assert seen.polls >= seen.empty + 1
    max_interval = chosen.strategy.max_interval
    due = sum(at + max_interval * 1.2 < 120 for at in seen.arrivals)
    assert due <= seen.found <= len(seen.arrivals)
    assert len(seen.waits) == seen.found
    assert max(seen.waits) <= max_interval * 1.1 + 0.001
    if hints:
        assert max(seen.waits) < 0.2
    facts = demo._facts(chosen, seen, demo._rows(chosen, seen))
    json.dumps(facts, allow_nan=False)
    assert set(facts) == KEYS
    assert set(facts["instead"]) == {"fixed 100ms", "fixed 500ms"}
    for row in facts["instead"].values():
        assert set(row) == ROW_KEYS
        assert row["polls"] >= 120 / 0.5 - 1
        assert row["wait_p95_s"] <= 0.5


def test_adaptive_polling_saves_polls(folder: Path) -> None:
    chosen = plan(seconds=300.0)
    ours, often, seldom = demo._rows(chosen, seen_of(chosen, folder))
    assert ours.polls < 0.5 * seldom.polls < 0.5 * often.polls
    assert ours.dollars == pytest.approx(
        ours.polls / 300 * 30 * 86400 * PRICES["s3-list"].dollars, rel=1e-3
    )
    assert ours.wasted == ours.empty / ours.polls


def test_a_run_in_which_nothing_happened() -> None:
    clock = VirtualClock()
    seen = DemoCounts(clock, started=0.0, ended=0.0)
    ours, *others = demo._rows(plan(), seen)
    assert (ours.polls, ours.wasted, ours.p50, ours.dollars) == (0, 0.0, None, 0.0)
    assert [row.polls for row in others] == [0, 0]
    assert "no job arrived" in demo._comparison(ours, others[0])


# The screen


def drawn(seen: DemoCounts, chosen: DemoPlan, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=30, force_terminal=True, color_system=None)
    console.print(view(chosen, seen, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_view_has_all_its_figures_and_breaks_no_line(name: str, width: int) -> None:
    chosen = plan(name, seconds=86400, price=price_named("0.005/1000"))
    seen = DemoCounts(
        VirtualClock(), started=0.0, ended=86399.0, interval=chosen.strategy.max_interval
    )
    seen.arrivals = [float(at) for at in range(0, 86000, 2)]
    seen.waits = [1.234] * 40_000
    seen.polls, seen.empty, seen.found = 123_456, 100_000, 40_000
    seen.intervals.extend([chosen.strategy.max_interval] * 60)
    head, interval, blank, titles, ours, often, seldom, foot = drawn(seen, chosen, width)
    assert head.startswith("pollwise demo  86399 of 86400 s   43000 jobs put   hints off")
    assert interval.startswith("interval now ")
    assert interval.endswith("█")
    assert blank == ""
    assert titles.split("  ")[0] == "polling"
    for column in ("polls", "empty", "found", "wasted", "wait p50", "wait p95", "$ a month"):
        assert column in titles
    assert ours.split()[:4] == [name, "123,456", "100,000", "40,000"]
    assert often.startswith("fixed 100ms")
    assert seldom.startswith("fixed 500ms")
    assert foot.startswith("a poll: $0.005 per 1,000 polls")
    assert all(len(line) <= width for line in (head, interval, titles, ours, often, seldom, foot))


def test_the_curve_shows_the_newest_intervals() -> None:
    chosen = plan()
    seen = DemoCounts(VirtualClock(), started=0.0, ended=10.0)
    seen.intervals.extend([0.0] * 59 + [5.0])
    head, interval, *_ = drawn(seen, chosen, 60)
    assert len(head) <= 60
    assert interval.endswith("█")
    assert len(interval) == 60


# The command itself


@pytest.fixture
def scratch(folder: Path) -> Path:
    """Where the demo makes its folder."""
    path = folder / "scratch"
    path.mkdir()
    return path


def kept_in(scratch: Path) -> Path:
    """The store of the one demo that ran."""
    [folder] = scratch.iterdir()
    return folder / "demo.db"


def test_old_stores_are_deleted(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, other = (scratch / name for name in ("pollwise-demo-a", "pollwise-demo-b", "mine"))
    for path in (old, new, other):
        path.mkdir()
        (path / "demo.db").touch()
    for path in (old, other):
        os.utime(path, (1, 1))
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    demo._remove_old()
    assert sorted(path.name for path in scratch.iterdir()) == ["mine", "pollwise-demo-b"]


def test_web_shows_it_in_a_browser_while_it_runs(scratch: Path) -> None:
    env = {"TMPDIR": str(scratch)}
    with Command("demo", "--seconds", "600", "--json", "--web", env=env) as it:
        url = it.err.until(r"http://127\.0\.0\.1:\d+/once/\S+")[0]
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(url)
            assert page.status_code == 200
            assert "Overview" in page.text
            root = url.partition("/once")[0]
            live = {"Accept": "text/event-stream"}
            with browser.stream("GET", f"{root}/", headers=live) as stream:
                events = stream.iter_lines()
                next(line for line in events if line.startswith("event: main"))
                it.send(signal.SIGTERM)  # an open page does not keep it
                assert it.end() == 0
    assert json.loads(it.out.all[-1])["jobs"] >= 0
    assert list(scratch.iterdir()) == []


def test_with_json_the_last_line_is_the_summary(scratch: Path) -> None:
    with Command(
        "demo", "--seconds", "2", "--json", "--seed", "3", env={"TMPDIR": str(scratch)}
    ) as it:
        assert it.end() == 0
    (line,) = it.out.all
    assert it.err.all == []
    facts = json.loads(line)
    assert set(facts) == KEYS
    assert facts["seconds"] == pytest.approx(2, abs=0.5)
    assert facts["seed"] == 3
    assert 0 < facts["found"] <= facts["jobs"]
    assert list(scratch.iterdir()) == []


def test_the_live_view_and_the_summary_in_a_terminal(scratch: Path) -> None:
    env = {"TMPDIR": str(scratch)}
    with Screen(100, 30, "demo", "--seconds", "3", env=env) as screen:
        screen.until(r"interval now")
        assert [path.name[:14] for path in scratch.iterdir()] == ["pollwise-demo-"]
        assert screen.end() == 0
    text = "\n".join(screen.lines)
    for fragment in ("interval now", "between 100ms and 5s", "hints off", "Ctrl-C ends it"):
        assert fragment in text
    titles = next(line for line in screen.lines if line.startswith("polling"))
    assert titles.split() == [
        "polling", "polls", "empty", "found", "wasted",
        "wait", "p50", "wait", "p95", "$", "a", "month",
    ]  # fmt: skip
    for name in ("adaptive", "fixed 100ms", "fixed 500ms"):
        rows = [line for line in screen.lines if line.startswith(name)]
        assert len(rows) > 10
        assert len(rows[-1].removeprefix(name).split()) == 7
    assert "In 3 s, adaptive polling made" in text
    assert "Against fixed 100ms: " in text
    assert "\x1b[?25l" in screen.raw  # the cursor was hidden, and came back
    assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")
    assert f" web --link sqlite:///{kept_in(scratch)}" in "".join(screen.lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_ends_it_with_the_summary(
    number: signal.Signals, scratch: Path
) -> None:
    env = {"TMPDIR": str(scratch), "NO_COLOR": "1"}
    with Screen(80, 24, "demo", "--seconds", "600", env=env) as screen:
        screen.until(r"[1-9]\d* jobs put")
        screen.send(number)
        assert screen.end() == 0
    assert any(line.startswith("Against fixed 500ms: ") for line in screen.lines)
    assert "Traceback" not in screen.raw
    assert "\x1b[3" not in screen.raw  # NO_COLOR
    assert all(len(line) <= 80 or "--link" in line for line in screen.lines)
    assert kept_in(scratch).exists()


def test_a_sigterm_at_the_very_start_leaves_nothing_either(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def signalled(chosen: DemoPlan, seen: DemoCounts, folder: Path, *, live: bool) -> None:
        (folder / "demo.db").touch()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(demo, "run", signalled)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = signal.getsignal(signal.SIGTERM)
    result = pollwise("demo", "--json")
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err
    assert list(scratch.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_options_reach_the_run(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[DemoPlan] = []

    async def noted(chosen: DemoPlan, seen: DemoCounts, folder: Path, *, live: bool) -> None:
        plans.append(chosen)
        seen.ended = seen.started

    monkeypatch.setattr(demo, "run", noted)
    words = ["--strategy", "ewma", "--price", "SQS", "--hints", "--seed", "-1", "--seconds", "9.5"]
    result = good("demo", *words)
    assert plans == [DemoPlan(strategy_named("ewma"), PRICES["sqs"], 9.5, True, -1)]
    assert "too short to compare" in result.err
