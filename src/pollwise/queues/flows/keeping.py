"""Ended jobs of flows: which settlements free other jobs, and how results are kept for them."""

from __future__ import annotations

from dataclasses import replace

from pollwise.queues.flows.view import FLOW_KEPT
from pollwise.runtime.jobs import DELAY_MAX, UNKNOWN_HEADERS, Job, Settlement
from pollwise.runtime.jobs.new_job import FLOW_HEADER


def kept_for_flows(settlements: list[Settlement]) -> list[Settlement]:
    """Return the settlements with FLOW_KEPT added to `keep`, so that successors find the results.

    When all jobs of the flow have ended, its store subtracts FLOW_KEPT again.
    """
    return [
        replace(each, keep=min(FLOW_KEPT + (each.keep or 0.0), DELAY_MAX))
        if FLOW_HEADER in each.claim.job.headers and each.action in ("done", "cancelled")
        else each
        for each in settlements
    ]


def frees_others(job: Job) -> bool:
    """True if other jobs may wait for the end of this job."""
    headers = job.headers
    return job.key is not None or FLOW_HEADER in headers or headers is UNKNOWN_HEADERS
