"""Pollux decides when to look again: adaptive polling for Python.

async for batch in pollux.poll(fetch, pollux.Adaptive("100ms", "5s")):
    ...
"""

from __future__ import annotations

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
