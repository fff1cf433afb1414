"""Pollwise's outbox on Postgres, compared with what Python programs use as an outbox there.

faststream-outbox and django-outbox-pattern, each in its own environment and in its best sensible
configuration: outbox_peers/*.py have it, with the reasons. All run on the same Postgres 18 on the
same machine, one after the other, with `synchronous_commit = off` and fsync on. A relay is one
process with an empty handler. Every run starts with an empty database, and checks that each record
was handled and none is left.

Differences: Pollwise keeps 1,000 keys in order. The peers have no keys and no order, so Pollwise is
also measured without keys. django-outbox-pattern keeps published records; the others delete them.

One writer process creates the load, the same for all, on the cores that server and relay use too:
so the CPU time of each is shown beside the rates. With 2 and 4 relays, only Pollwise and the best
peer are measured. The whole benchmark takes about 17 minutes: loads 11, idle 2.5, order 3.5.

    benchmarks/outbox.py --only loads,order --peers faststream-outbox
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, heading, listed, percentile  # noqa: E402
from benchmarks.outbox_sections.loads import P99, Found, Rates, Size, measure_loads  # noqa: E402
from benchmarks.outbox_sections.order import Order, measure_order  # noqa: E402
from benchmarks.queue_sections.kit import Bench, Setup  # noqa: E402
from benchmarks.queue_sections.latency import Idle, Patience, measure_idle  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

#: With its defaults; and like the peers: without keys, and with a batch as large as theirs.
OURS, WITHOUT_KEYS = "pollwise postgres", "pollwise keys=none batch=500 postgres"
_LEFT = ("SELECT count(*) FROM pollwise.outbox_records",)
SETUPS = (
    Setup("pollwise", "postgres", "", "pollwise", 20_000, left=_LEFT, strong=True),
    Setup("pollwise", "postgres", "", "pollwise", 10_000, "keys=none batch=500", left=_LEFT),
    Setup("pollwise", "postgres", "", "pollwise", 10_000, "keys=none", left=_LEFT, aside=True),
    Setup(
        "faststream-outbox", "postgres", "faststream-outbox", "faststream-outbox", 8_000,
        "workers=1 batch=500", left=("SELECT count(*) FROM outbox",),
    ),
    Setup(
        "faststream-outbox", "postgres", "faststream-outbox", "faststream-outbox", 8_000,
        "workers=4 batch=500", left=("SELECT count(*) FROM outbox",), strong=True,
    ),
    Setup(
        "faststream-outbox", "postgres", "faststream-outbox", "faststream-outbox", 800,
        "workers=1 batch=10", left=("SELECT count(*) FROM outbox",), aside=True,
    ),
    Setup(
        "django-outbox-pattern", "postgres", "django-outbox-pattern", "django-outbox-pattern", 500,
        "wait=0", left=("SELECT count(*) FROM published WHERE status = 1",),
    ),
    Setup(
        "django-outbox-pattern", "postgres", "django-outbox-pattern", "django-outbox-pattern", 500,
        "wait=1", left=("SELECT count(*) FROM published WHERE status = 1",), aside=True,
    ),
)  # fmt: skip
PEERS = tuple(dict.fromkeys(setup.peer for setup in SETUPS if not setup.ours))

NAMASTACK = """\
For comparison, Namastack Outbox (Kotlin, Spring) publishes 5,000 to 10,000 records/s with 4 to 6
instances, p99 0.2 to 0.7 s. These are the project's own figures, from another machine."""


@dataclass(frozen=True)
class Scale:
    """How much is measured: for a figure, or in a quick run."""

    loads: Size
    idle: Patience
    order: int


FULL = Scale(
    loads=Size(
        processes=(1, 2, 4), rates=(1_000, 5_000), seconds=5, runs=3, backlog_seconds=2, narrow=2
    ),
    idle=Patience(settle=10, watch=60, pause=25, rounds=2, samples=30, crew=2),
    order=1_000_000,
)
QUICK = Scale(
    loads=Size(
        processes=(1,), rates=(1_000, 5_000), seconds=1, runs=1, backlog_seconds=0.5, narrow=0
    ),
    idle=Patience(settle=3, watch=3, pause=3, rounds=1, samples=20, crew=1),
    order=10_000,
)
SECTIONS = ("loads", "idle", "order")


@dataclass
class Measured:
    """The results of the sections; empty for a section that was left out."""

    loads: Found = field(default_factory=dict)
    idle: dict[str, Idle] = field(default_factory=dict)
    order: Order | None = None


def measure(bench: Bench, scale: Scale, sections: Sequence[str]) -> Measured:
    found = Measured()
    steps: dict[str, Callable[[], Any]] = {
        "loads": lambda: measure_loads(bench, scale.loads),
        "idle": lambda: measure_idle(bench, scale.idle),
        "order": lambda: measure_order(bench, SETUPS[0], scale.order),
    }
    for name in sections:
        began = time.monotonic()
        setattr(found, name, steps[name]())
        if name == "loads":
            print(f"\n{NAMASTACK}", flush=True)
        took = time.monotonic() - began
        bench.facts.setdefault("seconds", {})[name] = took
        print(f"\n({name}: {took:.0f} s)", flush=True)
    return found


# Goals


