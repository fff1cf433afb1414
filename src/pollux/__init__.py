"""Pollux decides when to look again: adaptive polling for Python.

async for batch in pollux.poll(fetch, pollux.Adaptive("100ms", "5s")):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import (
    ConfigError,
    HandlerError,
    HandlerTimeout,
    JobError,
    LeaseLost,
    MissingExtra,
    OutboxError,
    PayloadError,
    PolluxError,
    ProbeError,
    ProbeRefused,
    ProbeTimeout,
    PublishError,
    PublishRefused,
    Reject,
    SchemaError,
    SignatureError,
    Snooze,
    StoreError,
    StoreUnavailable,
    UniqueConflict,
    Unsupported,
)

if TYPE_CHECKING:
    from pollux.clock import Clock
    from pollux.core.adaptive import Adaptive
    from pollux.core.agenda import Agenda
    from pollux.core.batch_fill import BatchFill
    from pollux.core.breaker import Breaker
    from pollux.core.ewma import Ewma
    from pollux.core.fixed import Fixed
    from pollux.core.freshness import Freshness
    from pollux.core.outcome import Outcome, Pause
    from pollux.core.presets import PollingStrategy
    from pollux.core.retry import Retry
    from pollux.core.strategy import Pacer, Strategy
    from pollux.core.worth import Worth
    from pollux.events import Events
    from pollux.fleet import Fleet, Reading, Target
    from pollux.hints import Hints
    from pollux.jobs import Job, NewJob
    from pollux.loop import Batch, poll
    from pollux.outbox import Outbox, OutboxRunOptions
    from pollux.outbox.records import NewRecord, Record
    from pollux.queues.base import Queue
    from pollux.queues.urls import open_queue as open
    from pollux.worker import Worker, WorkerRunOptions

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "Agenda",
    "Batch",
    "BatchFill",
    "Breaker",
    "Clock",
    "ConfigError",
    "Events",
    "Ewma",
    "Fixed",
    "Fleet",
    "Freshness",
    "HandlerError",
    "HandlerTimeout",
    "Hints",
    "Job",
    "JobError",
    "LeaseLost",
    "MissingExtra",
    "NewJob",
    "NewRecord",
    "Outbox",
    "OutboxError",
    "OutboxRunOptions",
    "Outcome",
    "Pacer",
    "Pause",
    "PayloadError",
    "PollingStrategy",
    "PolluxError",
    "ProbeError",
    "ProbeRefused",
    "ProbeTimeout",
    "PublishError",
    "PublishRefused",
    "Queue",
    "Reading",
    "Record",
    "Reject",
    "Retry",
    "SchemaError",
    "SignatureError",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "Strategy",
    "Target",
    "UniqueConflict",
    "Unsupported",
    "Worker",
    "WorkerRunOptions",
    "Worth",
    "open",
    "poll",
]

# A name is imported when it is first used: who only polls does not wait for fleets and outboxes.
# Type checkers see the imports above instead, and so a name that is misspelt.
if not TYPE_CHECKING:
    import importlib
    import sys

    #: Where a name comes from; after a colon, what it is called there.
    _HOMES = {
        "Adaptive": "pollux.core.adaptive",
        "Agenda": "pollux.core.agenda",
        "Batch": "pollux.loop",
        "BatchFill": "pollux.core.batch_fill",
        "Breaker": "pollux.core.breaker",
        "Clock": "pollux.clock",
        "Events": "pollux.events",
        "Ewma": "pollux.core.ewma",
        "Fixed": "pollux.core.fixed",
        "Fleet": "pollux.fleet",
        "Freshness": "pollux.core.freshness",
        "Hints": "pollux.hints",
        "Job": "pollux.jobs",
        "NewJob": "pollux.jobs",
        "NewRecord": "pollux.outbox.records",
        "Outbox": "pollux.outbox",
        "OutboxRunOptions": "pollux.outbox",
        "Outcome": "pollux.core.outcome",
        "Pacer": "pollux.core.strategy",
        "Pause": "pollux.core.outcome",
        "PollingStrategy": "pollux.core.presets",
        "Queue": "pollux.queues.base",
        "Reading": "pollux.fleet",
        "Record": "pollux.outbox.records",
        "Retry": "pollux.core.retry",
        "Strategy": "pollux.core.strategy",
        "Target": "pollux.fleet",
        "Worker": "pollux.worker",
        "WorkerRunOptions": "pollux.worker",
        "Worth": "pollux.core.worth",
        "open": "pollux.queues.urls:open_queue",
        "poll": "pollux.loop",
    }
    #: Modules that are there after `import pollux`, as if that had imported them.
    _PARTS = (
        "clock", "core", "durations", "errors", "events", "fleet", "hints", "jobs", "loop",
        "outbox", "queues", "urls", "worker",
    )  # fmt: skip

    def __getattr__(name):
        if name in _PARTS:
            return importlib.import_module(f"pollux.{name}")
        if name not in _HOMES:
            raise AttributeError(
                f"module 'pollux' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
            )
        module, _, there = _HOMES[name].partition(":")
        found = globals()[name] = getattr(importlib.import_module(module), there or name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__, *_PARTS})
