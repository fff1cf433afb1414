"""Pollwise decides when to look again: adaptive polling for Python.

async for batch in pollwise.poll(fetch, pollwise.Adaptive("100ms", "5s")):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollwise.errors import (
    ConfigError,
    HandlerError,
    HandlerTimeout,
    JobError,
    LeaseLost,
    MissingExtra,
    OutboxError,
    PayloadError,
    PollwiseError,
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
    from pollwise.clock import Clock
    from pollwise.core.adaptive import Adaptive
    from pollwise.core.agenda import Agenda
    from pollwise.core.batch_fill import BatchFill
    from pollwise.core.breaker import Breaker
    from pollwise.core.ewma import Ewma
    from pollwise.core.fixed import Fixed
    from pollwise.core.freshness import Freshness
    from pollwise.core.outcome import Outcome, Pause
    from pollwise.core.presets import PollingStrategy
    from pollwise.core.retry import Retry
    from pollwise.core.strategy import Pacer, Strategy
    from pollwise.core.worth import Worth
    from pollwise.events import Events
    from pollwise.fleet import Fleet, Reading, Target
    from pollwise.hints import Hints
    from pollwise.jobs import Job, NewJob
    from pollwise.loop import Batch, poll
    from pollwise.outbox import Outbox, OutboxRunOptions
    from pollwise.outbox.records import NewRecord, Record
    from pollwise.queues.base import Queue
    from pollwise.queues.urls import open_queue as open
    from pollwise.worker import Worker, WorkerRunOptions

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
    "PollwiseError",
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
        "Adaptive": "pollwise.core.adaptive",
        "Agenda": "pollwise.core.agenda",
        "Batch": "pollwise.loop",
        "BatchFill": "pollwise.core.batch_fill",
        "Breaker": "pollwise.core.breaker",
        "Clock": "pollwise.clock",
        "Events": "pollwise.events",
        "Ewma": "pollwise.core.ewma",
        "Fixed": "pollwise.core.fixed",
        "Fleet": "pollwise.fleet",
        "Freshness": "pollwise.core.freshness",
        "Hints": "pollwise.hints",
        "Job": "pollwise.jobs",
        "NewJob": "pollwise.jobs",
        "NewRecord": "pollwise.outbox.records",
        "Outbox": "pollwise.outbox",
        "OutboxRunOptions": "pollwise.outbox",
        "Outcome": "pollwise.core.outcome",
        "Pacer": "pollwise.core.strategy",
        "Pause": "pollwise.core.outcome",
        "PollingStrategy": "pollwise.core.presets",
        "Queue": "pollwise.queues.base",
        "Reading": "pollwise.fleet",
        "Record": "pollwise.outbox.records",
        "Retry": "pollwise.core.retry",
        "Strategy": "pollwise.core.strategy",
        "Target": "pollwise.fleet",
        "Worker": "pollwise.worker",
        "WorkerRunOptions": "pollwise.worker",
        "Worth": "pollwise.core.worth",
        "open": "pollwise.queues.urls:open_queue",
        "poll": "pollwise.loop",
    }
    #: Modules that are there after `import pollwise`, as if that had imported them.
    _PARTS = (
        "clock", "core", "durations", "errors", "events", "fleet", "hints", "jobs", "loop",
        "outbox", "queues", "urls", "worker",
    )  # fmt: skip

    def __getattr__(name):
        if name in _PARTS:
            return importlib.import_module(f"pollwise.{name}")
        if name not in _HOMES:
            raise AttributeError(
                f"module 'pollwise' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
            )
        module, _, there = _HOMES[name].partition(":")
        found = globals()[name] = getattr(importlib.import_module(module), there or name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__, *_PARTS})
