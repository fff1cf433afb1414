"""`pollwise queue` on SQS."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from pollwise.queues.sqs.queue import SqsQueue
from pollwise.runtime.jobs import NewJob, Settlement
from tests.support.clouds import CREDENTIALS, MiniStack


def _pollwise(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pollwise", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_dead_jobs_by_hand(ministack: MiniStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": ministack.endpoint}).items():
        monkeypatch.setenv(name, value)

    async def kill() -> None:
        async with SqsQueue("jobs", linger=0) as queue:
            await queue.create()
            await queue.put([NewJob("mail", n) for n in range(3)])
            claims = await queue.claim("w", 10, 60)
            await queue.settle([Settlement.dead(claim, "no such address") for claim in claims])

    asyncio.run(kill())
    stats = json.loads(_pollwise("queue", "stats", "sqs://jobs", "--json").stdout)
    assert (stats["dead"], stats["ready"]) == (3, 0)
    listed = _pollwise("queue", "list", "sqs://jobs", "--state", "dead", "--json")
    dead = json.loads(listed.stdout)
    assert sorted(each["payload"] for each in dead) == [0, 1, 2]
    assert {each["errors"][-1]["error"] for each in dead} == {"no such address"}
    retried = _pollwise("queue", "retry", "sqs://jobs", dead[0]["id"])
    assert retried.returncode == 0, retried.stderr
    dropped = _pollwise("queue", "drop", "sqs://jobs", "--all")
    assert dropped.returncode == 0, dropped.stderr
    stats = json.loads(_pollwise("queue", "stats", "sqs://jobs", "--json").stdout)
    assert (stats["dead"], stats["ready"]) == (0, 1)
    was_put = _pollwise("queue", "put", "sqs://jobs", "mail", "7")
    assert was_put.returncode == 0, was_put.stderr
    for words in (["queue", "list", "sqs://jobs"], ["queue", "show", "sqs://jobs", "1"]):
        refused = _pollwise(*words)
        assert refused.returncode == 2
        assert "shows a job only to the worker that claims it" in refused.stderr.replace("\n", " ")
    missing = _pollwise("queue", "stats", "sqs://nowhere")
    assert missing.returncode != 0
    assert "there is no queue 'nowhere'" in missing.stderr
    assert "Traceback" not in missing.stderr
