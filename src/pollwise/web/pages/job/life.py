"""The life of a job as a list of moments, from what its record says and its log knows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pollwise.controller.attempts import Attempt
from pollwise.runtime.jobs import ENDED, JobInfo, worker_of_lapse
from pollwise.web.pages.job.waiting import BlockedBy
from pollwise.web.redaction import redacted_text
from pollwise.web.texts import one_line

#: A job that falls due this many seconds after its put was delayed.
_DELAYED = 0.5


#: About a retry that no page and no controller wrote down.
_UNNAMED = "by a command, a program, or an action on several jobs"


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the timeline.

    at: when it began; until: when it ended, if it has a length. worker: who ran it.
    attempt: the number of the run; None for what is not a run. expected: it has not happened yet.
    other: the id of the job that it waits for.
    """

    name: str
    title: str
    tone: str
    at: float | None = None
    until: float | None = None
    worker: str | None = None
    attempt: int | None = None
    error: str | None = None
    traceback: str | None = None
    note: str = ""
    has_log: bool = False
    expected: bool = False
    other: str | None = None

    @property
    def took(self) -> float | None:
        return None if self.at is None or self.until is None else max(self.until - self.at, 0.0)


def life_of(
    info: JobInfo,
    attempts: Sequence[Attempt],
    now: float,
    by: str = "",
    waits: str = "",
    blocked: BlockedBy | None = None,
    retries: Sequence[tuple[float, str]] = (),
) -> list[Moment]:
    """The moments of a job, the oldest first.

    by: who put it, if that is known. waits: why it does not run yet, if it is ready.
    blocked: what it waits for, if it is blocked. retries: when somebody retried it, and who, as
        far as that was written down.
    """
    job = info.job
    moments = [
        Moment("put", "Put", "blue", job.created_at, note=f"by {one_line(by, 60)}" if by else "")
    ]
    if job.attempt == 0 and job.run_at > job.created_at + _DELAYED:
        late = job.run_at > now
        moments.append(
            Moment("due", "Due", "violet", job.run_at, expected=late, note="delayed by its put")
        )
    first = min((each.attempt for each in attempts), default=1)
    if first > 1 and job.attempt >= first:
        many = f"Attempts 1 to {first - 1}" if first > 2 else "Attempt 1"
        moments.append(Moment("earlier", many, "grey", note="no longer recorded"))
    runs = [_run(info, each, i) for i, each in enumerate(attempts)]
    again = [
        Moment(f"retry-{n}", "Retried", "violet", at, note=f"by {one_line(who, 60)}" if who else "")
        for n, (at, who) in enumerate(retries)
    ]
    if not again and was_retried(info):
        # With no run since then, it is due since it was retried.
        at = job.run_at if job.attempt == 0 else None
        again = [Moment("retry", "Retried", "violet", at, note=_UNNAMED)]
        pairs = enumerate(pairwise(each.attempt for each in attempts), 1)
        place = max((n for n, (one, next) in pairs if next <= one), default=len(runs))
        runs[place:place] = again
    else:
        known = [*runs, *again]
        runs = sorted(known, key=lambda each: math.inf if each.at is None else each.at)
    moments.extend(runs)
    moments.extend(_now(info, now, waits, blocked))
    return moments


def was_retried(info: JobInfo) -> bool:
    """True if the record shows that somebody retried the job: its attempts began again."""
    numbers = [each.attempt for each in info.errors]
    if any(after <= before for before, after in pairwise(numbers)):
        return True
    now, last = info.job.attempt, numbers[-1] if numbers else 0
    if info.state in ("leased", "done"):  # a run that has not failed
        return now <= last
    return info.state in ("ready", "delayed", "blocked") and now < last


def _run(info: JobInfo, attempt: Attempt, place: int) -> Moment:
    """A run that is over, or goes on."""
    failure = next(
        (f for f in info.errors if f.at == attempt.ended_at and f.error == attempt.error),
        next((f for f in info.errors if f.attempt == attempt.attempt), None),
    )
    error = attempt.error if attempt.error is not None or failure is None else failure.error
    if attempt.state in ("done", "leased"):
        error = None
    lapsed = worker_of_lapse(error)
    began = attempt.began_at
    if began is None and info.claimed_at is not None and failure is not None:
        last = info.errors[-1] is failure and info.claimed_at <= failure.at
        began = info.claimed_at if last else None
    titles = {
        "leased": ("runs", "teal"),
        "done": ("done", "green"),
        "dead": ("failed", "red"),
        "failed": ("failed", "red"),
        "cancelled": ("cancelled", "grey"),
    }
    what, tone = (
        ("lease ran out", "amber") if lapsed else titles.get(attempt.state or "", ("ended", "grey"))
    )
    return Moment(
        f"run-{place}",
        f"Attempt {attempt.attempt} {what}",
        tone,
        began if began is not None else attempt.ended_at,
        attempt.ended_at if began is not None else None,
        attempt.worker or (lapsed or None),
        attempt.attempt,
        None if lapsed or error is None else redacted_text(error),
        None if failure is None or lapsed else redacted_text(failure.traceback or ""),
        has_log=attempt.log_start is not None,
        note="The worker did not renew its lease: it may have died." if lapsed else "",
    )


def _now(info: JobInfo, now: float, waits: str, blocked: BlockedBy | None) -> Iterator[Moment]:
    """Where the job stands."""
    job, state = info.job, info.state
    if info.cancel:
        note = "Its worker learns of it within seconds, or with its next renewal."
        yield Moment("cancel", "Cancel requested", "amber", note=note)
    if state in ENDED:
        tone = {"done": "green", "dead": "red"}.get(state, "grey")
        note = "It runs again only if you retry it." if state == "dead" else ""
        yield Moment("state", state.capitalize(), tone, info.since, note=note)
    elif state == "delayed" and job.attempt:
        yield Moment("state", "Next attempt due", "violet", info.since, expected=info.since > now)
    elif state == "ready":
        yield Moment("state", "Ready", "blue", job.run_at, note=waits)
    elif state == "blocked":
        why = blocked or BlockedBy("It waits for an earlier job of its key.")
        yield Moment("state", "Blocked", "amber", note=why.note, other=why.other)
