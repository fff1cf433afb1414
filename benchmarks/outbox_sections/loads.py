"""Records a second: from a backlog, at given rates, and the highest rate that can be sustained.

Latency is from just before the put to the start of the handler: it includes the put's commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import common
from benchmarks.common import heading, median, number, percentile
from benchmarks.queue_sections.kit import (
    Bench,
    Peer,
    Setup,
    counts,
    drain,
    server_cpu,
    workers,
)

#: A rate is sustained if 99 % of the records of a window were handled within this, in ms, …
P99 = 250.0
#: … and the writer reached this share of it.
WRITTEN = 0.97
#: The factor by which a rate is raised or lowered until it is no longer sustained, or is.
STEP = 1.5
#: The lowest rate that is tried, in records a second.
LEAST = 50.0
#: How long the records that a rate left behind may take, in seconds.
PATIENCE = 120.0


@dataclass(frozen=True)
class Loaded:
    """The results of a writer and some relays at one rate. Latencies in ms."""

    rate: float
    put: float
    handled: float
    p50: float
    p99: float
    #: CPU time of one record, in µs.
    relay_cpu: float
    server_cpu: float
    writer_cpu: float

    @property
    def cpu(self) -> float:
        return self.relay_cpu + self.server_cpu + self.writer_cpu

    @property
    def written(self) -> bool:
        return self.put >= self.rate * WRITTEN

    @property
    def sustained(self) -> bool:
        return self.written and self.p99 <= P99


@dataclass
class Rates:
    """The results of a number of relay processes of a setup. backlog: records/s without a
    writer."""

    backlog: list[float] = field(default_factory=list)
    relay_cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    at: dict[int, Loaded] = field(default_factory=dict)
    highest: Loaded | None = None
    by_writer: bool = False

    @property
    def sustained(self) -> float:
        """The highest sustained rate, in records a second; 0 if none was sustained."""
        return self.highest.handled if self.highest is not None else 0.0


Found = dict[str, dict[int, Rates]]


@dataclass(frozen=True)
class Size:
    """seconds: of a load. runs: of the backlog. narrow: steps to narrow down the highest rate."""

    processes: tuple[int, ...]
    rates: tuple[int, ...]
    seconds: float
    runs: int
    backlog_seconds: float
    narrow: int


def measure_loads(bench: Bench, size: Size) -> Found:
    found: Found = {}
    for setup in bench.setups:
        # For the other peers one relay is enough, so that the whole run does not take too long.
        for count in size.processes if setup.strong else (1,):
            rates = Rates()
            with bench.guard(setup, f"{count} relays"):
                measure_one(bench, setup, count, size, rates)
            if rates.backlog:
                found.setdefault(setup.name, {})[count] = rates
    bench.facts["loads"] = {
        name: {count: plain(rates) for count, rates in each.items()} for name, each in found.items()
    }
    show_loads(found, size)
    return found


def plain(rates: Rates) -> dict[str, Any]:
    return {
        "backlog": rates.backlog,
        "relay_cpu": rates.relay_cpu,
        "server_cpu": rates.server_cpu,
        "at": {rate: vars(loaded) for rate, loaded in rates.at.items()},
        "highest": rates.highest and vars(rates.highest),
        "by_writer": rates.by_writer,
    }


def measure_one(bench: Bench, setup: Setup, count: int, size: Size, rates: Rates) -> None:
    records = max(int(setup.pace * size.backlog_seconds), 500)
    for _ in range(size.runs):
        with (
            bench.ground(setup, records) as url,
            workers(bench, setup, url, count) as crew,
        ):
            run = drain(bench, setup, url, crew, records, PATIENCE)
        rates.backlog.append(run.rate)
        rates.relay_cpu.append(run.cpu_per_job * 1e6)
        rates.server_cpu.append(run.server_cpu_per_job * 1e6)
    if setup.aside:
        return
    reached = max(rates.backlog)
    with (
        bench.ground(setup) as url,
        workers(bench, setup, url, count) as crew,
        bench.child(setup, "putter", url) as writer,
    ):
        writer.hear()
        for child in crew:
            child.tell("go")
        measured = Load(crew, writer, server_cpu(bench, setup))
        measured.at(50, 1.0)  # to warm up
        for rate in size.rates:
            if rate <= reached * STEP:  # above, it would only fall behind
                rates.at[rate] = measured.at(rate, size.seconds)
        known = [each for each in rates.at.values() if each.sustained]
        start = max((each.rate for each in known), default=reached / 2)
        find_highest(measured, start, size, rates)


def find_highest(measured: Load, start: float, size: Size, rates: Rates) -> None:
    """Raise the rate until it is not sustained, then narrow it down."""
    known = {each.rate: each for each in rates.at.values()}

    def sustained(rate: float) -> bool:
        loaded = known.get(rate) or measured.at(rate, size.seconds)
        if not loaded.sustained:  # try again: a short stall of the machine is not a limit
            again = measured.at(rate, size.seconds)
            loaded = again if again.sustained else loaded
        known[rate] = loaded
        if loaded.sustained and (rates.highest is None or rate > rates.highest.rate):
            rates.highest = loaded
        return loaded.sustained

    low, high = start, start * STEP
    while not sustained(low) and low > LEAST:
        low, high = low / STEP, low
    while sustained(high):
        low, high = high, high * STEP
    for _ in range(size.narrow):
        middle = (low + high) / 2
        low, high = (middle, high) if sustained(middle) else (low, middle)
    rates.by_writer = not known[high].written


@dataclass(frozen=True)
class Load:
    """A writer and some relays, and the CPU time that their server has used so far."""

    crew: Sequence[Peer]
    writer: Peer
    server: Callable[[], float]

    def at(self, rate: float, seconds: float) -> Loaded:
        """Put at a rate, and wait until all records are handled."""
        for child in self.crew:
            child.ask("forget")
        before = self._cpu()
        put = self.writer.ask(f"load {rate} {seconds}", timeout=seconds + 60)["put"]
        limit = time.monotonic() + PATIENCE
        handled, first, last = counts(self.crew)
        while handled < put:
            if time.monotonic() > limit:
                raise TimeoutError(f"{rate:.0f} records/s: {handled} of {put} {PATIENCE:g} s later")
            time.sleep(0.02)
            handled, first, last = counts(self.crew)
        used = [(now - then) / max(put, 1) for now, then in zip(self._cpu(), before, strict=True)]
        if handled > put:
            raise RuntimeError(f"{put} records were put and {handled} handled")
        answers = [child.ask("latencies")["latencies"] for child in self.crew]
        latencies = [each * 1000 for answer in answers for each in answer]
        passed = max(last - first, 1e-9)
        return Loaded(
            rate,
            put / seconds,
            (handled - 1) / passed,
            percentile(latencies, 0.5),
            percentile(latencies, 0.99),
            *(each * 1e6 for each in used),
        )

    def _cpu(self) -> tuple[float, float, float]:
        return sum(child.cpu() for child in self.crew), self.server(), self.writer.cpu()


# Results


def show_loads(found: Found, size: Size) -> None:
    heading("Records a second, empty handler: from a backlog, and the highest rate sustained")
    print("`backlog`: records/s of relays that handle a backlog, the best of the runs;")
    print("`relay` and `server`: the CPU time of one of these records, in µs, median. For the")
    print(
        f"others, one writer commits what is due every 10 ms in a transaction, {size.seconds:g} s"
    )
    print(f"long. A rate is sustained when p99 is at most {P99:g} ms. p50 and p99 in ms,")
    print("from just before the put to the start of the handler. × is Pollwise's figure divided by")
    print("the peer's. (w): the writer reached its limit before the relays. -: not measured,")
    print("because it would only fall behind; or no rate was sustained. A rate that fails is")
    print("tried twice.\n")
    rows = []
    ours = found.get("pollwise postgres", {})
    for name, each in found.items():
        for count, rates in each.items():
            mine = ours.get(count)
            backlog = max(rates.backlog)
            cells = [f"{name.removesuffix(' postgres')}, {count}"]
            cells += [number(backlog), ratio(max(mine.backlog) if mine else None, backlog)]
            cells += [number(median(cpu)) for cpu in (rates.relay_cpu, rates.server_cpu)]
            for rate in size.rates:
                loaded = rates.at.get(rate)
                cells += (
                    [number(loaded.p50), number(loaded.p99)] if loaded is not None else ["-", "-"]
                )
            best = rates.highest
            if best is None:
                cells += ["-", "-", "-", "-"]
            else:
                shown = number(best.handled) + (" (w)" if rates.by_writer else "")
                by = ratio(mine.sustained if mine else None, best.handled)
                cells += [shown, by, number(best.p50), number(best.p99)]
            rows.append(cells)
    at = [cell for rate in size.rates for cell in (f"at {rate:,}: p50", "p99")]
    head = ["relay processes", "backlog", "×", "relay", "server", *at, "highest", "×", "p50", "p99"]
    common.table(head, rows)
    show_cpu(found, size)


def show_cpu(found: Found, size: Size) -> None:
    heading("CPU time of a record while it is written and handled, in µs, one relay")
    print(
        "Relay, server and writer share the cores of this machine: the highest rate is bounded by"
    )
    print("the sum of the three, `all`, and a relay process by its own share. If writers run on")
    print("other machines, only `relay` and `server` count. × is the peer's figure")
    print("divided by Pollwise's.\n")
    ours = found.get("pollwise postgres", {}).get(1)
    rows = []
    for name, each in found.items():
        rates = each.get(1)
        for what, loaded in points(rates, size).items() if rates is not None else ():
            mine = points(ours, size).get(what) if ours is not None else None
            cells = [name.removesuffix(" postgres"), f"{what} ({number(loaded.handled)}/s)"]
            cells += [number(loaded.writer_cpu), number(loaded.server_cpu)]
            relay, whole = (mine.relay_cpu, mine.cpu) if mine is not None else (None, None)
            cells += [number(loaded.relay_cpu), ratio(loaded.relay_cpu, relay)]
            cells += [number(loaded.cpu), ratio(loaded.cpu, whole)]
            rows.append(cells)
    common.table(["", "at", "writer", "server", "relay", "×", "all", "×"], rows)


def points(rates: Rates, size: Size) -> dict[str, Loaded]:
    """The measurements of a setup, by name."""
    found = {f"{rate:,}": rates.at[rate] for rate in size.rates if rate in rates.at}
    return found | ({"highest": rates.highest} if rates.highest is not None else {})


def ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if not ours or not theirs else f"{ours / theirs:.2f}"
