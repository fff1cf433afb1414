"""`pollwise queue` on SQS."""

from __future__ import annotations

import asyncio
import json

import pytest

from pollwise.queues.sqs.queue import SqsQueue
from pollwise.runtime.jobs import NewJob, Settlement
from tests.cli.console import pollwise
from tests.support.clouds import CREDENTIALS, MiniStack


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
    stats = json.loads(pollwise("queue", "stats", "sqs://jobs", "--json").out)
    assert (stats["dead"], stats["ready"]) == (3, 0)
    listed = pollwise("queue", "list", "sqs://jobs", "--state", "dead", "--json")
    dead = json.loads(listed.out)
    assert sorted(each["payload"] for each in dead) == [0, 1, 2]
    assert {each["errors"][-1]["error"] for each in dead} == {"no such address"}
    retried = pollwise("queue", "retry", "sqs://jobs", dead[0]["id"])
    assert retried.code == 0, retried.err
    dropped = pollwise("queue", "drop", "sqs://jobs", "--all")
    assert dropped.code == 0, dropped.err
    stats = json.loads(pollwise("queue", "stats", "sqs://jobs", "--json").out)
    assert (stats["dead"], stats["ready"]) == (0, 1)
    was_put = pollwise("queue", "put", "sqs://jobs", "mail", "7")
    assert was_put.code == 0, was_put.err
    for words in (["queue", "list", "sqs://jobs"], ["queue", "show", "sqs://jobs", "1"]):
        refused = pollwise(*words)
        assert refused.code == 2
        assert "shows a job only to the worker that claims it" in refused.err.replace("\n", " ")
    missing = pollwise("queue", "stats", "sqs://nowhere")
    assert missing.code != 0
    assert "there is no queue 'nowhere'" in missing.err
    assert "Traceback" not in missing.err
