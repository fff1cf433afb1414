"""Pollwise's side of benchmarks/sqlite.py: the processes that are measured.

It answers the same commands as huey_worker.py, in JSON lines:

    fill FILE --jobs N         put empty jobs as fast as possible, not measured
    put FILE --jobs N          put one at a time, or --batch at a time, measured, on each command;
                               --sync without an event loop
    work FILE --jobs N         handle that many; measured from the first to the last
    idle FILE                  work until ended; prints when a job starts; "count" prints statements
                               ("put" puts a job from this process itself)
    putter FILE...             put a job into the n-th file on the command n
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pollwise
from pollwise import Job, NewJob, Worker, WorkerRunOptions
from pollwise.queues.sqlite.queue import SqliteQueue

EMPTY = "empty"


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


async def fill(options: argparse.Namespace) -> None:
    async with SqliteQueue(options.files[0], synchronous="off") as queue:
        for done in range(0, options.jobs, 1000):
            await queue.put(NewJob(EMPTY) for _ in range(min(options.jobs - done, 1000)))
    say(done=True)


async def put(options: argparse.Namespace) -> None:
    if options.sync:
        put_sync(options)
        return
    async with SqliteQueue(options.files[0], synchronous=options.synchronous) as queue:
        await queue.put(NewJob(EMPTY))
        say(ready=True)
        for _ in lines():
            began = time.monotonic()
            for _ in range(options.jobs // options.batch):
                await queue.put([NewJob(EMPTY) for _ in range(options.batch)])
            say(seconds=time.monotonic() - began)


def put_sync(options: argparse.Namespace) -> None:
    url = f"sqlite:///{options.files[0]}?synchronous={options.synchronous}"
    with pollwise.open_sync(url) as queue:
        queue.put(NewJob(EMPTY))
        say(ready=True)
        for _ in lines():
            began = time.monotonic()
            for _ in range(options.jobs):
                queue.put(NewJob(EMPTY))
            say(seconds=time.monotonic() - began)


async def work(options: argparse.Namespace) -> None:
    queue = SqliteQueue(options.files[0], synchronous=options.synchronous)
    worker = Worker(queue, WorkerRunOptions(concurrency=8, prefetch=options.prefetch))
    loop = asyncio.get_running_loop()
    numbers = itertools.count(1)
    first = last = cpu = 0.0

    def count() -> None:
        nonlocal first, last, cpu
        n = next(numbers)
        if n == 1:
            first, cpu = time.monotonic(), time.process_time()
        if n == options.jobs:
            last = time.monotonic()
            loop.call_soon_threadsafe(worker.stop)

    async def empty(job: Job) -> None:
        count()

    def empty_plain(job: Job) -> None:
        count()

    worker.handle(EMPTY)(empty_plain if options.plain else empty)
    serve()
    async with queue:
        await worker.run()
        settled = time.monotonic()
    say(first=first, last=last, settled=settled, cpu=time.process_time() - cpu)
    signal.pause()  # the parent reads our memory, then ends this process


async def idle(options: argparse.Namespace) -> None:
    queue = SqliteQueue(options.files[0], synchronous=options.synchronous)
    worker = Worker(queue)
    loop = asyncio.get_running_loop()
    statements = itertools.count()
    looks = itertools.count()
    queue._store.connect().set_trace_callback(lambda _: next(statements))

    @worker.handle(EMPTY)
    async def empty(job: Job) -> None:
        say(started=time.monotonic())

    async def put_here() -> None:
        sent = time.monotonic()
        await queue.put(NewJob(EMPTY))
        say(sent=sent)

    def answer(line: str) -> None:
        if line == "put":
            asyncio.run_coroutine_threadsafe(put_here(), loop)
        else:
            # Reading the count counts too, so earlier readings are subtracted.
            say(statements=next(statements) - next(looks))

    serve(answer)
    say(ready=True)
    async with queue:
        await worker.run()


async def putter(options: argparse.Namespace) -> None:
    queues = [SqliteQueue(file, synchronous=options.synchronous) for file in options.files]
    for queue in queues:
        await queue.stats()  # connects
    say(ready=True)
    for line in lines():
        sent = time.monotonic()
        await queues[int(line)].put(NewJob(EMPTY))
        say(sent=sent)


COMMANDS = {"fill": fill, "put": put, "work": work, "idle": idle, "putter": putter}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sync", action="store_true", help="put by pollwise.open_sync")
    parser.add_argument("--synchronous", default="full")
    parser.add_argument("--prefetch", type=int)
    parser.add_argument("--plain", action="store_true", help="a plain function, run in threads")
    options = parser.parse_args()
    asyncio.run(COMMANDS[options.command](options))


if __name__ == "__main__":
    main()
