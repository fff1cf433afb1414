"""What a flow looks like: its jobs, and which of them wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pollwise.runtime.jobs import JobInfo
from pollwise.runtime.jobs.new_job import FLOW_HEADER

#: Jobs of a flow are kept this long after they ended, in seconds, so that their results are there
#: for those that come after them ...
FLOW_KEPT = 30 * 86400.0
#: ... and this long after the last of them ended, to be seen.
FLOW_SHOWN = 3600.0
#: A view shows this many jobs of a flow, from its first on ...
FLOW_SHOWN_MAX = 1000
#: ... and of what the asked job comes after, at most this many that are not among those.
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
    """A flow: its jobs in put order, and whether there are more than these.

    These are the first FLOW_SHOWN_MAX. If the asked job is not among them, it follows, after the
    jobs right before it.
    """

    name: str
    jobs: tuple[FlowJob, ...]
    more: bool = False

    @classmethod
    def of(cls, jobs: Sequence[FlowJob], asked: str) -> FlowView:
        """What is shown of a flow that is asked for by one of its jobs.

        jobs: its first jobs, at least one, and more than are shown if there are.
        """
        name = jobs[0].info.job.headers.get(FLOW_HEADER, "")
        shown = (*jobs[:FLOW_SHOWN_MAX], *_asked_in(jobs[FLOW_SHOWN_MAX:], asked))
        return cls(name, shown, len(jobs) > len(shown))


def is_among(jobs: Sequence[FlowJob], job_id: str) -> bool:
    return any(each.info.job.id == job_id for each in jobs)


def _asked_in(later: Sequence[FlowJob], asked: str) -> list[FlowJob]:
    """The asked job and those right before it, of the jobs that are not shown anyway.

    If it comes after many, those that hold it up are shown before those that are done.
    """
    found = [each for each in later if each.info.job.id == asked]
    if not found:
        return []
    after = set(found[0].after)
    before = [each for each in later if each.info.job.id in after]
    before.sort(key=lambda each: each.info.state == "done")
    shown = {each.info.job.id for each in (*before[:BEFORE_SHOWN_MAX], *found)}
    return [each for each in later if each.info.job.id in shown]
