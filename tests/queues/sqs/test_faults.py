"""SQS in trouble: parts of a batch that fail, throttling, receipts that fit no more."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from pollwise.core.retry import Retry
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import LeaseLost, PayloadError, StoreError, StoreUnavailable
from pollwise.queues.sqs.queue import SqsQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDone, PollFailed, PollRecovered
from pollwise.runtime.jobs import Job, NewJob, Settlement
from pollwise.worker import Worker
from tests.support.kit import Seen, options, until, virtually, working


def said(code: str, message: str = "", status: int = 400) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "Call")


class FakeSqs:
    """As much of a client as a queue calls, with a plan of what goes wrong.

    plan: by call, what each of its turns does: an error to raise, or a function that is given the
    entries (of a batch) and tells which of them fail, by place, with which code.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.calls: Counter[str] = Counter()
        self.messages: dict[str, dict[str, Any]] = {}
        self.hidden: dict[str, float] = {}
        self.plan: dict[str, list[Any]] = {}
        self._numbers = iter(range(10**6))

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(**given: Any) -> Any:
            self.calls[name] += 1
            plan = self.plan.get(name, [])
            step = plan.pop(0) if plan else None
            if isinstance(step, Exception):
                raise step
            if name.endswith("_batch"):
                return self._batch(name.removesuffix("_batch"), given, step or {})
            return getattr(self, f"_{name}")(given)

        return call

    def _batch(self, call: str, given: dict[str, Any], failing: dict[int, str]) -> Any:
        failed = []
        for place, entry in enumerate(given["Entries"]):
            code = failing.get(place)
            if code is None:
                getattr(self, f"_{call}")({**given, **entry})
            else:
                failed.append({"Id": entry["Id"], "Code": code, "SenderFault": False})
        return {"Failed": failed}

    def _get_queue_url(self, given: dict[str, Any]) -> Any:
        return {"QueueUrl": f"https://sqs.test/1/{given['QueueName']}"}

    def _get_queue_attributes(self, given: dict[str, Any]) -> Any:
        policy = '{"deadLetterTargetArn": "arn:aws:sqs:x:1:jobs-dead", "maxReceiveCount": 9}'
        return {"Attributes": {"RedrivePolicy": policy}}

    def _send_message(self, given: dict[str, Any]) -> Any:
        number = f"m{next(self._numbers)}"
        self.messages[number] = {
            "MessageId": number,
            "ReceiptHandle": "",
            "Body": given["MessageBody"],
            "MessageAttributes": given["MessageAttributes"],
            "Attributes": {"ApproximateReceiveCount": "0"},
            "queue": given["QueueUrl"],
        }
        return {}

    def _receive_message(self, given: dict[str, Any]) -> Any:
        now = self.clock.now()
        there = [
            message
            for message in self.messages.values()
            if message["queue"] == given["QueueUrl"]
            and self.hidden.get(message["MessageId"], 0.0) <= now
        ][: given["MaxNumberOfMessages"]]
        for message in there:
            count = int(message["Attributes"]["ApproximateReceiveCount"]) + 1
            message["Attributes"] = {"ApproximateReceiveCount": str(count)}
            message["ReceiptHandle"] = f"{message['MessageId']}/{count}"
            self.hidden[message["MessageId"]] = now + given["VisibilityTimeout"]
        return {"Messages": [dict(message) for message in there]}

    def _delete_message(self, given: dict[str, Any]) -> Any:
        number = given["ReceiptHandle"].partition("/")[0]
        if self.messages.get(number, {}).get("ReceiptHandle") == given["ReceiptHandle"]:
            del self.messages[number]
        return {}  # an old receipt is no error, and deletes nothing: as AWS has it

    def _change_message_visibility(self, given: dict[str, Any]) -> Any:
        number = given["ReceiptHandle"].partition("/")[0]
        self.hidden[number] = self.clock.now() + given["VisibilityTimeout"]
        return {}


def faked(clock: VirtualClock) -> tuple[SqsQueue, FakeSqs]:
    queue, fake = SqsQueue("jobs", clock=clock), FakeSqs(clock)
    queue._sqs._client = fake
    return queue, fake


def numbers(count: int) -> list[NewJob]:
    return [NewJob("job", n) for n in range(count)]


