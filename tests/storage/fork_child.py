"""A program that forks after it used a store, for test_forks.py: `fork_child.py url how`.

how: "new" uses a new event loop after the fork, in parent and child; "same" goes on with the old.
Parent and child put, claim and settle jobs of their own at the same time. The last line is "ok", or
an error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback

import pollwise
from pollwise.errors import StoreError
from pollwise.outbox.records import NewRecord
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.queues.base import Queue
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob, Settlement

ROUNDS = 20


async def work(queue: Queue | OutboxStore, kind: str) -> None:
    for number in range(ROUNDS):
        mine = f"{kind}-{number}"
        if isinstance(queue, OutboxStore):
            await queue.put(NewRecord(kind, mine))
            await queue.stats()
            continue
        if not queue.capabilities.kinds:  # a claim might return a job of the other process
            await queue.put(NewJob(kind, mine))
            await queue.stats()
            continue
        [job_id] = await queue.put(NewJob(kind, mine))
        [claim] = await queue.claim(kind, 1, "60s", kinds=[kind])
        assert (claim.job.id, claim.job.payload) == (job_id, mine), f"{claim} is not {mine}"
        await queue.settle([Settlement.done(claim)])


async def pause_briefly(queue: Queue | OutboxStore) -> None:
    """Pause as the poll loop does, so that the channel of hints is set up."""
    hint, hints = Hint(), queue.hints()
    hints.join(hint)
    hints.asleep(hint)
    await queue.clock.sleep(0.2, hint)
    hints.leave(hint)


async def before(queue: Queue | OutboxStore) -> None:
    await work(queue, "before")
    await pause_briefly(queue)
    await asyncio.gather(*(queue.stats() for _ in range(20)))  # several connections and threads


async def after(queue: Queue | OutboxStore, kind: str) -> None:
    await work(queue, kind)
    await pause_briefly(queue)
    await work(queue, kind)
    await queue.close()


def in_child(queue: Queue | OutboxStore, runner: asyncio.Runner, how: str) -> int:
    try:
        if how == "same":
            runner.run(after(queue, "child"))
        else:
            asyncio.run(after(queue, "child"))
    except StoreError as error:
        print(f"refused: {error}", flush=True)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(url: str, how: str) -> int:
    queue = open_store(url) if "outbox=" in url else pollwise.open(url)
    with asyncio.Runner() as runner:
        runner.run(before(queue))
        child = os.fork()
        if not child:
            code = in_child(queue, runner, how)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        runner.run(after(queue, "parent"))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    print("ok" if code == 0 else f"the child ended with {code}")
    sys.exit(code)
