"""A consumer of an SQS queue that states prices instead of intervals."""

from __future__ import annotations

import os

from pollwise import Job, Retry, Worker, WorkerRunOptions, Worth

#: Such as sqs://mails?region=eu-west-1. AWS_ENDPOINT_URL names another server than Amazon's.
QUEUE = os.environ.get("MAILS_QUEUE", "sqs://mails")

# A request costs 0.40 USD for a million. An hour that a mail waits is worth a cent to us. With
# hold, SQS keeps an empty poll open for 20 s and answers as soon as a message arrives.
PACE = Worth(poll_cost=0.40 / 1_000_000, wait_cost=0.01 / 3600, hold="20s")

worker = Worker(QUEUE, WorkerRunOptions(polling=PACE, lease="2m", concurrency=10))


@worker.task(retry=Retry.exponential("5s", attempts=5), result_ttl=None)  # SQS keeps no results
async def send_mail(to: str, subject: str) -> None:
    """Send a mail. It may run twice, so a real one remembers what it sent."""
    print(f"mail to {to}: {subject}", flush=True)


@worker.handle("sqs.raw")
async def from_elsewhere(job: Job) -> None:
    """Messages without the attribute `pollwise.kind`, such as those of other programs."""
    print(f"from elsewhere: {job.payload['body']}", flush=True)
