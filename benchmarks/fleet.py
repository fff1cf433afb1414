"""A fleet: how long changes stay unseen, what scheduling costs, and how fast its probes are.

    python benchmarks/fleet.py [DIR] [--quick] [--json FILE]

(a) unseen time at equal budgets of polls, on the traces in DIR (default: $POLLWISE_TRACES)
distributed over 200 targets, and on synthetic ones; (b) CPU time of a poll and memory of a target,
compared with APScheduler and a bare asyncio task per target; (c) HTTP probes a second, compared
with a bare client loop; (d) a file of 100,000 targets: start, reload, commands.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, Plain  # noqa: E402
from benchmarks.fleet_sections import files, freshness, http, scheduler  # noqa: E402


def main() -> None:
    options = common.options(__doc__ or "", traces=True)
    folder = options.folder or common.traces_folder()
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    others = common.Others()
    facts: Plain = {"machine": machine, "versions": versions}
    goals: list[Goal] = []
    for measured in (
        freshness.measure(folder, options.quick),
        scheduler.measure(options.quick),
        http.measure(options.quick),
        files.measure(options.quick),
    ):
        facts |= measured[0]
        goals += measured[1]
    facts["others_busy"] = others.show()
    common.finish(facts, goals, options.json)


if __name__ == "__main__":
    main()
