"""The code of tests in other processes: `python children.py COMMAND PATH …`.

A child imports everything, prints "ready", and begins with the next line of its input; its answers
are lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pollwise.errors import PollwiseError
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob, Settlement

NOBODY = 65534
#: Seconds after which a child that does not answer fails its test.
PATIENCE = 240.0


class Child:
    """A child process, seen from the test."""

    def __init__(self, command: str, *args: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, command, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line == "ready\n", f"the child said {line!r}: {self._process.communicate()}"

    def go(self, line: str = "go") -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answers(self) -> list[Any]:
        """All answers until its end."""
        out, err = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, f"the child failed:\n{err}"
        return [json.loads(line) for line in out.splitlines()]

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=PATIENCE)


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


async def work(path: str, name: str) -> None:
    """Claim and settle until no job is left; print who had each job, from when to when."""
    async with SqliteQueue(path, synchronous="off") as queue:
        while claims := await queue.claim(name, 7, 600):
            begun = time.monotonic_ns()
            held = [(claim.job.id, claim.token, claim.job.key) for claim in claims]
            ended = time.monotonic_ns()
            await queue.settle([Settlement.done(claim) for claim in claims])
            for job_id, token, key in held:
                say([job_id, token, key, begun, ended])


async def put(path: str, payload: str) -> None:
    async with SqliteQueue(path) as queue:
        say(await queue.put(NewJob("job", payload)))


async def open_each(*paths: str) -> None:
    """Open the files one after the other, each on command, and put a job into it."""
    for path in paths:
        queue = SqliteQueue(path, synchronous="off")
        try:
            await queue.put(NewJob("job"))
            say("ok")
        except PollwiseError as error:
            say(f"{type(error).__name__}: {error}")
        await queue.close()
        sys.stdin.readline()


async def as_nobody(path: str, *calls: str) -> None:
    """Try calls as a user without rights; print the result of each."""
    if os.geteuid() == 0:
        with tempfile.TemporaryDirectory() as folder:  # all is loaded that nobody may not read
            async with SqliteQueue(Path(folder) / "warm.db") as queue:
                await queue.put(NewJob("job"))
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for call in calls:
        async with SqliteQueue(path, create=call != "open") as queue:
            try:
                if call == "put":
                    await queue.put(NewJob("job", "from nobody"))
                else:
                    await getattr(queue, "stats" if call == "open" else call)()
                say("ok")
            except Exception as error:
                say([type(error).__name__, str(error)])


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "work": work,
    "put": put,
    "open_each": open_each,
    "as_nobody": as_nobody,
}

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
else:
    __file__ = str(Path(__file__).resolve())
