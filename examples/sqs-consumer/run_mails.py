"""Start a local SQS unless AWS_ENDPOINT_URL is set, put mails, consume them, and exit."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiobotocore.session import get_session

from mails import send_mail, worker
from pollwise.events import PollFinished

MAILS = 20
LOCAL = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def local_sqs(folder: str) -> Iterator[None]:
    """Run MiniStack, which speaks SQS, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update(LOCAL, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    environ = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": port, "TMPDIR": folder}
    environ.update(LOG_LEVEL="WARNING", IOT_MTLS_ENABLED="0")
    server = subprocess.Popen([sys.executable, "-m", "ministack"], env=environ, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_ministack/ready", timeout=5)
                break
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait()


async def make_queues(sqs: Any) -> str:
    """Create the queue, and the one for dead jobs; return the URL of the first."""
    dead = await sqs.create_queue(QueueName="mails-dead")
    asked = {"QueueUrl": dead["QueueUrl"], "AttributeNames": ["QueueArn"]}
    arn = (await sqs.get_queue_attributes(**asked))["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "10"})
    made = await sqs.create_queue(QueueName="mails", Attributes={"RedrivePolicy": redrive})
    return str(made["QueueUrl"])


async def main() -> None:
    async with get_session().create_client("sqs") as sqs:
        url = await make_queues(sqs)
        # What a program in another language sends: JSON with a kind, or anything.
        kind = {"pollwise.kind": {"DataType": "String", "StringValue": "send_mail"}}
        body = json.dumps({"to": "ada@example.com", "subject": "from Java"})
        await sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=kind)
        await sqs.send_message(QueueUrl=url, MessageBody="not even JSON")
    jobs = [send_mail.job(f"user{number}@example.com", "hello") for number in range(MAILS)]
    await worker.queue_for_puts().put(jobs)

    polls: list[PollFinished] = []
    worker.events.subscribe(polls.append, PollFinished)
    summary = await worker.run_once()  # in production: pollwise worker mails:worker
    print(f"{summary.done} jobs done with {len(polls)} polls")
    await worker.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if "AWS_ENDPOINT_URL" in os.environ:
            asyncio.run(main())
        else:
            with local_sqs(folder):
                asyncio.run(main())
