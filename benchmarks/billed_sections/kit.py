"""What the sections of `billed.py` share: scenarios, what they cost, the counted server."""

from __future__ import annotations

import json
import random
import socket
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Child, median, number, percentile
from pollwise.lab.prices import MONTH, PRICES

SPEED = 10.0
FIXED = "Fixed 500ms"
#: Deletes are not billed: aws.amazon.com/s3/pricing, "DELETE and CANCEL requests are free". The
#: bulk delete is an HTTP POST, but S3 counts it as a DELETE: its metric DeleteRequests "also
#: includes Delete Multiple Objects requests" (S3 user guide, Amazon CloudWatch request metrics).
S3_PRICES = {
    "LIST": "s3-list",
    "PUT": "s3-put",
    "GET": "s3-get",
    "HEAD": "s3-get",
}


@dataclass(frozen=True)
class Scenario:
    """A workload: when jobs arrive, over a number of seconds of the consumer's time."""

    name: str
    seconds: float
    arrivals: tuple[float, ...]
    workers: int = 1


def scenarios(seconds: float) -> list[Scenario]:
    rng = random.Random(5)
    steady = sorted(rng.uniform(0, seconds) for _ in range(int(seconds)))
    minutes = [60 * n + rng.uniform(0, 60) for n in range(int(seconds // 60))]
    bursts = [start + 5 for start in range(0, int(seconds), 120) for _ in range(60)]
    return [
        Scenario("idle", seconds, ()),
        Scenario("1 job/min", seconds, tuple(minutes)),
        Scenario("1 job/s", seconds, tuple(steady)),
        Scenario("60 jobs every 2 min", seconds, tuple(bursts)),
    ]


@dataclass(frozen=True)
class Scale:
    fast: float
    slow: float
    fleet: float
    busy_jobs: int
    flood: int
    bucket: int
    busy_all: bool = True


FULL = Scale(fast=900.0, slow=60.0, fleet=60.0, busy_jobs=1000, flood=1000, bucket=3000)
QUICK = Scale(fast=120.0, slow=0.0, fleet=0.0, busy_jobs=500, flood=500, bucket=500, busy_all=False)


@dataclass
class Row:
    """What one consumer did in one scenario."""

    requests: Counter[str]
    seconds: float
    waits: list[float] = field(default_factory=list)
    store: str = "sqs"
    waits_count: bool = True

    @property
    def total(self) -> int:
        return self.requests.total()

    @property
    def monthly(self) -> float:
        return self.total / self.seconds * MONTH

    @property
    def dollars(self) -> float:
        if self.store == "sqs":
            return self.monthly * PRICES["sqs"].dollars
        prices = {kind: PRICES[name].dollars for kind, name in S3_PRICES.items()}
        spent = sum(prices.get(kind, 0.0) * n for kind, n in self.requests.items())
        return spent / self.seconds * MONTH

    @property
    def per_thousand(self) -> float:
        return self.total / len(self.waits) * 1000

    def columns(self) -> list[str]:
        waits = self.waits if self.waits_count else []
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.requests.most_common(4))
        return [
            f"{self.total:,}",
            f"{self.monthly:,.0f}",
            f"${self.dollars:,.2f}",
            str(len(self.waits)),
            number(median(waits)) if waits else "-",
            number(percentile(waits, 0.95)) if waits else "-",
            kinds,
        ]


HEAD = ["", "requests", "a month", "$ a month", "jobs", "wait p50 s", "p95 s", "what"]


class Cloud:
    """A counted server, in real time or faster."""

    def __init__(self, stack: ExitStack, speed: float = 1.0) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self.speed = speed
        self.time = [str(speed), str(time.time())] if speed != 1.0 else []
        server = common.PEERS / "counted_cloud.py"
        stack.enter_context(Child([sys.executable, server, str(port), *self.time]))
        for _ in range(300):
            try:
                self.counts()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("MiniStack did not start")

    def counts(self) -> dict[str, Counter[str]]:
        with urllib.request.urlopen(f"{self.endpoint}/counts", timeout=30) as answer:
            return {name: Counter(found) for name, found in json.load(answer).items()}

    def since(self, before: dict[str, Counter[str]], queue: str) -> Counter[str]:
        """The requests to a queue and its dead letters since then, without those that send."""
        now = self.counts()
        names = (queue, f"{queue}-dead")
        asked = sum((now.get(n, Counter()) - before.get(n, Counter()) for n in names), Counter())
        return Counter({k: n for k, n in asked.items() if not k.startswith("Send")})

    def pollwise(self, plan: Sequence[dict[str, Any]], seconds: float) -> Child:
        script = common.PEERS / "billed_pollwise.py"
        child = Child([sys.executable, script, self.endpoint, str(seconds), *self.time])
        child.tell(json.dumps(plan))
        return child


@dataclass
class Bench:
    scale: Scale
    peer: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def plain(self, mode: str, cloud: Cloud, queue: str, *more: object) -> Child:
        script = common.PEERS / "billed_plain.py"
        return Child([self.peer, script, mode, cloud.endpoint, queue, *map(str, more)])

    def note(self, title: str, found: dict[str, Row]) -> None:
        self.facts[title] = {
            name: {
                "requests": row.requests,
                "seconds": row.seconds,
                "jobs": len(row.waits),
                "requests_a_month": row.monthly,
                "dollars_a_month": row.dollars,
            }
            for name, row in found.items()
        }
        common.table(HEAD, [[name, *row.columns()] for name, row in found.items()])


def entry(name: str, polling: str | None, of: Scenario, store: str = "sqs") -> dict[str, Any]:
    return {
        "name": name,
        "polling": polling,
        "workers": of.workers,
        "arrivals": of.arrivals,
        "store": store,
    }
