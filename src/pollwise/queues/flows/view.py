"""A view of a flow: its jobs, and which of them wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pollwise.runtime.jobs import JobInfo
from pollwise.runtime.jobs.new_job import FLOW_HEADER

#: How long an ended job of a flow is kept, in seconds, so that its successors can read its result.
FLOW_KEPT = 30 * 86400.0
#: How long all jobs of a flow are kept after the last of them ended, so that people can see them.
FLOW_SHOWN = 3600.0
#: A view shows at most this many jobs from the beginning of a flow ...
FLOW_SHOWN_MAX = 1000
#: ... and at most this many later predecessors of the job that was asked for.
BEFORE_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class FlowJob:
    """A job of a flow.

    after: the ids of its predecessors. on_failure: it runs when one of these is dead.
    """

    info: JobInfo
    after: tuple[str, ...] = ()
    on_failure: bool = False


@dataclass(frozen=True, slots=True)
class FlowView:
    """A flow. jobs: the first FLOW_SHOWN_MAX jobs, in put order. more: the flow has more jobs.

    If the job that was asked for is not among the first, its predecessors and the job follow.
    """

    name: str
    jobs: tuple[FlowJob, ...]
    more: bool = False

    def started_by(self, job_id: str) -> list[FlowJob]:
        """The jobs of on_failure that the failure of this job has started, of those shown."""
        return [
            each
            for each in self.jobs
            if each.on_failure
            and job_id in each.after
            and each.info.state not in ("blocked", "cancelled")
        ]

    @classmethod
    def of(cls, jobs: Sequence[FlowJob], asked: str) -> FlowView:
        """The view of a flow, for a caller that gave the id `asked` of one of its jobs.

        jobs: the first jobs of the flow, at least one; more than are shown, if the flow has more.
        """
        name = jobs[0].info.job.headers.get(FLOW_HEADER, "")
        shown = (*jobs[:FLOW_SHOWN_MAX], *_asked_in(jobs[FLOW_SHOWN_MAX:], asked))
        return cls(name, shown, len(jobs) > len(shown))


def is_among(jobs: Sequence[FlowJob], job_id: str) -> bool:
    return any(each.info.job.id == job_id for each in jobs)


def _asked_in(later: Sequence[FlowJob], asked: str) -> list[FlowJob]:
    """The job that was asked for and its predecessors, if they are among these later jobs.

    If the predecessors are too many, those that are not done are preferred.
    """
    found = [each for each in later if each.info.job.id == asked]
    if not found:
        return []
    after = set(found[0].after)
    before = [each for each in later if each.info.job.id in after]
    before.sort(key=lambda each: each.info.state == "done")
    shown = {each.info.job.id for each in (*before[:BEFORE_SHOWN_MAX], *found)}
    return [each for each in later if each.info.job.id in shown]
