"""S3: what a queue in a bucket costs, how fast it is, and what the page of qo says."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks import common
from benchmarks.billed_sections.kit import (
    FIXED,
    SPEED,
    Bench,
    Cloud,
    Row,
    Scenario,
    entry,
    scenarios,
)
from benchmarks.common import Child, each, heading, median, number
from pollwise.lab import cost
from pollwise.lab.prices import PRICES
from pollwise.lab.texts import money
from tests.support.clouds import Cloud as S3Server
from tests.support.servers import Servers

SHARDS = cost.SHARDS
#: Pollwise's consumers of S3.
OBJECTS = {
    "Adaptive 100ms-5s": "Adaptive('100ms', '5s')",
    "Worth, mean wait 1 s": "Worth.latency(mean='1s')",
    FIXED: "Fixed('500ms')",
}


def measured(cloud: Cloud, of: Sequence[Scenario]) -> dict[str, Row]:
    """The requests of each consumer to a bucket of its own, in each scenario, all at once."""
    seconds = max(s.seconds for s in of)
    names = {(s.name, o): f"b{i}-{j}" for i, s in enumerate(of) for j, o in enumerate(OBJECTS)}
    for bucket in names.values():
        make = urllib.request.Request(f"{cloud.endpoint}/{bucket}", method="PUT")
        urllib.request.urlopen(make, timeout=30).close()
    plan = [entry(names[s.name, o], OBJECTS[o], s, "s3") for s in of for o in OBJECTS]
    with cloud.pollwise(plan, seconds) as child:
        child.hear(120)
        time.sleep(2)
        before = cloud.counts()
        child.tell("go")
        said = child.hear(seconds / cloud.speed * 2 + 60)
        found = {
            f"{scenario}, {side}": Row(
                cloud.since(before, bucket), said["lasted"], said["waits"][bucket], "s3"
            )
            for (scenario, side), bucket in names.items()
        }
        child.tell("end")
    return found


def costs(bench: Bench) -> dict[str, Row]:
    """S3 by ObjectQueue: one worker in fast time, and a fleet in real time."""
    of = scenarios(bench.scale.fast / 2)
    with ExitStack() as stack:
        found = measured(Cloud(stack, SPEED), of)
    if bench.scale.fleet:
        arrivals = tuple(float(n) for n in range(int(bench.scale.fleet)))
        crowd = Scenario("50 workers, 1 job/s", bench.scale.fleet, arrivals, workers=50)
        with ExitStack() as stack:
            found |= measured(Cloud(stack), [crowd])
        of = [*of, crowd]
    for s in of:
        row = found[f"{s.name}, Adaptive 100ms-5s"]
        lists = Counter({"LIST": (SHARDS - 1) * row.requests["LIST"]})
        sharded = Row(row.requests + lists, row.seconds, row.waits, "s3")
        found[f"{s.name}, a LIST for each of {SHARDS} shards (computed)"] = sharded
    heading("S3: one worker, or fifty; including requests of puts, and deletes, which are free")
    bench.note("objects", found)
    print(f"\nComputed: Adaptive's row, if each of its polls were {SHARDS} LISTs instead of one.")
    return found


def rates(bench: Bench) -> None:
    """Jobs a second through a queue in a bucket, one process."""
    jobs, rounds = bench.scale.bucket, 3
    heading(f"S3: jobs/s, one process, {jobs:,} jobs put by the hundred, then handled 64 at a time")
    rows, facts = [], {}
    with Servers() as servers:
        for start in (servers.ministack, servers.weed):
            server: S3Server = start()
            name = f"{type(server).__name__} {server.version}"
            script = common.PEERS / "billed_bucket.py"
            told = (server.url("rates"), str(jobs), str(rounds))
            with Child([sys.executable, script, *told]) as child:
                said = child.hear(600)
            server.stop()
            put = [jobs / took for took in said["put"]]
            worked = [jobs / took for took in said["work"]]
            cpu = median(said["cpu"]) / jobs * 1e6
            rows.append(
                [name, number(median(put)), number(median(worked)), each(worked), f"{cpu:.0f}"]
            )
            facts[name] = said | {"put_rate": median(put), "work_rate": median(worked)}
    common.table(["", "put jobs/s", "work jobs/s", "each round", "µs of CPU a job"], rows)
    print("\nNo goal is set for this. Server and worker share the machine's cores.")
    bench.facts["bucket_rates"] = facts


def page(bench: Bench, found: dict[str, Row]) -> None:
    """The table of qo's page, the real costs of its polls, and those of ours."""
    heading("S3: the table of qo's page on adaptive polling, one worker, a month")
    costs = cost.rows()
    ours = {"fixed 500ms": found[f"idle, {FIXED}"]}
    rows = []
    for row in costs:
        counted = ours.get(row.name)
        rows.append(
            [
                row.name,
                f"{row.polls:,.0f}",
                "-" if row.page_polls is None else f"{row.page_polls:,}",
                "-" if row.page_dollars is None else money(row.page_dollars),
                money(row.dollars(PRICES["s3-list"], SHARDS)),
                money(row.dollars(PRICES["s3-list"])),
                "-" if counted is None else money(counted.dollars),
            ]
        )
    heads = ["", "polls", "the page's", "the page's $", f"$ with {SHARDS} LISTs a poll"]
    common.table([*heads, "$ with Pollwise's one", "measured above"], rows)
    print("\nThe page prices a poll as a GET. Looking for jobs is a LIST, at 12.5 times the price,")
    print(f"and qo sends one for each of its {SHARDS} shards. `pollwise lab cost` has the details.")
    trades = cost.tradeoffs()
    bench.facts["page"] = cost.facts(costs, trades, PRICES["s3-list"], SHARDS, cost.WORKERS)
