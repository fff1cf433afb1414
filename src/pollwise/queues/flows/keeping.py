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


def kept_at_least(settlements: list[Settlement], keep: float) -> list[Settlement]:
    """Settlements whose jobs are kept at least this many seconds, those of flows FLOW_KEPT longer.

    `kept_for_flows` returned these, or the client that sent them did the same.
    """
    return [
        replace(each, keep=_longer(each, keep)) if each.action in ("done", "cancelled") else each
        for each in settlements
    ]


def _longer(settlement: Settlement, keep: float) -> float:
    own, more = settlement.keep or 0.0, 0.0
    if FLOW_HEADER in settlement.claim.job.headers and own >= FLOW_KEPT:
        own, more = own - FLOW_KEPT, FLOW_KEPT
    return min(max(own, keep) + more, DELAY_MAX)


def frees_others(job: Job) -> bool:
    """True if other jobs may wait for the end of this job."""
    headers = job.headers
    return job.key is not None or FLOW_HEADER in headers or headers is UNKNOWN_HEADERS
