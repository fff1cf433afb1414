"""What SQS brings along: foreign messages, groups, dead jobs, limits, and what requests cost."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pollwise
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import ConfigError, StoreError, StoreUnavailable, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.sqs.messages import RAW
from pollwise.queues.sqs.queue import SqsFifoQueue, SqsQueue
from pollwise.queues.views import JobFilter
from pollwise.runtime.events import JobDead, JobDone
from pollwise.runtime.jobs import Job, NewJob, Settlement
from pollwise.worker import Worker
from tests.support.clouds import CREDENTIALS, MiniStack
from tests.support.fast import FastClock
from tests.support.kit import Seen, options, working

_numbers = itertools.count(1)


class Cloud:
    """A server, its clock, and queues on it that nobody else has."""

    def __init__(self, server: MiniStack) -> None:
        assert server.fast is not None
        self.server = server
        self.clock = FastClock(server.fast)

    def run(self, main: Callable[[Cloud], Awaitable[None]]) -> None:
        async def body() -> None:
            await main(self)

        self.clock.run(body())

    def handle(self, name: str, **given: Any) -> SqsQueue:
        kind = SqsFifoQueue if name.endswith(".fifo") else SqsQueue
        given = {"endpoint": self.server.endpoint, "linger": 0, "timeout": "100s", **given}
        return kind(name, clock=self.clock, **given)

    async def queue(self, suffix: str = "", *, max_receives: int = 100, **given: Any) -> SqsQueue:
        queue = self.handle(f"q{next(_numbers)}{suffix}", **given)
        await queue.create(max_receives=max_receives)
        return queue


@pytest.fixture
def cloud(fast_ministack: MiniStack, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return Cloud(fast_ministack)


async def _send(queue: SqsQueue, body: str, **more: Any) -> None:
    """A message as anybody may send it."""
    client = await queue._sqs._opened()
    await client.send_message(QueueUrl=await queue._sqs.url(), MessageBody=body, **more)


async def _until(happened: Callable[[], bool], clock: FastClock, within: float = 100.0) -> None:
    until = clock.now() + within
    while not happened():
        assert clock.now() < until, f"it did not happen within {within:g} s"
        await clock.sleep(0.2)


def _counted(queue: SqsQueue) -> Counter[str]:
    """Count the requests of a queue from now on."""
    counts: Counter[str] = Counter()
    real = queue._sqs._call

    async def call(name: str, *given: Any, **more: Any) -> Any:
        counts[name] += 1
        return await real(name, *given, **more)

    queue._sqs._call = call  # type: ignore[assignment]
    return counts


# What requests cost


def test_batches_take_as_few_requests_as_can_be(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        await queue.claim("w", 1, 30)  # looks up the queue and its dead-letter queue
        counts = _counted(queue)
        await queue.put([NewJob("job", n) for n in range(95)])
        assert counts == {"send_message_batch": 10}
        counts.clear()
        claims = await queue.claim("w", 200, 30)
        assert len(claims) == 95
        assert counts["receive_message"] <= 13
        counts.clear()
        await queue.renew(claims, 60)
        assert counts == {"change_message_visibility_batch": 10}
        counts.clear()
        await queue.settle([Settlement.done(claim) for claim in claims])
        assert counts == {"delete_message_batch": 10}
        await queue.close()

    cloud.run(main)


def test_receives_go_side_by_side_while_they_come_back_full(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        await queue.put([NewJob("job", n) for n in range(300)])
        assert len(await queue.claim("w", 150, 300)) == 150
        assert queue._more > 3
        grown = queue._more
        assert len(await queue.claim("w", 1000, 300)) == 150
        for _ in range(3):
            await queue.claim("w", 100, 300)
        assert queue._more < grown
        await queue.close()

    cloud.run(main)


def test_an_idle_held_poll_is_one_request_in_twenty_seconds(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        await queue.claim("w", 1, 30)
        counts = _counted(queue)
        began = cloud.clock.now()
        for _ in range(3):
            assert await queue.claim("w", 10, 30, hold=20) == []
        assert counts == {"receive_message": 3}
        assert 60 <= cloud.clock.now() - began < 75
        counts.clear()
        assert await queue.claim("w", 10, 30, hold=50) == []  # longer than SQS can: 20 + 20 + 10
        assert counts["receive_message"] == 3
        await queue.close()

    cloud.run(main)


def test_large_payloads_are_not_sent_together(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        large = "x" * 500_000
        await queue.put([NewJob("job", large + str(n)) for n in range(5)])
        claims = await queue.claim("w", 10, 30)
        assert sorted(claim.job.payload[-1] for claim in claims) == list("01234")
        await queue.close()

    cloud.run(main)


# Messages that are not ours


def test_a_message_of_another_tool_is_raw(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        attributes = {
            "lang": {"DataType": "String", "StringValue": "cobol"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
            "n": {"DataType": "Number", "StringValue": "7"},
        }
        await _send(queue, "<not>json</not>", MessageAttributes=attributes)
        await _send(queue, '{"json": "but no kind"}')
        kind = {"pollwise.kind": {"DataType": "String", "StringValue": "job"}}
        await _send(queue, "{broken", MessageAttributes=kind)
        await _send(queue, "[" * 100_000, MessageAttributes=kind)
        claims = {c.job.payload["body"][:5]: c for c in await queue.claim("w", 10, 30)}
        assert {claim.job.kind for claim in claims.values()} == {RAW}
        got = claims["<not>"].job
        assert got.payload["attributes"] == {
            "lang": {"type": "String", "value": "cobol"},
            "blob": {"type": "Binary", "value": "AP8="},
            "n": {"type": "Number", "value": "7"},
        }
        # It dies as it came, and a retry brings it back as it came.
        await queue.settle([Settlement.dead(claims["<not>"], "what is this?")])
        [dead] = await queue.jobs("dead")
        assert (dead.error, dead.job.payload["body"]) == ("what is this?", "<not>json</not>")
        assert await queue.retry() == 1
        [again] = await queue.claim("w", 10, 30)
        assert again.job.payload == got.payload
        await queue.close()

    cloud.run(main)


def test_a_producer_in_any_language_needs_a_kind_and_json(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        kind = {"pollwise.kind": {"DataType": "String", "StringValue": "resize"}}
        await _send(queue, '{"width": 3}', MessageAttributes=kind)
        [claim] = await queue.claim("w", 10, 30)
        assert (claim.job.kind, claim.job.payload) == ("resize", {"width": 3})
        assert claim.job.id
        await queue.settle([Settlement.dead(claim, "no")])
        [dead] = await queue.jobs("dead")
        assert (dead.job.id, dead.job.kind) == (claim.job.id, "resize")
        await queue.close()

    cloud.run(main)


def test_a_worker_buries_what_is_not_its_and_goes_on(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue, seen = await cloud.queue(), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("job")
        async def work(job: Job) -> None:
            pass

        await _send(queue, "hello")
        await queue.put([NewJob("job"), NewJob("nobody's")])
        async with working(worker, options(polling=Adaptive("100ms", "1s", hold="20s"))):
            await _until(lambda: bool(seen.of(JobDead) and seen.of(JobDone)), cloud.clock)
        [dead] = await queue.jobs("dead")
        assert dead.job.payload["body"] == "hello"
        assert f"{RAW!r}" in (dead.error or "")
        stats = await queue.stats()
        assert stats.ready + stats.leased == 1  # what somebody else may have a handler for
        await queue.close()

    cloud.run(main)


# Leases, and stopping


def test_a_stop_hands_back_at_once(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        other = cloud.handle(queue.name)
        worker = Worker(queue)
        began = asyncio.Event()

        @worker.handle("job")
        async def work(job: Job) -> None:
            began.set()
            await cloud.clock.sleep(1000)

        await queue.put([NewJob("job", n) for n in range(5)])
        chosen = options(concurrency=2, prefetch=3, lease="10m", grace=0)
        async with working(worker, chosen):
            await began.wait()
        assert len(await other.claim("w", 10, 30)) == 5
        await queue.close()
        await other.close()

    cloud.run(main)


def test_a_stop_ends_a_held_poll_and_strands_nothing(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue, other = await cloud.queue(linger=20), None
        worker = Worker(queue)

        @worker.handle("job")
        async def work(job: Job) -> None:
            raise AssertionError("it came after the stop")

        began = cloud.clock.now()
        async with working(worker, options(polling=Adaptive("100ms", "1s", hold="20s"))):
            await cloud.clock.sleep(5)
        assert cloud.clock.now() - began < 12, "the stop waited for the poll"
        other = cloud.handle(queue.name)
        await other.put(NewJob("job"))  # the poll that SQS still holds gets it, and hands it back
        claims = await other.claim("w", 1, 30, hold=20)
        assert len(claims) == 1
        assert cloud.clock.now() - began < 25
        await queue.close()
        await other.close()

    cloud.run(main)


def test_handlers_are_run_for_as_long_as_they_take(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue, seen = await cloud.queue(), Seen()
        worker = Worker(queue, events=seen.events)
        runs: list[int] = []

        @worker.handle("job")
        async def work(job: Job) -> None:
            runs.append(job.attempt)
            await cloud.clock.sleep(20)

        await queue.put(NewJob("job"))
        async with working(worker, options(lease="6s")):
            await _until(lambda: bool(seen.of(JobDone)), cloud.clock)
        assert runs == [1]
        await queue.close()

    cloud.run(main)


def test_what_sqs_cannot_do_is_refused(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        with pytest.raises(Unsupported, match="900 s"):
            await queue.put(NewJob("job", delay="16m"))
        with pytest.raises(ConfigError, match="12 h"):
            await queue.claim("w", 1, "13h")
        with pytest.raises(Unsupported, match="headers"):
            await queue.put(NewJob("job", headers={"trace": "1"}))
        with pytest.raises(Unsupported, match="cancel"):
            await queue.cancel(["1"])
        with pytest.raises(Unsupported, match="by kind"):
            await queue.stats_by_kind()
        with pytest.raises(Unsupported, match="worker"):
            await queue.jobs("dead", worker="w")
        with pytest.raises(Unsupported, match="cannot page"):
            await queue.page(JobFilter("dead", after="x"))
        with pytest.raises(Unsupported, match="keep"):
            cloud.handle(queue.name, keep="1d")
        with pytest.raises(ConfigError, match="SqsFifoQueue"):
            SqsQueue("jobs.fifo")
        with pytest.raises(ConfigError, match="SqsQueue"):
            SqsFifoQueue("jobs")
        await queue.close()

    cloud.run(main)


# Dead letters


def test_what_is_received_too_often_is_moved_by_sqs_itself(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue(max_receives=2)
        await queue.put(NewJob("job", "deadly"))
        for _ in range(2):
            assert len(await queue.claim("w", 1, 2)) == 1
            await cloud.clock.sleep(3)
        assert await queue.claim("w", 1, 2) == []
        [dead] = await queue.jobs("dead")
        assert (dead.job.payload, dead.state) == ("deadly", "dead")
        assert "too often" in (dead.error or "")
        assert await queue.retry([dead.job.id]) == 1
        [claim] = await queue.claim("w", 1, 30)
        assert claim.job.id == dead.job.id
        await queue.close()

    cloud.run(main)


def test_many_dead_jobs_are_retried_and_dropped(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue = await cloud.queue()
        ids = await queue.put([NewJob("ab"[n % 2], n) for n in range(130)])
        claims = await queue.claim("w", 200, 300)
        await queue.settle([Settlement.dead(claim, "no") for claim in claims])
        assert (await queue.stats()).dead == 130
        assert len(await queue.jobs("dead", limit=30)) == 30
        assert len(await queue.jobs("dead", kind="a", limit=200)) == 65
        assert await queue.drop(ids[:3]) == 3
        assert await queue.retry(ids[100:]) == 30
        assert await queue.retry() == 97
        assert (await queue.stats()).dead == 0
        assert len(await queue.claim("w", 200, 300)) == 127
        await queue.close()

    cloud.run(main)


def test_a_queue_without_a_dead_letter_queue_says_so(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        made = await cloud.queue()
        client = await made._sqs._opened()
        await client.create_queue(QueueName="lonely")
        lonely = cloud.handle("lonely")
        await lonely.put(NewJob("job"))
        with pytest.raises(ConfigError, match=r"redrive policy.*dead=lonely-dead"):
            await lonely.claim("w", 1, 30)
        assert (await lonely.stats()).ready == 1
        # It may borrow one, or do without.
        borrowing = cloud.handle("lonely", dead=f"{made.name}-dead")
        [claim] = await borrowing.claim("w", 1, 30)
        await borrowing.settle([Settlement.dead(claim, "no")])
        assert len(await made.jobs("dead")) == 1
        careless = cloud.handle("lonely", dead="delete")
        await careless.put(NewJob("job"))
        [claim] = await careless.claim("w", 1, 30)
        await careless.settle([Settlement.dead(claim, "no")])
        stats = await careless.stats()
        assert stats.ready + stats.leased + stats.dead == 0
        with pytest.raises(ConfigError, match="dead=delete"):
            await careless.jobs("dead")
        for queue in (made, lonely, borrowing, careless):
            await queue.close()

    cloud.run(main)


# FIFO


def test_a_fifo_queue_with_content_dedup_puts_once(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        made = await cloud.queue(".fifo")
        client = await made._sqs._opened()
        policy = await made._sqs.attributes(await made._sqs.url(), "RedrivePolicy")
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", **policy}
        await client.create_queue(QueueName="content.fifo", Attributes=attributes)
        queue = cloud.handle("content.fifo")
        await queue.put([NewJob("a", 1), NewJob("a", 1), NewJob("b", 1), NewJob("a", 1, key="k")])
        await queue.put(NewJob("a", 1, unique="u"))
        found = sorted((c.job.kind, c.job.key or "") for c in await queue.claim("w", 10, 30))
        assert found == [("a", ""), ("a", ""), ("a", "k"), ("b", "")]
        plain = await cloud.queue(".fifo")
        await plain.put([NewJob("a", 1), NewJob("a", 1)])
        assert len(await plain.claim("w", 10, 30)) == 2
        for each in (made, queue, plain):
            await each.close()

    cloud.run(main)


def test_groups_stay_in_order_through_a_worker(cloud: Cloud) -> None:
    async def main(cloud: Cloud) -> None:
        queue, seen = await cloud.queue(".fifo", max_receives=1000), Seen()
        worker = Worker(queue, events=seen.events)
        ran: dict[str, list[int]] = {}
        running: Counter[str] = Counter()

        @worker.handle("job", retry=Retry.fixed("1s", attempts=1000))
        async def work(job: Job) -> None:
            assert job.key is not None
            running[job.key] += 1
            assert running[job.key] == 1, "two of a key at a time"
            await cloud.clock.sleep(0.1)
            running[job.key] -= 1
            ran.setdefault(job.key, []).append(job.payload)

        await queue.put([NewJob("job", n, key=f"schlüssel {n % 3}") for n in range(18)])
        async with working(worker, options(polling=Adaptive("100ms", "1s"))):
            await _until(lambda: len(seen.of(JobDone)) == 18, cloud.clock, 300)
        assert sorted(ran.values()) == [list(range(first, 18, 3)) for first in range(3)]
        await queue.close()

    cloud.run(main)


# Errors


def test_errors_are_plain(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(queue: Queue, error: type[Exception], *words: str) -> None:
        with pytest.raises(error) as raised:
            await queue.claim("w", 1, 30)
        for word in words:
            assert word in str(raised.value)
        assert "test" not in str(raised.value).replace("tests", ""), "a credential is shown"
        await queue.close()

    async def main(cloud: Cloud) -> None:
        await refused(cloud.handle("nowhere"), StoreError, "'nowhere'", "region")
        away = cloud.handle("away", endpoint="http://127.0.0.1:9", timeout="5s")
        await refused(away, StoreUnavailable, "127.0.0.1:9", "cannot be reached")
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name)
        await refused(cloud.handle("placeless"), ConfigError, "region")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        await refused(cloud.handle("nobody"), StoreError, "credentials", "AWS_PROFILE")

    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    cloud.run(main)


def test_urls(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cloud: Cloud) -> None:
        made = await cloud.queue()
        url = await made._sqs.url()
        monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.server.endpoint)
        await made.put(NewJob("job"))
        for each in (f"sqs://{made.name}", f"sqs://{made.name}?region=us-east-1&linger=0", url):
            async with pollwise.open(each, clock=cloud.clock) as queue:
                [claim] = await queue.claim("w", 1, 30)
                await queue.settle([Settlement.give_back(claim)])
        await made.close()

    cloud.run(main)
    assert json.dumps(pollwise.open("sqs://jobs.fifo").url) == '"sqs://jobs.fifo"'