def test_the_failed_parts_of_a_batch_are_tried_again_one_by_one() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        fake.plan["send_message_batch"] = [{2: "InternalError", 7: "ServiceUnavailable"}]
        await queue.put(numbers(15))
        assert fake.calls["send_message_batch"] == 2
        assert fake.calls["send_message"] == 2
        claims = await queue.claim("w", 100, 30)
        assert sorted(claim.job.payload for claim in claims) == list(range(15))
        fake.plan["change_message_visibility_batch"] = [{0: "RequestThrottled"}]
        await queue.renew(claims, 60)
        assert fake.calls["change_message_visibility"] == 1
        fake.plan["delete_message_batch"] = [{9: "InternalError"}, {0: "InternalError"}]
        await queue.settle([Settlement.done(claim) for claim in claims])
        assert fake.calls["delete_message"] == 2
        assert fake.messages == {}

    virtually(main)


def test_a_part_that_fails_for_good_is_an_error_and_the_others_count() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        fake.plan["send_message_batch"] = [{0: "InvalidMessageContents"}]
        fake.plan["send_message"] = [said("InvalidMessageContents", "bad character")]
        with pytest.raises(StoreError, match="1 of 3 messages were not sent") as raised:
            await queue.put(numbers(3))
        assert raised.value.permanent
        claims = await queue.claim("w", 10, 30)
        assert sorted(claim.job.payload for claim in claims) == [1, 2]
        fake.plan["delete_message_batch"] = [{0: "InternalError"}]
        fake.plan["delete_message"] = [said("InternalError", status=500)]
        with pytest.raises(StoreUnavailable):
            await queue.settle([Settlement.done(claim) for claim in claims])
        assert len(fake.messages) == 1
        await queue.settle([Settlement.done(claim) for claim in claims])  # as a worker does
        assert fake.messages == {}

    virtually(main)


def test_receipts_that_fit_no_more_are_leases_lost() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        await queue.put(numbers(3))
        claims = await queue.claim("w", 10, 30)
        for code in ("ReceiptHandleIsInvalid", "MessageNotInflight"):
            fake.plan["change_message_visibility_batch"] = [{1: code}]
            assert (await queue.renew(claims, 60)).lost == (claims[1].job.id,)
        assert fake.calls["change_message_visibility"] == 0
        fake.plan["delete_message_batch"] = [{2: "AWS.SimpleQueueService.ReceiptHandleIsInvalid"}]
        with pytest.raises(LeaseLost) as raised:
            await queue.settle([Settlement.done(claim) for claim in claims])
        assert raised.value.lost == (claims[2].job.id,)

    virtually(main)


def test_the_dead_are_buried_before_they_are_deleted() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        await queue.put(numbers(1))
        claims = await queue.claim("w", 10, 30)
        fake.plan["send_message_batch"] = [said("ServiceUnavailable", status=503)]
        with pytest.raises(StoreUnavailable):
            await queue.settle([Settlement.dead(claims[0], "no")])
        assert [message["queue"] for message in fake.messages.values()] == [
            "https://sqs.test/1/jobs"
        ]
        await queue.settle([Settlement.dead(claims[0], "no")])
        left = [message["queue"] for message in fake.messages.values()]
        assert left == ["https://sqs.test/1/jobs-dead"]

    virtually(main)


def test_what_was_found_is_delivered_though_more_cannot_be_had() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        await queue.put(numbers(30))
        fake.plan["receive_message"] = [None, said("RequestThrottled")]
        assert len(await queue.claim("w", 30, 30)) == 10
        assert len(await queue.claim("w", 30, 30)) == 20

    virtually(main)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (said("RequestThrottled"), True),
        (said("ThrottlingException"), True),
        (said("OverLimit", "too many in flight"), True),
        (said("unknown", status=503), True),
        (ReadTimeoutError(endpoint_url="https://sqs.test"), True),
        (ConnectionResetError("gone"), True),
        (said("AccessDenied", "AKIAEXAMPLE may not"), False),
        (said("InvalidClientTokenId", "AKIAEXAMPLE"), False),
        (said("AWS.SimpleQueueService.NonExistentQueue"), False),
        (said("UnsupportedOperation"), False),
    ],
    ids=str,
)
def test_errors_that_may_pass_are_distinguished(error: Exception, transient: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        await queue.claim("w", 1, 30)
        fake.plan["receive_message"] = [error]
        with pytest.raises(StoreError) as raised:
            await queue.claim("w", 1, 30)
        assert isinstance(raised.value, StoreUnavailable) == transient
        assert raised.value.permanent != transient
        assert "AKIA" not in str(raised.value)
        assert "jobs" in str(raised.value)

    virtually(main)


def test_a_worker_backs_off_while_it_is_throttled() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        seen = Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("job")
        async def work(job: Job) -> None:
            pass

        await queue.put(numbers(3))
        fake.plan["receive_message"] = [said("RequestThrottled")] * 5
        async with working(worker, options(polling=Fixed("100ms"))):
            await until(lambda: len(seen.of(JobDone)) == 3)
        delays = [event.delay for event in seen.of(PollFailed)]
        assert len(delays) == 5
        assert sum(delays) > 5, f"it hammers: {delays}"
        assert len(seen.of(PollRecovered)) == 1

    virtually(main)


def test_a_payload_too_large_for_the_queue_is_the_payloads_fault() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        text = (
            "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
        )
        fake.plan["send_message_batch"] = [said("InvalidParameterValue", text)]
        with pytest.raises(PayloadError, match="1024"):
            await queue.put(numbers(1))

    virtually(main)


def test_a_server_with_smaller_batches_gets_smaller_batches() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        fake.plan["send_message_batch"] = [said("AWS.SimpleQueueService.BatchRequestTooLong")]
        await queue.put(numbers(4))
        assert fake.calls["send_message"] == 4

    virtually(main)


def test_a_call_that_never_ends_is_given_up() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, _ = faked(clock)
        await queue.claim("w", 1, 30)

        class Stuck:
            async def receive_message(self, **_: Any) -> Any:
                await asyncio.Event().wait()

        queue._sqs._client = Stuck()
        queue._sqs._clock.outside = nullcontext  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="within 15 s"):
            await queue.claim("w", 1, 30, hold=5)

    virtually(main)


