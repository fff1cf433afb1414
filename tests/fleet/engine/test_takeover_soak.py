"""Take-over as operators meet it: two `pollwise fleet run` on one Postgres store, 200 targets over
HTTP, one node that stands still for longer than its lease, and one that is killed."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from pollwise.fleet.stores.postgres.store import TABLES
from pollwise.outbox.stores.postgres.store import TABLES as OUTBOX_TABLES
from pollwise.storage.postgres.schema import script
from tests.support.daemons import wait_until
from tests.support.forked import Forked
from tests.support.servers import Postgres

TARGETS = 200
EVERY = 5.0
LEASE = 6.0
STILL = 20.0
#: What a busy machine may add to any wait.
SLACK = 15.0

pytestmark = pytest.mark.soak


class Polled:
    """When each path was asked for."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = defaultdict(list)

    def count(self, since: float) -> int:
        """How many targets were polled since then."""
        return sum(every[-1] >= since for every in list(self.at.values()))

    def gaps(self, since: float, until: float) -> list[float]:
        """Seconds between two polls of one target that overlap with this time."""
        return [
            after - before
            for every in self.at.values()
            for before, after in pairwise([*every, math.inf])
            if after >= since and before <= until and after < math.inf
        ]


@contextmanager
def answering() -> Iterator[tuple[Polled, int]]:
    """A server that answers every request, and its port."""
    polled = Polled()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            polled.at[self.path].append(time.monotonic())
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield polled, server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def nodes(server: Postgres, folder: Path, port: int) -> Iterator[Callable[[str], Forked]]:
    """Starts nodes by name; kills what is left at the end."""
    database = server.create_database("takeover")
    server.execute(script("pollwise", TABLES), dbname="takeover")
    server.execute(script("pollwise", OUTBOX_TABLES), dbname="takeover")
    file = folder / "fleet.toml"
    file.write_text(
        "".join(
            f'[[target]]\nname = "t{n:03}"\ntype = "http"\nurl = "http://127.0.0.1:{port}/t{n:03}"\n'
            f'interval = "{EVERY:g}s"\n'
            for n in range(TARGETS)
        )
    )
    started: list[Forked] = []

    def start(node: str) -> Forked:
        words = [
            "-m", "pollwise", "fleet", "run", "--file", file, "--store", database, "--node", node,
            "--set", f"fleet.lease={LEASE:g}s", "--set", "fleet.per_host=100",
        ]  # fmt: skip
        with (folder / f"{node}.log").open("wb") as log:
            started.append(Forked(words, log=log))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


def test_targets_are_taken_over_without_long_gaps_and_without_double_polls(
    postgres: Postgres, tmp_path: Path
) -> None:
    def held() -> dict[str, int]:
        rows = postgres.execute(
            "SELECT n.node, count(t.name) FROM pollwise.fleet_nodes n LEFT JOIN "
            "pollwise.fleet_targets t ON t.holder = n.id GROUP BY n.node",
            dbname="takeover",
        )
        return dict(rows)

    half = {"one": TARGETS // 2, "two": TARGETS // 2}
    with answering() as (polled, port), nodes(postgres, tmp_path, port) as start:
        one, two = start("one"), start("two")
        wait_until(lambda: held() == half, "shares", within=60)

        def all_polled(since: float) -> bool:
            return polled.count(since) == TARGETS

        def watched(since: float, rounds: int = 2) -> float:
            """Wait until all targets were polled some times after a moment; returns the time."""
            for _ in range(rounds):
                wait_until(partial(all_polled, since), "all polled", within=60)
                since = time.monotonic()
            return since

        begun = watched(time.monotonic())
        stopped = time.monotonic()
        two.send_signal(signal.SIGSTOP)
        time.sleep(STILL)  # real time: the node stands still
        two.send_signal(signal.SIGCONT)
        resumed = time.monotonic()
        wait_until(lambda: held() == half, "shares again", within=60)
        settled = watched(resumed)
        one.kill()
        killed = time.monotonic()
        ended = watched(killed, 3)

    phases = {
        "before": (begun, stopped), "still": (stopped, resumed), "resumed": (resumed, settled),
        "killed": (killed, ended),
    }  # fmt: skip
    gaps = {name: polled.gaps(*times) for name, times in phases.items()}
    for name, every in gaps.items():
        soon = sum(each < EVERY / 2 for each in every)
        print(f"{name}: {len(every)} gaps, {min(every):.2f} to {max(every):.2f} s, {soon} short")
    assert len(polled.at) == TARGETS
    assert max(map(max, gaps.values())) < LEASE + 2 * EVERY + SLACK
    # A poll that stood still in its middle goes on with it: nobody can help that.
    assert sum(each < 1.0 for every in gaps.values() for each in every) <= 5
