"""Reports to Sentry, with a transport that keeps them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from pollwise.core.retry import Retry
from pollwise.observe.sentry import report_if_initialised, report_to_sentry
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.events import Events, PlacesTaken
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [item.get_event() for item in envelope.items if item.get_event()]


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init("http://a@localhost/1", transport=kept, attach_stacktrace=True)
        yield kept
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)


def test_a_dead_job_is_one_error_without_its_payload(kept: Kept) -> None:
    async def main() -> None:
        queue, events = MemoryQueue("mail"), Events()
        report_if_initialised(events)
        worker = Worker(queue, events=events)

        @worker.handle("greet", retry=Retry.fixed("1ms", attempts=2))
        async def greet(job: Any) -> None:
            password = job.payload  # a variable that Sentry would show
            raise ValueError(f"no good: redis://:hunter2@cache {len(password)}")

        await queue.put(NewJob("greet", "the-payload", key="alice"))
        while not kept.sent:  # the second run is due a millisecond after the first
            await worker.run_once()

    asyncio.run(main())
    (error,) = kept.sent
    assert error["level"] == "error"
    (exception,) = error["exception"]["values"]
    assert exception == {"type": "ValueError", "value": "no good: redis://:***@cache 11"}
    assert error["tags"] == {"action": "job_dead", "kind": "greet", "attempt": "2", "queue": "mail"}
    assert "in greet" in error["contexts"]["pollwise"]["traceback"]
    crumbs = error["breadcrumbs"]["values"]
    retried = next(each for each in crumbs if each["message"] == "job_retried")
    assert (retried["category"], retried["level"]) == ("pollwise", "warning")
    assert retried["data"]["attempt"] == 1
    text = json.dumps(error, default=str)
    assert not [word for word in ("the-payload", "hunter2", "alice") if word in text]
    assert '"vars"' not in text


def test_what_handlers_report_themselves_names_their_run(kept: Kept) -> None:
    async def main() -> None:
        queue, events = MemoryQueue("mail"), Events()
        report_to_sentry(events)
        worker = Worker(queue, events=events)
        both = asyncio.Barrier(2)

        @worker.handle("greet", retry=Retry.fixed("1ms", attempts=2))
        async def greet(job: Any) -> None:
            if job.attempt == 1:
                await both.wait()  # the first runs of both fail before the second runs
                raise ValueError("again")
            logging.getLogger("shop").error("the printer is on fire")

        await queue.put([NewJob("greet"), NewJob("greet")])
        while len(kept.sent) < 2:
            await worker.run_once()

    asyncio.run(main())
    for each in kept.sent:
        assert each["tags"] == {"kind": "greet", "attempt": "2", "queue": "mail"}
        job = each["contexts"]["pollwise"]["job"]
        crumbs = each["breadcrumbs"]["values"]
        retried = [each["data"]["job"] for each in crumbs if each["message"] == "job_retried"]
        assert retried == [job], "breadcrumbs of the other job are left out"
    assert {each["contexts"]["pollwise"]["job"] for each in kept.sent} == {"1", "2"}


def test_an_error_without_an_exception(kept: Kept) -> None:
    events = Events()
    end = report_to_sentry(events)
    events.emit(PlacesTaken("mail", 4))
    (error,) = kept.sent
    assert error["exception"]["values"] == [{"type": "PlacesTaken", "value": "places_taken"}]
    assert error["contexts"]["pollwise"]["threads"] == 4
    end()
    events.emit(PlacesTaken("mail", 4))
    assert len(kept.sent) == 1, "and its log record is not reported either"


def test_nothing_is_reported_unless_the_program_wants_it() -> None:
    events = Events(quiet=True)
    report_if_initialised(events)
    assert not events.wants(PlacesTaken)
