"""A worker with and without the key: nothing is lost, and nothing secret is told."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pydantic
import pytest

from pollwise import Job, NewJob, Reject, Retry, Worker, task_ref
from pollwise.codecs import AesGcm, CodecChain, Key, Keys
from pollwise.errors import ConfigError, JobFailed, KeyMissing
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sync import open_sync
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDead, JobGivenBack, JobLocked, JobRetried
from pollwise.runtime.executor.locked import LOCKED_FOR
from pollwise.worker.processes.failures import error_of, failure_of
from tests.support.kit import Seen, options, until, virtually, working

CODEC = AesGcm(Keys((Key("k1", bytes(32)),)))
OTHER = AesGcm(Keys((Key("k2", bytes(32)),)))
CARD = "4111-1111"


class Payment(pydantic.BaseModel):
    card: str
    amount: int

    @pydantic.field_validator("card")
    @classmethod
    def check(cls, card: str) -> str:
        if card.startswith("9"):
            raise ValueError(f"the card {card} is not valid")
        return card


def made(clock: VirtualClock, codec: Any = CODEC) -> tuple[Worker, MemoryQueue, Seen]:
    queue, seen = MemoryQueue(clock=clock, keep="1h"), Seen()
    queue.use_codec(codec)
    return Worker(queue, events=seen.events), queue, seen


def test_a_worker_runs_what_was_encrypted() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue, _ = made(clock)
        got: list[Any] = []

        @worker.task
        async def pay(job: Job, payment: Payment) -> Payment:
            got.append(repr(job))
            return payment

        async with working(worker, options()):
            handle = await pay.put(Payment(card=CARD, amount=7))
            assert await handle.result("1m") == Payment(card=CARD, amount=7)
        assert CARD not in got[0]
        assert "<encrypted, key id k1, " in got[0]
        queue.use_codec(None)
        info = await queue.get(handle.id)
        assert info is not None
        assert CARD not in json.dumps([info.job.payload, info.result])
        with pytest.raises(KeyMissing):
            await handle.result()

    virtually(main)


def test_a_job_whose_key_is_missing_waits_for_a_worker_that_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue, seen = made(clock)
        got: list[Any] = []
        runs: list[int] = []

        @worker.handle("pay", retry=Retry.fixed("1s", attempts=1))
        async def pay(job: Job) -> None:
            got.append(job.payload)
            runs.append(job.attempt)

        ids = await queue.put([NewJob("pay", {"card": CARD}) for _ in range(3)])
        queue.use_codec(OTHER)
        async with working(worker, options()):
            await until(lambda: len(seen.of(JobGivenBack)) >= 30)
            states = [info and info.state for info in [await queue.get(each) for each in ids]]
            assert set(states) <= {"delayed", "ready", "leased"}
            queue.use_codec(CODEC)
            await until(lambda: len(got) == 3)
        assert runs == [1, 1, 1], "no attempt was used up"
        assert got == [{"card": CARD}] * 3
        locked = seen.of(JobLocked)
        assert "the key 'k1', which is not in the program; add it" in locked[0].reason
        assert locked[0].delay == LOCKED_FOR
        assert len(locked) <= len(seen.of(JobGivenBack)) / 3
        assert not seen.of(JobDead)

    with caplog.at_level(logging.DEBUG):
        virtually(main)
    assert CARD not in caplog.text


@pytest.mark.parametrize("codec", [None, OTHER])
def test_without_a_key_a_worker_does_not_spin(codec: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue, seen = made(clock)
        worker.handle("pay")(lambda job: None)
        await queue.put(NewJob("pay", {"card": CARD}))
        queue.use_codec(codec)
        async with working(worker, options()):
            await clock.sleep(10 * LOCKED_FOR)
        assert 9 <= len(seen.of(JobGivenBack)) <= 11

    virtually(main)


def test_what_was_changed_is_dead_alone() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue, seen = made(clock)
        got: list[Any] = []
        worker.handle("pay")(lambda job: got.append(job.payload))
        moved = queue.sealed([NewJob("refund", {"card": CARD})])[0]
        queue.use_codec(None)
        queue.pass_sealed_on()
        await queue.put(NewJob("pay", json.loads(moved.encoded)))
        queue.use_codec(CodecChain(CODEC))
        await queue.put(NewJob("pay", 2))
        async with working(worker, options()):
            await until(lambda: got == [2] and bool(seen.of(JobDead)))
        [dead] = await queue.jobs("dead")
        assert "or moved here from another kind or queue" in (dead.error or "")
        assert CARD not in repr(dead)

    virtually(main)


def test_plain_payloads_can_be_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue, seen = made(clock, None)
        got: list[Any] = []
        worker.handle("pay")(lambda job: got.append(job.payload))
        await queue.put(NewJob("pay", 1))
        queue.use_codec(CODEC)
        async with working(worker, options()):
            await until(lambda: got == [1])
            queue.use_codec(None)
            await queue.put(NewJob("pay", 2))
            queue.use_codec(CodecChain(CODEC, required=True))
            await until(lambda: bool(seen.of(JobDead)))
        assert seen.of(JobDead)[0].error == "its payload is not encrypted, which is required here"
        assert got == [1]

    virtually(main)


class Ours(Exception):
    pass


def test_errors_do_not_tell_what_is_encrypted(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue, seen = made(clock)

        @worker.handle("plain", retry=Retry.fixed("1s", attempts=2))
        async def plain(job: Job) -> None:
            try:
                raise KeyError(job.payload["card"])
            except KeyError as error:
                raise Ours(f"no card {job.payload['card']}") from error

        @worker.handle("model", retry=Retry.never())
        def model(job: Job) -> None:
            Payment.model_validate(job.payload)

        @worker.handle("meant")
        async def meant(job: Job) -> None:
            raise Reject("the bank said no")

        @worker.task
        async def typed(payment: Payment) -> None: ...

        bad = {"card": f"9{CARD}", "amount": "much"}
        ids = await queue.put(
            [
                NewJob("plain", {"card": CARD}),
                NewJob("model", bad),
                NewJob("meant", bad),
                NewJob("typed", {"payment": bad}),
            ]
        )
        async with working(worker, options()):
            await until(lambda: len(seen.of(JobDead)) == 4)
        infos = [await queue.get(each) for each in ids]
        errors = [(info and info.error) or "" for info in infos]
        hidden = "(hidden, because the payload is encrypted)"
        assert errors[0] == f"Ours: {hidden}"
        assert errors[1] == f"ValidationError: {hidden}"
        assert errors[2] == "the bank said no"
        assert errors[3] == (
            "the payload does not fit the task 'typed': payment.card: value_error; "
            "payment.amount: int_parsing"
        )
        unfit = [each for each in seen.of(JobRetried) if each.kind == "typed"]
        told: list[Any] = [*seen.of(JobDead), *seen.of(JobRetried)]
        assert len(told) == 5 + len(unfit)
        assert {each.error for each in unfit} == {errors[3]}
        assert "test_codecs.py" in told[0].traceback + told[-1].traceback
        assert CARD not in "".join(map(repr, [*seen, *infos]))
        with pytest.raises(JobFailed) as failed:
            await queue.result(ids[0])
        assert CARD not in str(failed.value)

    with caplog.at_level(logging.DEBUG):
        virtually(main)
    assert CARD not in caplog.text


def test_a_codec_goes_where_the_url_goes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    worker = Worker(url, codec=CODEC)

    @worker.task
    async def pay(card: str) -> None: ...

    job = pay.put_sync(CARD)
    ref = task_ref("pay", url, codec=[CODEC])
    other = ref.put_sync(card=CARD)
    with open_sync(url) as plain, open_sync(url, codec=CODEC) as queue:
        for each in (job, other):
            raw, info = plain.get(each.id), queue.get(each.id)
            assert raw is not None
            assert info is not None
            assert CARD not in json.dumps(raw.job.payload)
            assert info.job.payload == {"card": CARD}
    for wrong in (Worker, lambda queue, codec: task_ref("pay", queue, codec=codec)):
        with pytest.raises(ConfigError, match="codec was given with a queue"):
            wrong(MemoryQueue(), codec=CODEC)


def test_errors_of_other_processes_do_not_tell_either() -> None:
    try:
        try:
            raise KeyError(CARD)
        except KeyError as cause:
            raise Ours(f"no {CARD}") from cause
    except Ours as error:
        failure = failure_of(error, secret=True)
    assert CARD not in json.dumps(failure)
    raised = error_of(failure)
    assert CARD not in f"{raised} {raised.remote_traceback}"  # type: ignore[attr-defined]
    assert isinstance(raised, Ours)
