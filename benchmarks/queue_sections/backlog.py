"""How jobs a second, and the time of one claim, depend on the number of waiting jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks import common
from benchmarks.common import heading, median, number
from benchmarks.queue_sections.kit import Bench, Setup, counts, workers

#: The maximum number of jobs that a peer fills by itself, and the time for it in seconds.
FILL_MOST = 100_000
FILL_SECONDS = 25.0
#: Jobs a second are measured from this backlog on: a smaller one is empty too soon.
RATED = 10_000
#: The number of claims that are timed, and of jobs in each.
CLAIM_LIMIT = 100


def measure_backlog(
    bench: Bench, sizes: Sequence[int], seconds: float, times: int
) -> dict[str, dict[int, float]]:
    """Jobs a second over a fixed time at each backlog; for Pollwise also the time of single claims.

    seconds: how long each rate is measured; 0 measures none.
    """
    rates: dict[str, dict[int, float]] = {}
    claims: dict[str, dict[int, list[float]]] = {}
    for setup in bench.main:
        for size in sizes:
            rated = seconds > 0 and size >= RATED
            if not affordable(setup, size) or not (setup.ours or rated):
                continue
            with (
                bench.guard(setup, f"a backlog of {size:,}"),
                bench.ground(setup, size, once=True) as url,
            ):
                if setup.ours:
                    claims.setdefault(setup.name, {})[size] = claim_times(bench, setup, url, times)
                if rated:
                    rates.setdefault(setup.name, {})[size] = rate(bench, setup, url, seconds, size)
    found = {
        name: {size: median(each) for size, each in sizes_of.items()}
        for name, sizes_of in claims.items()
    }
    facts: dict[str, Any] = {"rates": rates, "claims": claims, "claim": found}
    bench.facts["backlog"] = facts
    if rates:
        show_rates(rates, [size for size in sizes if size >= RATED])
    show_claims(found, sizes)
    return found


def affordable(setup: Setup, size: int) -> bool:
    """True for a million jobs if one can be multiplied in the store, or if the peer puts fast."""
    return setup.ours or bool(setup.multiply) or size <= min(FILL_MOST, setup.pace * FILL_SECONDS)


def claim_times(bench: Bench, setup: Setup, url: str, times: int) -> list[float]:
    with bench.child(setup, "claim", url, "--limit", CLAIM_LIMIT, "--times", times) as child:
        return list(child.hear(timeout=120)["seconds"])


def rate(bench: Bench, setup: Setup, url: str, seconds: float, most: int) -> float:
    """Jobs a second from the first job on, for this time or until nothing is left."""
    with workers(bench, setup, url, 1) as crew:
        crew[0].tell("go")
        limit = time.monotonic() + seconds + 20
        first = 0.0
        while not first or time.monotonic() < first + seconds:
            time.sleep(0.05)
            handled, first, _ = counts(crew)
            if handled >= most:
                break
            if time.monotonic() > limit:
                raise TimeoutError(f"no job within {seconds + 20:g} s")
        handled, first, last = counts(crew)
    return (handled - 1) / max(last - first, 1e-9)


def show_rates(rates: dict[str, dict[int, float]], sizes: Sequence[int]) -> None:
    heading(f"Jobs a second with a backlog of {', '.join(f'{size:,}' for size in sizes)}")
    print("One process. Larger backlogs of peers are one job of theirs, multiplied by SQL or Lua;")
    print(
        "databases are vacuumed and analysed first. `-`: the peer would take too long to fill it.\n"
    )
    show(rates, sizes, 1)


def show_claims(claims: dict[str, dict[int, float]], sizes: Sequence[int]) -> None:
    heading(f"The time of one claim of {CLAIM_LIMIT} by Pollwise, in ms, the median")
    show(claims, sizes, 1000)


def show(found: dict[str, dict[int, float]], sizes: Sequence[int], scale: float) -> None:
    rows = []
    for name, values in found.items():
        cells = [number(values[size] * scale) if size in values else "-" for size in sizes]
        known = [values[size] for size in sizes if size in values]
        rows.append([name, *cells, f"{known[-1] / known[0]:.2f}"])
    common.table(["", *(f"{size:,}" for size in sizes), "last ÷ first"], rows)
