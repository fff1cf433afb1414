"""What hints cost the writers: NOTIFY takes a lock at commit that all writers of a database share.

Only Pollwise, with one job per put and so one transaction each: the worst case. With hints as users
have them; without hints; and, to show what the limit on their rate saves, with a NOTIFY in each
put. A worker of another kind listens meanwhile, because a NOTIFY without listeners costs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import common
from benchmarks.common import heading, median, number
from benchmarks.queue_sections.kit import Bench, Setup
from benchmarks.queue_sections.rates import put_rate

WAYS = {"hints": "", "every put": "hints=each", "none": "hints=off"}


def measure_notify(
    bench: Bench, setup: Setup, writers: Sequence[int], seconds: float, runs: int
) -> dict[str, dict[str, float]]:
    """The puts a second of all writers together, by synchronous_commit, way and writers."""
    found: dict[str, dict[str, float]] = {}
    for commit in ("off", "on"):
        bench.postgres.execute(f"ALTER SYSTEM SET synchronous_commit = '{commit}'")
        bench.postgres.execute("SELECT pg_reload_conf()")
        for count in writers:
            rates: dict[str, list[float]] = {}
            for turn in range(runs):
                for what in WAYS if turn % 2 == 0 else reversed(WAYS):
                    with bench.guard(setup, f"NOTIFY, {count} writers"):
                        way = replace(setup, way=WAYS[what])
                        listener = replace(setup, way="kind=other")
                        guess = 3_000 if commit == "off" else 1_500
                        rates.setdefault(what, []).append(
                            put_rate(bench, way, 1, guess, seconds, count, listener)
                        )
            for what, values in rates.items():
                found.setdefault(f"synchronous_commit {commit}, {count}", {})[what] = median(values)
    bench.postgres.execute("ALTER SYSTEM RESET synchronous_commit")
    bench.postgres.execute("SELECT pg_reload_conf()")
    bench.facts["notify"] = found
    show_notify(found)
    return found


def show_notify(found: dict[str, dict[str, float]]) -> None:
    heading("NOTIFY's cost: Pollwise's puts a second on Postgres, one job a put")
    print("All writers together; `hints` by default, `every put` without their limit, or `none`.\n")
    rows = []
    for name, rates in found.items():
        none = rates.get("none", float("nan"))
        cells = [number(rates[what]) if what in rates else "-" for what in WAYS]
        shares = [f"{rates[what] / none:.2f}" for what in ("hints", "every put") if what in rates]
        rows.append([f"{name} writers", *cells, *shares])
    common.table(["", *WAYS, "hints ÷ none", "every ÷ none"], rows)
