"""The attempts of a job: its errors, its current or last run, and where the log of each begins.

Nothing is stored for this: the queue keeps the last errors, and the log says who wrote it. So an
attempt that wrote nothing and did not fail is known only while it is the last one. The error of an
attempt whose lease ran out names its worker; when it began is known until the next one begins, or
if it wrote to the log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pollwise.controller.state.values import LogRun
from pollwise.runtime.jobs import ENDED, JobInfo

#: By how much the clocks of the queue and of the state may differ, in seconds.
SKEW = 5.0
#: The error that a queue notes when a lease ran out; it names the worker.
_LAPSE = re.compile(r"the lease of (\S+) ran out\Z")


@dataclass(slots=True)
class Attempt:
    """One run of a job.

    state: `failed`, or the state of the job if it is the last; None if its end is not kept.
    began_at: when it was claimed, or when its first output came.
    log_start, log_end: its part of the log.
    """

    attempt: int
    worker: str | None = None
    state: str | None = None
    began_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    log_start: int | None = None
    log_end: int | None = None


def attempts_of(info: JobInfo, runs: Sequence[LogRun], size: int, most: int) -> list[Attempt]:
    """What is known of the attempts of a job, the oldest first.

    runs, size: of its log. most: the most attempts it may have; the claim that finds none left
        counts one more.
    """
    ends = [*(run.start for run in runs[1:]), size]
    found = [
        Attempt(run.attempt, run.worker, None, run.began_at, None, None, run.start, end)
        for run, end in zip(runs, ends, strict=False)
    ]
    for failure in info.errors:
        same = [each for each in found if each.attempt == failure.attempt and each.state is None]
        before = [each for each in same if (each.began_at or 0.0) <= failure.at]
        soon = [each for each in same if (each.began_at or 0.0) <= failure.at + SKEW]
        one = before[-1] if before else soon[0] if soon else _added(found, failure.attempt)
        one.state, one.ended_at, one.error = "failed", failure.at, failure.error
        if one.worker is None and (lapse := _LAPSE.match(failure.error)):
            one.worker = lapse[1]
    waits = info.state not in ("leased", *ENDED)
    if waits and found and info.claimed_at is not None:
        last = max(found, key=lambda each: (each.ended_at or 0.0, each.attempt))
        if last.began_at is None and info.claimed_at <= (last.ended_at or 0.0):
            last.began_at = info.claimed_at
    if info.claimed_at is not None and not waits:
        _note_last(found, info, info.claimed_at, min(info.job.attempt, most))
    return sorted(found, key=lambda each: each.began_at or each.ended_at or math.inf)


def _note_last(found: list[Attempt], info: JobInfo, since: float, attempt: int) -> None:
    """Add what the record says of the run that was claimed last.

    Numbers repeat: a job that is retried by an operator begins with 1 again.
    """
    fits = [
        each
        for each in found
        if each.attempt == attempt
        and (
            (each.state is None and (each.began_at or 0.0) >= since - SKEW)
            or (info.state in ("dead", "cancelled") and (each.ended_at or 0.0) >= since)
        )
    ]
    last = fits[-1] if fits else _added(found, attempt)
    last.state, last.worker, last.began_at = info.state, info.worker or last.worker, since
    last.ended_at = None if info.state == "leased" else info.since


def _added(found: list[Attempt], attempt: int) -> Attempt:
    found.append(Attempt(attempt))
    return found[-1]
