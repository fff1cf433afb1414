"""A file of many targets: how long a start, a reload with one changed line and a command take.

CPU time, not wall time, because that is reliable on a busy machine. A command is a process of its
own, with the import of Python's and our modules.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import common
from benchmarks.common import Goal, Plain, heading, table
from pollwise.cli.fleet.opening import collector_paused
from pollwise.fleet import Fleet
from pollwise.fleet.file import read
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore

SIZE, SIZE_QUICK = 100_000, 10_000
#: Seconds at 100,000 targets.
START, RELOAD, STATUS = 8.0, 1.0, 3.0

HEAD = """
[group.shop]
type = "http"
timeout = "10s"
headers = { Accept = "text/html" }

[channel.ops]
type = "webhook"
url = "https://hooks.example/x"

[alerts]
to = ["ops"]
"""
TARGET = """
[[target]]
name = "page {number}"
group = "shop"
url = "https://host{host}.example/pages/{number}"
interval = "{interval}s"
alerts = ["down"]
"""


def measure(quick: bool) -> tuple[Plain, list[Goal]]:
    size = SIZE_QUICK if quick else SIZE
    with tempfile.TemporaryDirectory() as folder:
        file, store = Path(folder) / "fleet.toml", Path(folder) / "fleet.db"
        text = HEAD + "".join(
            TARGET.format(number=number, host=number % 5000, interval=60 + number % 7)
            for number in range(size)
        )
        file.write_text(text)
        began = time.process_time()
        with collector_paused():
            found = read(file)
            fleet = Fleet(alerts=found.alerts)
            fleet.replace(found.targets, read=True)
        start = time.process_time() - began
        file.write_text(text.replace('/pages/77"', '/pages/78"'))
        began = time.process_time()
        with collector_paused():
            changes = fleet.replace(read(file, before=found).targets, read=True)
        reload = time.process_time() - began
        assert changes.changed == ("page 77",)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        asyncio.run(_seed(store, size))
        status = _command("status", file, store)
        check = _command("check", file, store)
    facts: Plain = {
        "targets": size, "start_s": start, "reload_s": reload, "status_s": status,
        "check_s": check, "memory_mb": memory,
    }  # fmt: skip
    heading(f"A file of {size:,} targets, seconds of CPU time")
    rows = [("start", start), ("one line changed", reload), ("status", status), ("check", check)]
    table(("what", "s"), [(what, f"{took:.2f}") for what, took in rows])
    print(f"memory after the reload: {memory:,.0f} MB")
    share = size / SIZE
    limits = (("start", start, START), ("reload", reload, RELOAD), ("status", status, STATUS))
    return {"files": facts}, [
        Goal(f"{what}, {SIZE:,} targets of a file", took / share, limit, "s")
        for what, took, limit in limits
    ]


async def _seed(path: Path, size: int) -> None:
    """A store with the state of all targets."""
    store = SqliteFleetStore(path)
    await store.load()
    now, more = time.time(), {"reading": {"value": "sha256:" + "a" * 64, "summary": "200, 5 ms"}}
    for begin in range(0, size, 5000):
        numbers = range(begin, min(begin + 5000, size))
        await store.save(
            [
                SavedTarget(f"page {n}", now + 60, succeeded_at=now, interval=60.0, more=more)
                for n in numbers
            ]
        )
    await store.close()


def _command(what: str, file: Path, store: Path) -> float:
    """The CPU time of `pollwise fleet what`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [what, "--file", str(file), "--store", f"sqlite:///{store}"]
    done = subprocess.run(
        [sys.executable, "-m", "pollwise", "fleet", *words],
        cwd=common.ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
