"""Whether the tables of Pollux on Postgres grow while the backlog does not: a day's jobs at once.

23 jobs a second are two million a day. They are put and worked through as fast as it goes, with ten
thousand waiting all the time, and the size of tables and indexes is told every tenth of the way.
Autovacuum has its defaults, apart from what Pollux sets on its own tables.

That is harsher than a day: autovacuum looks once a minute (`autovacuum_naptime`), which is after
1,380 jobs on such a day and after more than a million here. So by default it looks once a second
here (`--naptime 1s`), still ten times too seldom; `--naptime 1min` is its own default.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, heading, number  # noqa: E402
from benchmarks.queue_sections.kit import SETTINGS, SETUPS, Bench, Peer  # noqa: E402
from tests.servers import Postgres, Servers  # noqa: E402

BACKLOG = 10_000
DAY = 2_000_000
QUICK = 300_000
STEPS = 10
#: The most that is put in one go, so that the backlog stays about the same.
MOST = 2_000
MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """What the schema takes on the disk after so many jobs."""

    jobs: int
    seconds: float
    tables: int
    indexes: int
    dead: int
    vacuums: int

    @property
    def size(self) -> int:
        return self.tables + self.indexes


def sample(server: Postgres, dbname: str, jobs: int, seconds: float) -> Sample:
    ((tables, indexes, dead, vacuums),) = server.execute(
        "SELECT sum(pg_table_size(relid))::bigint, sum(pg_indexes_size(relid))::bigint,"
        " sum(n_dead_tup)::bigint, sum(autovacuum_count)::bigint"
        " FROM pg_stat_user_tables WHERE schemaname = 'pollux'",
        dbname=dbname,
    )
    return Sample(jobs, seconds, int(tables), int(indexes), int(dead), int(vacuums))


def soak(bench: Bench, url: str, jobs: int) -> list[Sample]:
    """Put as many as were handled, again and again; nothing is put ahead of that."""
    dbname, setup = url.rsplit("/", 1)[1], bench.setups[0]
    samples: list[Sample] = []
    with bench.child(setup, "work", url) as worker, bench.child(setup, "putter", url) as putter:
        worker.hear()
        putter.hear()
        putter.ask(f"many {BACKLOG}")
        worker.tell("go")
        began, put, step = time.monotonic(), 0, jobs // STEPS
        while put < jobs:
            missing = min(handled(worker) - put, MOST, jobs - put)
            if missing < min(MOST // 4, jobs - put):
                time.sleep(0.005)
                continue
            put += int(putter.ask(f"many {missing}")["put"])
            if put >= step * (len(samples) + 1):
                samples.append(sample(bench.postgres, dbname, put, time.monotonic() - began))
                show(samples[-1])
    return samples


def handled(worker: Peer) -> int:
    return int(worker.ask("count")["handled"])


HEAD = ("jobs", "jobs/s", "tables MiB", "indexes MiB", "together", "dead rows", "vacuums")
WIDTHS = (10, 8, 11, 12, 10, 11, 8)


def line(cells: tuple[str, ...]) -> None:
    print("".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)


def show(at: Sample) -> None:
    sizes = [f"{size / MIB:.1f}" for size in (at.tables, at.indexes, at.size)]
    line(
        (f"{at.jobs:,}", number(at.jobs / at.seconds), *sizes, f"{at.dead:,}", str(at.vacuums))
    )  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under a minute, for a look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--jobs", type=int, help=f"how many ({DAY:,})")
    parser.add_argument("--naptime", default="1s", help="how often autovacuum looks (1s)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return given


def main() -> None:
    given = parse()
    jobs = given.jobs or (QUICK if given.quick else DAY)
    setup = next(each for each in SETUPS if each.name == "pollux postgres")
    with Servers() as servers:
        settings = SETTINGS | {"autovacuum_naptime": given.naptime}
        bench = Bench(servers, [setup], _postgres=servers.postgres(**settings))
        machine = common.machine(servers.folder)
        versions = common.versions(**bench.stores())
        common.show(machine, versions)
        others = common.Others()
        heading(f"{jobs:,} jobs at a backlog of {BACKLOG:,}, autovacuum_naptime {given.naptime}")
        line(HEAD)
        with bench.ground(setup, once=True) as url:
            samples = soak(bench, url, jobs)
        share = others.show()
    early, last = samples[STEPS // 5 - 1], samples[-1]
    goal = Goal("Postgres size at the end ÷ at 20 %", last.size / early.size, 1.5, "×")
    facts = {"machine": machine, "versions": versions, "quick": given.quick, "jobs": jobs}
    facts |= {"samples": [vars(each) for each in samples], "others_percent": share}
    common.finish(facts | {"naptime": given.naptime}, [goal], given.json)


if __name__ == "__main__":
    main()