def goals(found: Measured) -> list[Goal]:
    reached = []
    mine = found.loads.get(OURS, {}).get(1)
    if mine is not None:
        what = f"records/s sustained, one relay, p99 <= {P99:g} ms"
        reached.append(Goal(what, mine.sustained, 5_000, "records/s", least=True))
        at = mine.at.get(5_000)
        if at is not None:
            reached.append(Goal("p99 at 5,000 records/s, one relay", at.p99, P99, "ms"))
        theirs = {
            name: each[1]
            for name, each in found.loads.items()
            if not name.startswith("pollwise") and 1 in each
        }
        for ours, how in ((mine, ""), (found.loads.get(WITHOUT_KEYS, {}).get(1), ", no keys")):
            if ours is not None and theirs:
                reached += against(ours, how, theirs)
    idle = found.idle.get(OURS)
    if idle and idle.pickup_ms:
        p50 = percentile(idle.pickup_ms, 0.5)
        reached.append(Goal("put to handler when quiet, p50", p50, 10.0, "ms"))
    if found.order is not None and found.order.records:
        name = f"out of order, of {found.order.records:,} under {found.order.kills} kills"
        reached.append(Goal(name, found.order.violations, 0, "records"))
        lost = found.order.missing + found.order.dead
        reached.append(Goal("never handled, of the same", lost, 0, "records"))
    return reached


def against(ours: Rates, how: str, theirs: dict[str, Rates]) -> Iterator[Goal]:
    """Our rates divided by those of the best peer, for each kind of rate."""
    sustained = {name: each.sustained for name, each in theirs.items()}
    backlogs = {name: max(each.backlog) for name, each in theirs.items()}
    for what, mine, peers in (
        ("sustained", ours.sustained, sustained),
        ("from a backlog", max(ours.backlog), backlogs),
    ):
        best = max(peers, key=lambda name: peers[name])
        name = f"records/s {what}{how}, × {best.removesuffix(' postgres')}"
        if peers[best]:
            yield Goal(name, mine / peers[best], 2.0, "×", least=True)
    # The rates include what the writers take from the machine; this does not.
    cpu = {name: each.highest.relay_cpu for name, each in theirs.items() if each.highest}
    if cpu and ours.highest is not None:
        best = min(cpu, key=lambda name: cpu[name])
        name = f"CPU of a relay for a record{how}, {best.removesuffix(' postgres')} ÷ ours"
        yield Goal(name, cpu[best] / ours.highest.relay_cpu, 2.0, "×", least=True)


def losses(found: Measured) -> list[str]:
    """Where a peer is better than Pollwise in this run."""
    compared: list[tuple[str, bool, str, dict[str, float]]] = []
    for count in sorted({count for each in found.loads.values() for count in each}):
        rates = {name: each[count] for name, each in found.loads.items() if count in each}
        shown = f"{count} relay{'s' if count > 1 else ''}"
        backlogs = {name: max(each.backlog) for name, each in rates.items()}
        compared.append((f"backlog, {shown}", True, "records/s", backlogs))
        highest = {name: each.sustained for name, each in rates.items()}
        compared.append((f"sustained, {shown}", True, "records/s", highest))
        for rate in sorted({rate for each in rates.values() for rate in each.at}):
            at = {n: r.at[rate] for n, r in rates.items() if rate in r.at}
            for share in ("p50", "p99"):
                values = {name: getattr(loaded, share) for name, loaded in at.items()}
                compared.append((f"at {rate:,}/s, {shown}, {share}", False, "ms", values))
    for what, column, unit in (
        ("put to handler when quiet, p50", "pickup_ms", "ms"),
        ("idle load", "asked", "statements/s"),
        ("idle CPU", "cpu_percent", "%"),
        ("idle memory", "memory", "MiB"),
    ):
        lists = {name: getattr(idle, column) for name, idle in found.idle.items()}
        medians = {name: percentile(values, 0.5) for name, values in lists.items() if values}
        compared.append((what, False, unit, medians))
    lines = []
    for what, more, unit, values in compared:
        mine = values.get(OURS)
        for name, theirs in values.items():
            if mine is None or name.startswith("pollwise") or theirs == mine:
                continue
            if (theirs > mine) == more:
                peer = name.removesuffix(" postgres")
                lines.append(common.loss(what, peer, theirs, mine, unit))
    return lines


# The whole benchmark


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__, SECTIONS)
    parser.add_argument(
        "--peers", metavar="NAMES", help=f"only these of {','.join(PEERS)}; or none"
    )
    given = parser.parse_args()
    given.only = listed(parser, "--only", given.only, SECTIONS)
    given.peers = [] if given.peers == "none" else listed(parser, "--peers", given.peers, PEERS)
    return given


def chosen(given: argparse.Namespace) -> list[Setup]:
    """A quick run leaves out all peers except the best, unless they are named."""
    if given.quick and given.peers is None:
        return [setup for setup in SETUPS if setup.ours or setup.strong]
    return [
        setup for setup in SETUPS if setup.ours or given.peers is None or setup.peer in given.peers
    ]


def main() -> None:
    given = parse()
    scale = QUICK if given.quick else FULL
    setups = chosen(given)
    peers = {setup.peer: common.peer_version(setup.peer) for setup in setups if not setup.ours}
    with Servers() as servers:
        bench = Bench(servers, setups, drivers=common.HERE / "outbox_peers")
        machine = common.machine(servers.folder)
        versions = common.versions(**bench.stores(), **peers)
        common.show(machine, versions)
        bench.facts |= {"machine": machine, "versions": versions, "quick": given.quick}
        others = common.Others()
        found = measure(bench, scale, given.only or SECTIONS)
        heading("Where a peer is better than Pollwise")
        lost = losses(found)
        print("\n".join(lost) or "Nowhere, in this run.")
        if bench.failed:
            heading("What failed")
            print("\n".join(f"{name}: {why}" for name, why in bench.failed.items()))
        bench.facts |= {"losses": lost, "failed": bench.failed}
        bench.facts["others_percent"] = others.show()
        reached = goals(found)
    common.finish(bench.facts, reached, given.json)
    if any(name.startswith("pollwise") for name in bench.failed):
        sys.exit("Pollwise failed in a section: see above")


if __name__ == "__main__":
    main()
