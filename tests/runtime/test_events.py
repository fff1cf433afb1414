from __future__ import annotations

import ast
import gc
import inspect
import logging
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import pytest

from pollwise.runtime import events
from pollwise.runtime.events import (
    Event,
    Events,
    JobDead,
    JobDone,
    JobEvent,
    JobStarted,
    PollFailed,
    PollRecovered,
    TicksMissed,
    WorkerStarted,
    action_of,
    all_events,
)

FAILED = PollFailed("q", "OSError: gone away", 2, 1.5)
RECOVERED = PollRecovered("q", 2)
DONE = JobDone("q", "w", "7", "mail", 1, 0.25)


# Sinks.


def test_a_bus_does_not_compare_all_classes_when_it_is_made() -> None:
    Events()
    compared = all_events.cache_info().misses
    assert all(Events().wants(JobDead) for _ in range(100))
    assert all_events.cache_info().misses == compared == 1


def test_a_sink_gets_the_classes_it_subscribed_to_in_order() -> None:
    bus = Events(quiet=True)
    all_seen: list[Event] = []
    jobs: list[Event] = []
    polls: list[Event] = []
    bus.subscribe(all_seen.append)
    bus.subscribe(jobs.append, JobEvent)
    bus.subscribe(polls.append, PollFailed, PollRecovered)
    for event in (FAILED, DONE, RECOVERED):
        bus.emit(event)
    assert all_seen == [FAILED, DONE, RECOVERED]
    assert jobs == [DONE]
    assert polls == [FAILED, RECOVERED]


def test_an_ended_subscription_ends_alone() -> None:
    bus, seen = Events(quiet=True), list[Event]()
    end_one = bus.subscribe(seen.append)
    bus.subscribe(seen.append)
    end_one()
    end_one()  # again changes nothing, least of all for its twin
    bus.emit(DONE)
    assert seen == [DONE]


def test_wants_tells_whether_anybody_listens() -> None:
    bus = Events(quiet=True)
    assert not bus.wants(JobDone)
    end = bus.subscribe(print, JobDone)
    assert bus.wants(JobDone)
    assert not bus.wants(JobStarted)
    end()
    assert not bus.wants(JobDone)


def test_a_sink_may_subscribe_and_leave_while_it_is_called() -> None:
    bus, seen = Events(quiet=True), list[Event]()

    def once(event: Event) -> None:
        seen.append(event)
        end()
        bus.subscribe(seen.append)

    end = bus.subscribe(once)
    bus.emit(DONE)
    bus.emit(FAILED)
    assert seen == [DONE, FAILED]


def test_a_sink_that_raises_disturbs_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, seen = Events(quiet=True), list[Event]()

    def broken(event: Event) -> None:
        raise ValueError("sink is broken")

    bus.subscribe(broken)
    bus.subscribe(seen.append)
    for _ in range(3):
        bus.emit(DONE)
    assert seen == [DONE] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "JobDone" in caplog.text
    assert "sink is broken" in caplog.text


def test_a_broken_sink_need_not_be_hashable(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Broken:
        calls: int = 0

        def __call__(self, event: Event) -> None:
            self.calls += 1
            raise ValueError

    bus, sink = Events(quiet=True), Broken()
    bus.subscribe(sink)
    bus.emit(DONE)
    bus.emit(DONE)
    assert sink.calls == 2
    assert len(caplog.records) == 1


# The log.


def test_what_is_worth_a_persons_notice_is_logged_from_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "pollwise")
    bus = Events()
    bus.emit(FAILED)
    bus.emit(DONE)  # debug: not even built unless somebody asks
    assert not bus.wants(JobDone)
    assert bus.wants(WorkerStarted)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "poll_failed source=q error='OSError: gone away' failures=2 delay=1.5"
    )
    values: Any = record
    assert values.action == "poll_failed"
    assert values.fields == {
        "source": "q", "error": "OSError: gone away", "failures": 2, "delay": 1.5,
    }  # fmt: skip


