"""What polling costs where every request is billed: SQS and S3, in requests and dollars a month.

Every request is counted at the server (MiniStack behind a counter), by queue. Requests that send
jobs are left out, because every consumer needs the same. Each consumer has a queue of its own.
Dollars are list prices (`pollwise lab prices`), without free tiers; SQS bills a request for each
64 KiB, and no message here is that large.

A benchmark cannot wait for a month. In the long scenarios, time passes ten times as fast, for the
server, for Pollwise and for the loop: counts are exact there, waits are ten times as coarse. Celery
cannot run in fast time: it gets the same scenarios in real time, for a shorter time. Rates are
then scaled to 30 days.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.billed_sections import objects  # noqa: E402
from benchmarks.billed_sections.kit import (  # noqa: E402
    FIXED,
    FULL,
    QUICK,
    SPEED,
    Bench,
    Cloud,
    Row,
    Scenario,
    entry,
    scenarios,
)
from benchmarks.common import Child, Goal, each, heading, median, number, percentile  # noqa: E402
from pollwise.lab.prices import PRICES  # noqa: E402
from tests.support.clouds import CREDENTIALS  # noqa: E402

PEER = "celery-sqs"
#: Pollwise's consumers of SQS.
POLLWISE = {
    "Adaptive 100ms-5s": "Adaptive('100ms', '5s')",
    "Adaptive, held 20 s": "Adaptive('100ms', '5s', hold='20s')",
    "Worth, mean wait 1 s": "Worth.latency(mean='1s')",
    "Worth, a cent an hour, held 20 s": (
        "Worth(poll_cost=4e-7, wait_cost=0.01 / 3600, hold='20s')"
    ),
    "Ewma, held (Arrakis)": "Ewma(held=True)",
}
LOOP, CELERY = "boto3 loop, held 20 s", "Celery 5.7"


def together(bench: Bench, cloud: Cloud, of: Sequence[Scenario]) -> dict[str, dict[str, Row]]:
    """Every scenario for every consumer except Celery, all at once, each on its own queue."""
    sides = {**POLLWISE, FIXED: "Fixed('500ms')", LOOP: None}
    names = {(s.name, side): f"q{i}-{j}" for i, s in enumerate(of) for j, side in enumerate(sides)}
    plan = [entry(names[s.name, side], sides[side], s) for s in of for side in sides]
    seconds = max(s.seconds for s in of)
    found: dict[str, dict[str, Row]] = {s.name: {} for s in of}
    with ExitStack() as stack:
        child = stack.enter_context(cloud.pollwise(plan, seconds))
        child.hear(120)
        loops = {}
        for s in of:
            loops[s.name] = stack.enter_context(
                bench.plain("loop", cloud, names[s.name, LOOP], s.workers)
            )
            loops[s.name].hear()
        time.sleep(2)
        before = cloud.counts()
        child.tell("go")
        said = child.hear(seconds / cloud.speed * 2 + 60)
        asked = {key: cloud.since(before, name) for key, name in names.items()}
        for s in of:
            for side in sides:
                waits = said["waits"][names[s.name, side]]
                row = Row(asked[s.name, side], said["lasted"], waits)
                if side == LOOP:  # its clock runs in real time
                    row.waits = loops[s.name].ask("tell")["waits"]
                    row.waits_count = cloud.speed == 1.0
                found[s.name][side] = row
        child.tell("end")
    return found


def celery(bench: Bench, cloud: Cloud, of: Scenario, queue: str) -> Row:
    with ExitStack() as stack:
        worker = stack.enter_context(bench.plain("celery", cloud, queue))
        worker.hear(60)
        producer = stack.enter_context(bench.plain("produce", cloud, queue))
        producer.tell(json.dumps(of.arrivals))
        producer.hear()
        before = cloud.counts()
        began = time.monotonic()
        producer.tell("go")
        producer.hear(of.seconds + 60)
        time.sleep(max(began + of.seconds - time.monotonic(), 0.0))
        waits = [worker.hear(30)["wait"] for _ in of.arrivals]
        time.sleep(2)  # for its last deletes
        return Row(cloud.since(before, queue), of.seconds, waits)


def busy(bench: Bench) -> dict[str, Row]:
    """100 jobs/s in real time, one consumer at a time."""
    jobs = bench.scale.busy_jobs
    of = Scenario("100 jobs/s", jobs / 100 + 3, tuple(n / 100 for n in range(jobs)))
    sides: dict[str, str | None] = {
        "Adaptive 100ms-5s": POLLWISE["Adaptive 100ms-5s"],
        "Adaptive, held 20 s": POLLWISE["Adaptive, held 20 s"],
        "Adaptive 1s-5s, held 20 s": "Adaptive('1s', '5s', hold='20s')",
        **{side: polling for side, polling in POLLWISE.items() if side.startswith("Worth")},
        "Ewma, held (Arrakis)": POLLWISE["Ewma, held (Arrakis)"],
        FIXED: "Fixed('500ms')",
        LOOP: None,
    }
    if not bench.scale.busy_all:
        sides = {side: sides[side] for side in sides if "Adaptive" in side and "held" in side}
    found = {}
    for number_of, (side, polling) in enumerate(sides.items()):
        with ExitStack() as stack:
            cloud = Cloud(stack)  # a new one each, so that no worker of the last one is left
            queue = f"busy{number_of}"
            child = stack.enter_context(cloud.pollwise([entry(queue, polling, of)], of.seconds))
            child.hear()
            loop = None
            if polling is None:
                loop = stack.enter_context(bench.plain("loop", cloud, queue, 1))
                loop.hear()
            time.sleep(1)
            before = cloud.counts()
            child.tell("go")
            said = child.hear(of.seconds + 60)
            asked = cloud.since(before, queue)
            waits = loop.ask("tell")["waits"] if loop else said["waits"][queue]
            found[side] = Row(asked, said["lasted"], waits)
            child.tell("end")
    with ExitStack() as stack:
        found[CELERY] = celery(bench, Cloud(stack), of, "busy-celery")
    return found


def show_busy(bench: Bench) -> dict[str, Row]:
    heading("SQS: 100 jobs/s, each 10 ms of work, in real time")
    found = busy(bench)
    rows = [
        [
            side,
            number(row.per_thousand),
            number(found[CELERY].per_thousand / row.per_thousand),
            f"{row.per_thousand * PRICES['sqs'].dollars * 1000:.3f}",
            number(median(row.waits)),
            number(percentile(row.waits, 0.95)),
            ", ".join(f"{n} {kind}" for kind, n in row.requests.most_common(3)),
        ]
        for side, row in found.items()
    ]
    head = ["", "requests per 1,000 jobs", "times fewer than Celery", "$ per million jobs"]
    common.table([*head, "wait p50 s", "p95 s", "what"], rows)
    print("\n200 is the minimum: ten jobs per receive, ten per delete.")
    bench.facts["busy"] = {
        side: {"per_thousand": row.per_thousand, "requests": row.requests}
        for side, row in found.items()
    }
    return found


def flood(bench: Bench) -> float:
    """Jobs a second of one process that handles a backlog."""
    rounds = 5
    heading(f"SQS: {bench.scale.flood:,} jobs in a backlog, one process, concurrency 64")
    with ExitStack() as stack:
        cloud = Cloud(stack)
        told = (cloud.endpoint, str(bench.scale.flood), str(rounds))
        script = common.PEERS / "billed_flood.py"
        said = stack.enter_context(Child([sys.executable, script, *told])).hear(300)
    rate: float = said["jobs"] / median(said["seconds"])
    cpu = median(said["cpu"]) / said["jobs"] * 1e6
    print(f"{number(rate)} jobs/s until all are deleted, the median of {rounds} rounds (")
    print(f"{each([said['jobs'] / s for s in said['seconds']])}); {cpu:.0f} µs of CPU a job here.")
    print("The server is one Python process on the same machine, and the slower one of the two.")
    bench.facts["flood"] = said | {"rate": rate}
    return rate


def long_ones(bench: Bench) -> dict[str, dict[str, Row]]:
    with ExitStack() as stack:
        found = together(bench, Cloud(stack, SPEED), scenarios(bench.scale.fast))
    if bench.scale.slow:
        with ExitStack() as stack:
            cloud = Cloud(stack)
            for n, of in enumerate(scenarios(bench.scale.slow)):
                found[of.name][CELERY] = celery(bench, cloud, of, f"celery{n}")
    for name, rows in found.items():
        heading(f"SQS: {name}, one worker")
        bench.note(name, rows)
    return found


def fleet(bench: Bench) -> dict[str, Row]:
    """Fifty workers on one queue, in real time."""
    if not bench.scale.fleet:
        return {}
    heading("SQS: 50 workers on one queue, 1 job/s, in real time")
    arrivals = tuple(float(n) for n in range(int(bench.scale.fleet)))
    of = Scenario("fleet", bench.scale.fleet, arrivals, workers=50)
    with ExitStack() as stack:
        found = together(bench, Cloud(stack), [of])["fleet"]
    bench.note("50 workers", found)
    return found


def goals(
    long: dict[str, dict[str, Row]], quick: dict[str, Row], rate: float, s3: dict[str, Row]
) -> list[Goal]:
    idle = long["idle"]
    plain = idle[LOOP].monthly
    held = max(idle[side].monthly for side in POLLWISE if "held" in side)
    best = min(quick[side].per_thousand for side in quick if side not in (CELERY, LOOP, FIXED))
    ratio = quick[CELERY].per_thousand / best
    ours = s3["1 job/min, Adaptive 100ms-5s"].total
    theirs = s3[f"1 job/min, a LIST for each of {objects.SHARDS} shards (computed)"].total
    idle_s3 = s3["idle, Adaptive 100ms-5s"].requests
    return [
        Goal("SQS idle, held polls, requests a month", held / plain, 1, "× the plain loop's"),
        Goal("SQS requests per 1,000 jobs at 100 jobs/s, Celery's", ratio, 5, "×", least=True),
        Goal("SQS jobs/s, one process", rate, 1000, "jobs/s", least=True),
        Goal("S3 idle, requests other than LIST", idle_s3.total() - idle_s3["LIST"], 0, "requests"),
        Goal(
            f"S3 requests at 1 job/min, {objects.SHARDS} LISTs a poll",
            theirs / ours,
            10,
            "×",
            least=True,
        ),
    ]


def main() -> None:
    options = common.options(__doc__ or "")
    os.environ.update(CREDENTIALS)
    peer = common.peer(PEER)
    with common.work_folder() as folder:
        bench = Bench(QUICK if options.quick else FULL, peer)
        machine = common.machine(folder)
        versions = common.versions(celery="5.7.0", boto3="1.44.0")
        common.show(machine, versions)
        bench.facts |= {"machine": machine, "versions": versions, "scale": vars(bench.scale)}
        others = common.Others()
        rate = flood(bench)
        quick = show_busy(bench)
        long = long_ones(bench)
        fleet(bench)
        s3 = objects.costs(bench)
        objects.page(bench, s3)
        objects.rates(bench)
        bench.facts["others_percent"] = others.show()
    common.finish(bench.facts, goals(long, quick, rate, s3), options.json)


if __name__ == "__main__":
    main()
