"""What scheduling a poll costs, by the number of targets, and the memory of a target.

CPU time, not wall time, because that is reliable on a busy machine. `scheduling` is only the
scheduler: it finds the next target, asks its pacer, and plans its next time. `fleet` includes the
event loop, task switches, deadlines and a probe that answers at once; `tasks` is a bare asyncio
task per target on the same virtual loop, without deadlines, limits, learning or state. APScheduler
uses the machine's clock, so it runs in real time, at no more than 500 jobs a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import common
from benchmarks.common import Goal, Plain, heading, number, table

DRIVERS = common.HERE / "fleet_peers"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
#: The maximum number of targets of a driver: with more, its start takes minutes.
MOST = {"apscheduler 3": 100_000, "apscheduler 4": 10_000}
#: A run that takes longer is ended, in seconds.
PATIENCE = 240.0
POLLS, POLLS_QUICK = 100_000, 20_000
SECONDS = 5.0


def child(python: Path | str, script: str, *arguments: object) -> Plain | None:
    """What a driver measured; None if it took too long."""
    command = [str(python), str(DRIVERS / script), *map(str, arguments)]
    try:
        done = subprocess.run(
            command, cwd=common.ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(map(str, arguments))}\n{done.stderr}")
    found: Plain = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(quick: bool) -> tuple[Plain, list[Goal]]:
    sizes = SIZES[:3] if quick else SIZES
    facts: dict[str, dict[int, Plain]] = {}
    for size in sizes:
        _ours(facts, size, POLLS_QUICK if quick else POLLS)
        _peers(facts, size, quick)
    _show_cost(facts, sizes)
    _show_memory(facts, sizes)
    return {"scheduler": facts}, _goals(facts)


def _ours(facts: dict[str, dict[int, Plain]], size: int, polls: int) -> None:
    even = size / 10.0  # the budget at which each is polled every ten seconds
    for name, script, arguments in (
        ("scheduling", "ours.py", ("cycle", size, polls)),
        ("scheduling, with a budget", "ours.py", ("cycle", size, polls, even)),
        ("fleet", "ours.py", ("run", size, polls)),
        ("tasks", "tasks.py", ("run", size, polls)),
    ):
        found = child(sys.executable, script, *arguments)
        if found is not None:
            facts.setdefault(name, {})[size] = found


def _peers(facts: dict[str, dict[int, Plain]], size: int, quick: bool) -> None:
    for name, most in MOST.items():
        if size > (1_000 if quick else most):
            continue
        peer = name.replace(" ", "")
        found = child(common.peer(peer), f"{peer}.py", "run", size, SECONDS)
        if found is not None:
            facts.setdefault(name, {})[size] = found


def _show_cost(facts: dict[str, dict[int, Plain]], sizes: tuple[int, ...]) -> None:
    heading("CPU time of a poll, in µs, by the number of targets")
    head = ("", *(f"{size:,}" for size in sizes))
    rows = [(name, *(_cost(found.get(size)) for size in sizes)) for name, found in facts.items()]
    table(head, rows)
    heading("The agenda alone: operations (put, take) a second of CPU time")
    cells = []
    for size in sizes:
        found = facts["scheduling"].get(size)
        cells.append("-" if found is None else number(found["operations"] / found["agenda"]))
    table(head, [("agenda", *cells)])


def _show_memory(facts: dict[str, dict[int, Plain]], sizes: tuple[int, ...]) -> None:
    heading("Memory of a target, in bytes (resident), and the CPU time to start it, in µs")
    rows = []
    for name, found in facts.items():
        if any("memory" in each for each in found.values()):
            cells = [_memory(found.get(size)) for size in sizes]
            rows.append((name, *cells))
    table(("", *(f"{size:,}" for size in sizes)), rows)


def _cost(found: Plain | None) -> str:
    return "-" if not found or not found["polls"] else number(per_poll(found))


def _memory(found: Plain | None) -> str:
    return "-" if not found else f"{found['memory']:,.0f} / {found['start'] * 1e6:.0f}"


def per_poll(found: Plain) -> float:
    """The CPU time of a poll, in µs."""
    return float(found["cpu"]) / float(found["polls"]) * 1e6


def _goals(facts: dict[str, dict[int, Plain]]) -> list[Goal]:
    name = "scheduling, with a budget"  # the more expensive one
    goals = [Goal("scheduling a poll, 10⁵ targets", per_poll(facts[name][10**5]), 30.0, "µs")]
    if 10**6 in facts[name]:
        large = per_poll(facts[name][10**6])
        goals.append(Goal("scheduling a poll, 10⁶ targets", large, 60.0, "µs"))
        goals.append(Goal("scheduling, 10⁶ ÷ 10⁵ targets", large / goals[0].measured, 2.0, "×"))
    goals.append(
        Goal("memory of a target, 10⁵ targets", facts["fleet"][10**5]["memory"], 1536.0, "bytes")
    )
    return goals
