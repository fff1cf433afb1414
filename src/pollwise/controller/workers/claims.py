"""Runs and claims: the same thing as the state and as the queue have it."""

from __future__ import annotations

from collections.abc import Mapping

from pollwise.controller.state.values import Run
from pollwise.runtime.jobs import Claim, Job


def run_from(claim: Claim, worker_id: str) -> Run | None:
    """The run that a claim begins; None if the queue's job is none of the controller's."""
    payload = claim.job.payload
    if not isinstance(payload, Mapping):
        return None
    job_id, round = payload.get("job"), payload.get("round")
    if not isinstance(job_id, str) or not isinstance(round, int):
        return None
    return Run(
        job_id=job_id,
        worker_id=worker_id,
        queue_id=claim.job.id,
        token=claim.token,
        claimed_as=claim.worker,
        queue_kind=claim.job.kind,
        round=round,
        attempt=claim.job.attempt,
        until=claim.until,
        key=claim.job.key,
        receipt=claim.receipt,
    )


def claim_of(run: Run, queue: str) -> Claim:
    """The claim on the queue that a run stands for."""
    job = Job(
        id=run.queue_id,
        queue=queue,
        kind=run.queue_kind,
        payload=None,
        key=run.key,
        priority=0,
        attempt=run.attempt,
        created_at=0.0,
        run_at=0.0,
        unique=None,
    )
    return Claim(job, run.token, run.claimed_as, run.until, run.receipt)
