"""The capabilities of a store, which every queue states."""

from __future__ import annotations

from dataclasses import dataclass

#: Why a store cannot do something, for the error; where the reason is not plain.
WHY_NOT = {
    "keep breakers": "it cannot change a note only if it is unchanged",
    "keep limits": "it cannot count the jobs that run in the call that claims",
    "keep schedules": "it cannot put a job and advance its schedule in one transaction",
    "link jobs": "it cannot end a job and free those behind it in one transaction",
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. A call that needs something else raises `Unsupported`.

    keys: jobs with the same key run one at a time, in order.
    priorities, delay, unique: the fields of `NewJob` with these names.
    exact_unique: a `unique` is taken until its job is done, and another payload under it is
        refused; if False, repeats are recognised for a limited time only.
    replace: a put with the same `unique` can replace the payload of a job that waits.
    ordered: jobs are claimed in the order they fell due and were put; if False, roughly so.
    kinds: a claim can be limited to some kinds.
    views: `get` and `jobs` show any job; if False, only `jobs("dead")` works.
    shows_claims: a view of a leased job has its claim; if False, only its worker has the claim.
    keep: finished jobs can be kept.
    uncounted: a job that is given back has not used up an attempt.
    suspects: a job whose leases ran out several times in a row is claimed alone, and the attempt of
        a job that was claimed `ahead` does not count when its lease runs out.
    fenced: the store refuses a settlement with an old token; if False, a settlement after the end
        of its lease may go unnoticed.
    atomic_put, atomic_settle: a batch is stored as a whole or not at all; if False, part of it may
        be stored when an error is raised.
    long_poll: a claim may block at the store until a job arrives.
    hints: how far the hints of a put reach: "none", "process", "machine" or "network".
    next_due: an empty claim learns when the next job falls due, and the pause ends then.
    exact_depth: `stats` counts; if False, it estimates.
    headers: a job can have headers.
    results, progress, cancel: the result and the progress of a run can be stored, and a job can be
        cancelled.
    pause: kinds, and the whole queue, can be paused.
    presence: running workers store a record of themselves, and their concurrency can be changed.
    history: workers store what they did in each minute, with their records.
    limits: kinds can have limits, which hold for the claims of all workers together.
    breakers: the state of breakers is kept, and shared by the workers of the queue.
    flows: a job can wait for other jobs of its batch (`after`), and is freed in the transaction
        that ends the last of them.
    schedules: schedules are kept, and the job of a tick is put in the transaction that advances its
        schedule.
    """

    keys: bool = True
    priorities: bool = True
    delay: bool = True
    unique: bool = True
    exact_unique: bool = True
    replace: bool = True
    ordered: bool = True
    kinds: bool = True
    views: bool = True
    shows_claims: bool = True
    keep: bool = True
    uncounted: bool = True
    suspects: bool = True
    fenced: bool = True
    atomic_put: bool = True
    atomic_settle: bool = True
    long_poll: bool = False
    hints: str = "process"
    next_due: bool = True
    exact_depth: bool = True
    headers: bool = True
    results: bool = True
    progress: bool = True
    cancel: bool = True
    pause: bool = True
    presence: bool = True
    history: bool = True
    limits: bool = True
    breakers: bool = True
    flows: bool = True
    schedules: bool = True
