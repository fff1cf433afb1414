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
#: A view shows at most this many jobs of a flow.
FLOW_SHOWN_MAX = 1000


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
    """A flow: its jobs in put order, at most FLOW_SHOWN_MAX, and whether there are more."""

    name: str
    jobs: tuple[FlowJob, ...]
    more: bool = False

    @classmethod
    def of(cls, jobs: Sequence[FlowJob]) -> FlowView:
        """From the first jobs of a flow, at least one, and one more than are shown if there are."""
        name = jobs[0].info.job.headers.get(FLOW_HEADER, "")
        return cls(name, tuple(jobs[:FLOW_SHOWN_MAX]), len(jobs) > FLOW_SHOWN_MAX)
