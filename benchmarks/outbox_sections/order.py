"""Order under kills: relays are killed at random while writers commit; a checker reads their lines.

A line of the file is `process key number`, and the numbers of a key are 1, 2, 3, … (see
outbox_peers/ordered.py). Compared with the line before it of the same key, a line has

- the next number: in order;
- a number that occurred before: a repeat after a kill, which "at least once" allows;
- any other number: out of order, because a record was handled too early, or one is missing.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg

from benchmarks.common import Child, heading, number
from benchmarks.queue_sections.kit import Bench, Setup

KEYS = 500
WRITERS = 2
RELAYS = 3
#: The mean time between two kills, in seconds.
KILL_EVERY = 1.5
#: How long the relays may take for the rest when the writers have ended, in seconds.
PATIENCE = 120.0
SEED = 6


@dataclass
class Checked:
    """What a file of lines shows. missing: records that were never handled."""

    handled: int = 0
    repeats: int = 0
    violations: int = 0
    missing: int = 0


@dataclass
class Order(Checked):
    records: int = 0
    kills: int = 0
    dead: int = 0
    seconds: float = 0.0


def check(lines: Iterable[bytes], last_of: dict[str, int]) -> Checked:
    """Read lines; last_of: the last number of each key."""
    found = Checked()
    before = dict.fromkeys(last_of, 0)
    seen = {key: bytearray(last + 1) for key, last in last_of.items()}
    for line in lines:
        _, key, text = line.decode().split()
        n = int(text)
        found.handled += 1
        found.repeats += seen[key][n]
        found.violations += n > before[key] + 1
        before[key], seen[key][n] = n, 1
    found.missing = sum(each[1:].count(0) for each in seen.values())
    return found


def check_the_checker() -> None:
    """Prove that it can fail: one of these is in order, the others are not."""
    for text, violations, missing in (
        ("1 a 1|1 b 1|2 a 2|3 a 1|3 a 2|3 a 3", 0, 0),
        ("1 a 1|1 b 1|1 a 3|1 a 2", 1, 0),
        ("1 a 2|1 b 1|1 a 3", 1, 1),
        ("1 a 1|1 b 1|1 a 2|2 a 1|2 a 3", 1, 0),
    ):
        found = check(text.encode().split(b"|"), {"a": 3, "b": 1})
        assert (found.violations, found.missing) == (violations, missing), text


def measure_order(bench: Bench, setup: Setup, records: int) -> Order:
    check_the_checker()
    found = Order()
    with bench.guard(setup, "order"), bench.ground(setup, once=True) as url:
        found = killed(bench, url, records)
    bench.facts["order"] = vars(found)
    show_order(found)
    return found


def killed(bench: Bench, url: str, records: int) -> Order:
    """Let writers commit while relays are killed; then check what was handled, in which order."""
    script = bench.drivers / "ordered.py"
    file = bench.servers.folder / f"{url.rpartition('/')[2]}.lines"
    rng = random.Random(SEED)
    order = Order()
    with ExitStack() as stack:

        def start(*arguments: object) -> Child:
            return stack.enter_context(Child([sys.executable, script, *map(str, arguments)]))

        start("setup", url, KEYS).hear()
        crew = [start("relay", url, file) for _ in range(RELAYS)]
        began = time.monotonic()
        share = records // WRITERS
        writers = [start("write", url, share, SEED + place) for place in range(WRITERS)]
        while any(writer.running for writer in writers):
            time.sleep(rng.expovariate(1 / KILL_EVERY))
            victim = rng.randrange(RELAYS)
            os.kill(crew[victim].pid, signal.SIGKILL)
            crew[victim].end()
            order.kills += 1
            crew[victim] = start("relay", url, file)
        order.records = sum(writer.hear()["written"] for writer in writers)
        with psycopg.connect(url, autocommit=True) as connection:
            limit = time.monotonic() + PATIENCE
            while left := _number(connection, "state < 2"):
                if time.monotonic() > limit:
                    raise TimeoutError(f"{left} records are left {PATIENCE:g} s later")
                time.sleep(0.1)
            order.seconds = time.monotonic() - began
            order.dead = _number(connection, "state = 2")
            last_of: dict[str, int] = dict(
                connection.execute("SELECT key, n FROM counters").fetchall()
            )
    if sum(last_of.values()) != order.records:
        raise RuntimeError(f"{order.records} records, but counters at {sum(last_of.values())}")
    with file.open("rb") as lines:
        checked = check(lines, last_of)
    file.unlink()
    return replace(order, **vars(checked))


def _number(connection: psycopg.Connection[Any], where: LiteralString) -> int:
    row = connection.execute(
        f"SELECT count(*) FROM pollwise.outbox_records WHERE {where}"
    ).fetchone()
    return int(row[0]) if row else 0


def show_order(order: Order) -> None:
    heading("Order under kills")
    print(
        f"{WRITERS} writers of 4 connections each commit to {KEYS} keys, 15 records a transaction;"
    )
    print(f"3 % stay open for up to 100 ms, 3 % are rolled back. One of {RELAYS} relays is killed")
    print(f"(SIGKILL) every {KILL_EVERY:g} s on average, at random, and another started; leases")
    print("last 2 s.\n")
    print(
        f"records committed    {order.records:,}; handled {number(order.seconds)} s after the start"
    )
    print(f"relays killed        {order.kills}")
    print(f"handled again        {order.repeats:,} (at least once: repeats after a kill)")
    print(f"never handled        {order.missing}, and dead {order.dead}")
    print(f"out of order         {order.violations}", flush=True)