def test_ticks_are_logged_as_moments(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pollwise"):
        Events().emit(TicksMissed("q", "w", "nightly", "tidy", 1_795_099_850.0, 1_795_099_200.0))
    [record] = caplog.records
    assert record.getMessage().endswith(
        "tick=2026-11-19T14:50:50+00:00 first=2026-11-19T14:40:00+00:00"
    )
    assert record.__dict__["fields"]["tick"] == 1_795_099_850.0


def test_passwords_in_the_texts_of_errors_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    error = "OSError: cannot reach https://me:hunter2@bank.example/pay?token=hunter3"
    line = 'raise OSError("https://me:hunter2@bank.example/")'
    with caplog.at_level(logging.INFO, "pollwise"):
        Events().emit(JobDead("q", "w", "7", "pay", 1, error, line))
    [record] = caplog.records
    assert "bank.example" in record.getMessage()
    assert "hunter" not in record.getMessage() + str(record.__dict__["fields"])


def test_a_quiet_bus_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pollwise")
    Events(quiet=True).emit(FAILED)
    assert not caplog.records


def test_debug_events_are_logged_for_who_asks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pollwise")
    bus = Events(quiet=True)
    bus.subscribe(events.log)
    bus.emit(DONE)
    assert not caplog.records
    caplog.set_level(logging.DEBUG, "pollwise")
    bus.emit(DONE)
    bus.emit(WorkerStarted("q", "w", ("a", "b"), 8, ""))
    assert [record.getMessage() for record in caplog.records] == [
        "job_done source=q worker=w job=7 kind=mail attempt=1 took=0.25",
        "worker_started source=q worker=w kinds=a,b concurrency=8 strategy=''",
    ]


# The table of events.


def classes_in_the_files() -> list[str]:
    files = (
        events.polling, events.jobs, events.schedules, events.outbox, events.controller,
        events.fleet,
    )  # fmt: skip
    body = [node for file in files for node in ast.parse(inspect.getsource(file)).body]
    bases = {
        "Event", "JobEvent", "TickEvent", "AgentJobEvent", "RelayEvent", "RecordEvent",
        "TargetEvent",
    }  # fmt: skip
    return [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef)
        and node.name not in bases
        and any(isinstance(base, ast.Name) and base.id in bases for base in node.bases)
    ]


def test_all_events_are_those_of_the_files_in_their_order() -> None:
    gc.collect()
    assert [kind.__name__ for kind in all_events()] == classes_in_the_files()


def test_all_events_are_complete_before_the_garbage_is_collected() -> None:
    # A dataclass with slots is made twice; the first one lingers among its base's subclasses.
    code = (
        "import gc; gc.disable()\n"
        "from pollwise.runtime.events import all_events\n"
        "print(*[kind.__name__ for kind in all_events()])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == classes_in_the_files()


def test_events_of_others_do_not_count_and_do_no_harm() -> None:
    @dataclass(frozen=True)
    class Mine(JobDone):
        colour: str

    bus, seen = Events(), list[Event]()
    bus.subscribe(seen.append, JobDone)
    bus.emit(Mine("q", "w", "7", "mail", 1, 0.25, "red"))
    assert len(seen) == 1
    assert Mine not in all_events()
    assert JobDone in all_events()


@pytest.mark.parametrize("kind", all_events(), ids=lambda kind: kind.__name__)
def test_every_event_is_a_frozen_documented_value(kind: type[Event]) -> None:
    assert kind.__doc__
    assert not kind.__doc__.startswith(kind.__name__)  # a docstring of its own
    assert kind.level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
    # A method of its own would be compiled whenever a worker starts.
    assert not {"__repr__", "__eq__", "__hash__"} & set(vars(kind)), "decorate it with @event"
    names = [field.name for field in fields(kind)]
    assert names[0] == "source"
    values: dict[str, Any] = dict(zip(names, range(len(names)), strict=True))
    event = kind(**values)
    assert event == kind(**values)
    with pytest.raises(FrozenInstanceError):
        event.source = "other"  # type: ignore[misc]


def test_actions_are_named_after_their_class() -> None:
    assert action_of(PollFailed) == "poll_failed"
    assert action_of(JobDone) == "job_done"


def test_events_are_values() -> None:
    again = JobDone("q", "w", "7", "mail", 1, 0.25)
    assert again == DONE
    assert hash(again) == hash(DONE)
    assert again != JobDone("q", "w", "7", "mail", 2, 0.25)
    assert JobStarted("q", "w", "7", "mail", 1, 0.25) != DONE
    assert repr(FAILED) == (
        "PollFailed(source='q', error='OSError: gone away', failures=2, delay=1.5)"
    )
    assert pickle.loads(pickle.dumps(DONE)) == DONE
