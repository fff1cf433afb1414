"""Whether Pollwise's tables on Postgres grow at a constant backlog: the jobs of a day at once.

23 jobs a second are two million a day. They are put and handled as fast as possible, with ten
thousand waiting all the time. The size of tables and indexes is printed ten times. There are two
runs: by default, where Pollwise vacuums its table now and then, and autovacuum has the settings
that Pollwise gives its own tables; and with autovacuum alone, as for a role that may not vacuum.

Autovacuum looks once a minute (`autovacuum_naptime`). On such a day that is after 1,380 jobs; here
it would be after more than a million. So where it is alone, it looks once a second, which is still
after twenty times as many jobs as on that day. `--naptime` sets another time for both runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, heading, number  # noqa: E402
from benchmarks.queue_sections.kit import SETTINGS, SETUPS, Bench, Peer  # noqa: E402
from tests.support.daemons import version_of  # noqa: E402
from tests.support.servers import Postgres, Servers, newest_postgres  # noqa: E402

BACKLOG = 10_000
DAY = 2_000_000
QUICK = 300_000
STEPS = 10
#: The maximum number of jobs of one put, so that the backlog stays about the same.
MOST = 2_000
MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """The size of the schema on the disk after this many jobs."""

    jobs: int
    seconds: float
    tables: int
    indexes: int
    dead: int
    vacuums: int
    autovacuums: int

    @property
    def size(self) -> int:
        return self.tables + self.indexes


def sample(server: Postgres, dbname: str, jobs: int, seconds: float) -> Sample:
    ((tables, indexes, dead, vacuums, autovacuums),) = server.execute(
        "SELECT sum(pg_table_size(relid))::bigint, sum(pg_indexes_size(relid))::bigint,"
        " sum(n_dead_tup)::bigint, sum(vacuum_count)::bigint, sum(autovacuum_count)::bigint"
        " FROM pg_stat_user_tables WHERE schemaname = 'pollwise'",
        dbname=dbname,
    )
    counted = map(int, (tables, indexes, dead, vacuums, autovacuums))
    return Sample(jobs, seconds, *counted)


def soak(bench: Bench, url: str, jobs: int) -> list[Sample]:
    """Put as many jobs as were handled, again and again, so that the backlog stays the same."""
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


HEAD = ("jobs", "jobs/s", "tables MiB", "indexes MiB", "together", "dead rows", "vacuums", "auto")
WIDTHS = (10, 8, 11, 12, 10, 11, 8, 6)


def line(cells: tuple[str, ...]) -> None:
    print("".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)


def show(at: Sample) -> None:
    sizes = [f"{size / MIB:.1f}" for size in (at.tables, at.indexes, at.size)]
    counted = (f"{at.dead:,}", str(at.vacuums), str(at.autovacuums))
    line((f"{at.jobs:,}", number(at.jobs / at.seconds), *sizes, *counted))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a short run, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--jobs", type=int, help=f"how many ({DAY:,})")
    parser.add_argument("--naptime", help="how often autovacuum looks, such as 1min")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return given


@dataclass(frozen=True)
class Part:
    name: str
    way: str
    naptime: str


PARTS = (Part("as it comes", "", "1min"), Part("autovacuum alone", "vacuum=off", "1s"))


def run(servers: Servers, part: Part, jobs: int) -> list[Sample]:
    heading(f"{jobs:,} jobs at a backlog of {BACKLOG:,}: {part.name}, looking every {part.naptime}")
    line(HEAD)
    setup = next(each for each in SETUPS if each.name == "pollwise postgres")
    server = servers.postgres(**SETTINGS, autovacuum_naptime=part.naptime)
    bench = Bench(servers, [replace(setup, way=part.way)], _postgres=server)
    with bench.ground(setup, once=True) as url:
        samples = soak(bench, url, jobs)
    server.close()
    return samples


def main() -> None:
    given = parse()
    jobs = given.jobs or (QUICK if given.quick else DAY)
    facts: dict[str, Any] = {"quick": given.quick, "jobs": jobs}
    goals = []
    with Servers() as servers:
        facts["machine"] = common.machine(servers.folder)
        facts["versions"] = common.versions(postgres=version_of(newest_postgres() / "postgres"))
        common.show(facts["machine"], facts["versions"])
        others = common.Others()
        for part in PARTS:
            part = replace(part, naptime=given.naptime or part.naptime)
            samples = run(servers, part, jobs)
            facts[part.name] = {"naptime": part.naptime, "samples": [vars(s) for s in samples]}
            grown = samples[-1].size / samples[STEPS // 5 - 1].size
            goals.append(Goal(f"Postgres size at the end ÷ at 20 %, {part.name}", grown, 1.5, "×"))
        facts["others_percent"] = others.show()
    common.finish(facts, goals, given.json)


if __name__ == "__main__":
    main()