def test_a_few_that_are_left_do_not_cost_a_receive_each_time() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, fake = faked(clock)
        got = 0
        for _ in range(40):  # a little more than ten a poll
            await queue.put(numbers(11))
            got += len(await queue.claim("w", 50, 30))
            await clock.advance(0.1)
        assert 440 - got < 8, "what is left grows"
        assert fake.calls["receive_message"] <= 60
        await queue.put(numbers(300))  # a backlog is found within a few polls
        sizes = []
        for _ in range(5):
            sizes.append(len(await queue.claim("w", 500, 30)))
            await clock.advance(0.1)
        assert sum(sizes) >= 300
        # Where polls are far from each other, nothing is left to the next one.
        await queue.put(numbers(11))
        await clock.advance(5)
        assert len(await queue.claim("w", 50, 30)) >= 11

    virtually(main)


class Chaos(FakeSqs):
    """Any call may fail before it did anything, after it did all, or in parts; or take long."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        super().__init__(clock)
        self.random = random.Random(seed)
        self.calm = False

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        real = super().__getattr__(name)

        async def call(**given: Any) -> Any:
            luck = 1.0 if self.calm else self.random.random()
            if luck < 0.1:
                raise said("InternalError", status=500)
            if luck < 0.2 and name.endswith("_batch"):
                self.plan[name] = [dict.fromkeys(range(0, 10, 2), "InternalError")]
            if luck < 0.3:
                await asyncio.sleep(self.random.random() * 8)
            answer = await real(**given)
            if 0.3 <= luck < 0.4:
                raise ReadTimeoutError(endpoint_url="https://sqs.test")
            return answer

        return call


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_in_a_storm(seed: int) -> None:
    async def main(clock: VirtualClock) -> None:
        chaos = Chaos(clock, seed)
        handles = [SqsQueue("jobs", clock=clock) for _ in range(3)]
        for handle in handles:
            handle._sqs._client = chaos
            # The fake sleeps in virtual time: no server is outside of it.
            handle._sqs._clock = InsideClock()
        ran: Counter[int] = Counter()
        workers = [Worker(handle, events=Seen().events) for handle in handles[1:]]
        for worker in workers:

            @worker.handle("job", retry=Retry.fixed("1s", attempts=None))
            async def work(job: Job) -> None:
                await asyncio.sleep(0.2)
                if job.payload % 7 == 0 and not ran[job.payload]:
                    ran[job.payload] = 0
                    if job.attempt == 1:
                        raise RuntimeError("once more")
                ran[job.payload] += 1

        chosen = options(polling=Fixed("500ms"), lease="12s")
        async with working(workers[0], chosen), working(workers[1], chosen):
            for n in range(60):
                while True:
                    try:
                        await handles[0].put(NewJob("job", n))
                        break
                    except StoreError:
                        await asyncio.sleep(1)
            await until(lambda: all(ran[n] for n in range(60)))
            chaos.calm = True
            await until(lambda: not chaos.messages, within=7200)

    virtually(main)


class InsideClock(VirtualClock):
    def outside(self) -> Any:
        return nullcontext()
