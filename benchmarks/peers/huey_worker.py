"""Huey's side of benchmarks/sqlite.py; runs in .venv-peers/huey and knows nothing of Pollwise.

It answers the same commands as pollwise_worker.py, in JSON lines:

    fill FILE --jobs N         put empty jobs as fast as possible, not measured
    put FILE --jobs N          put one at a time, measured, on each command
    work FILE --jobs N         handle that many; measured from the first to the last
    idle FILE                  work until ended; prints when a job starts; "count" prints statements
    putter FILE...             put a job into the n-th file on the command n

`results=False` saves Huey the storing of results, and 8 threads are its 8 concurrent handlers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from huey import SqliteHuey  # type: ignore[import-not-found]


def say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def lines() -> Iterator[str]:
    """The commands of the parent. Unbuffered: a lock on stdin would delay the exit."""
    unread = b""
    while read := os.read(0, 4096):
        *whole, unread = (unread + read).split(b"\n")
        yield from (line.decode() for line in whole)


def serve(answer: Callable[[str], None] | None = None) -> None:
    """Answer the parent from a thread; exit when it has ended."""

    def listen() -> None:
        for line in lines():
            if answer is not None:
                answer(line)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()


def open_huey(file: str, fsync: str) -> Any:
    synced = {"on": True, "off": False, "default": None}[fsync]
    return SqliteHuey("bench", filename=file, fsync=synced, results=False)


def empty_task(huey: Any, function: Callable[[], None]) -> Any:
    return huey.task(name="empty")(function)


def consume(huey: Any, options: argparse.Namespace) -> None:
    delays = {}
    if options.delay is not None:
        delays = {"initial_delay": options.delay, "max_delay": options.delay}
    consumer = huey.create_consumer(workers=options.threads, periodic=False, **delays)
    consumer.run()


def fill(options: argparse.Namespace) -> None:
    huey = open_huey(options.files[0], "off")
    task = empty_task(huey, lambda: None)
    for _ in range(options.jobs):
        task()
    huey.storage.close()
    say(done=True)


def put(options: argparse.Namespace) -> None:
    huey = open_huey(options.files[0], options.fsync)
    task = empty_task(huey, lambda: None)
    task()
    say(ready=True)
    for _ in lines():
        began = time.monotonic()
        for _ in range(options.jobs):
            task()
        say(seconds=time.monotonic() - began)
    huey.storage.close()


def work(options: argparse.Namespace) -> None:
    huey = open_huey(options.files[0], options.fsync)
    numbers = itertools.count(1)
    first = cpu = 0.0

    def empty() -> None:
        nonlocal first, cpu
        n = next(numbers)
        if n == 1:
            first, cpu = time.monotonic(), time.process_time()
        if n == options.jobs:
            last = time.monotonic()
            say(first=first, last=last, settled=last, cpu=time.process_time() - cpu)

    empty_task(huey, empty)
    serve()
    consume(huey, options)


def idle(options: argparse.Namespace) -> None:
    huey = open_huey(options.files[0], options.fsync)
    empty_task(huey, lambda: say(started=time.monotonic()))
    statements = itertools.count()
    huey.storage.conn.set_trace_callback(lambda _: next(statements))
    # Reading the count counts too, so earlier readings are subtracted.
    looks = itertools.count()
    serve(lambda _: say(statements=next(statements) - next(looks)))
    say(ready=True)
    consume(huey, options)


def putter(options: argparse.Namespace) -> None:
    tasks = [empty_task(open_huey(file, options.fsync), lambda: None) for file in options.files]
    for task in tasks:
        task.huey.storage.queue_size()  # connects
    say(ready=True)
    for line in lines():
        sent = time.monotonic()
        tasks[int(line)]()
        say(sent=sent)


COMMANDS = {"fill": fill, "put": put, "work": work, "idle": idle, "putter": putter}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--fsync", choices=["on", "off", "default"], default="default")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--delay", type=float, help="initial and longest delay between polls")
    options = parser.parse_args()
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
