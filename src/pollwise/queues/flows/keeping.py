"""What the end of a job of a flow means for the others: they may run, and need its result."""

from __future__ import annotations

from dataclasses import replace

from pollwise.queues.flows.view import FLOW_KEPT
from pollwise.runtime.jobs import DELAY_MAX, Job, Settlement
from pollwise.runtime.jobs.new_job import FLOW_HEADER


def kept_for_flows(settlements: list[Settlement]) -> list[Settlement]:
    """Settlements that keep the ended jobs of flows for those that come after them.

    When all jobs of the flow have ended, its store takes FLOW_KEPT off again.
    """
    return [
        replace(each, keep=min(FLOW_KEPT + (each.keep or 0.0), DELAY_MAX))
        if FLOW_HEADER in each.claim.job.headers and each.action in ("done", "cancelled")
        else each
        for each in settlements
    ]


def frees_others(job: Job) -> bool:
    """True if others may wait for the end of this job."""
    return job.key is not None or FLOW_HEADER in job.headers
