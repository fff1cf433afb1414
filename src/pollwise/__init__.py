"""Pollwise decides when to poll again: adaptive polling for Python.

async for batch in pollwise.poll(fetch, pollwise.Adaptive("100ms", "5s")):
    ...

Errors are in `pollwise.errors`, events in `pollwise.events`, and the names that strategy authors
need in `pollwise.strategies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollwise.errors import Cancelled, PollwiseError, Reject, Snooze
from pollwise.version import __version__ as __version__

if TYPE_CHECKING:
    from pollwise.agent.agent import Agent
    from pollwise.agent.options import AgentOptions
    from pollwise.controller.controller import Controller
    from pollwise.controller.options import ControllerOptions
    from pollwise.core.breaker import Breaker
    from pollwise.core.budget import Allowance
    from pollwise.core.forecast.durations import Durations
    from pollwise.core.retry import Retry
    from pollwise.core.strategies.adaptive import Adaptive
    from pollwise.core.strategies.base import Strategy
    from pollwise.core.strategies.batch_fill import BatchFill
    from pollwise.core.strategies.completion import Completion
    from pollwise.core.strategies.ewma import Ewma
    from pollwise.core.strategies.fixed import Fixed
    from pollwise.core.strategies.freshness import Freshness
    from pollwise.core.strategies.worth import Worth
    from pollwise.fleet.engine.options import FleetRunOptions
    from pollwise.fleet.fleet import Fleet
    from pollwise.fleet.targets import Reading, Target
    from pollwise.outbox.outbox import Outbox
    from pollwise.outbox.records import NewRecord, Record
    from pollwise.outbox.relay import OutboxRunOptions
    from pollwise.queues.base import Queue
    from pollwise.queues.limits.record import Concurrency, Rate
    from pollwise.queues.sync import SyncQueue, open_sync
    from pollwise.queues.urls import open_queue as open
    from pollwise.runtime.clock import Clock
    from pollwise.runtime.events import Events
    from pollwise.runtime.hints import Hints
    from pollwise.runtime.jobs import Job, NewJob
    from pollwise.runtime.limits.budget import SharedBudget
    from pollwise.runtime.loop import Batch, poll
    from pollwise.runtime.polling.sync import poll_sync
    from pollwise.waiting.progress import WaitProgress
    from pollwise.waiting.until import until, until_sync
    from pollwise.worker.context import from_context
    from pollwise.worker.flows.building import Flow, group
    from pollwise.worker.flows.taking import results_before
    from pollwise.worker.options import WorkerRunOptions
    from pollwise.worker.tasks import Task, task_ref
    from pollwise.worker.worker import Worker


__all__ = [
    "Adaptive",
    "Agent",
    "AgentOptions",
    "Allowance",
    "Batch",
    "BatchFill",
    "Breaker",
    "Cancelled",
    "Clock",
    "Completion",
    "Concurrency",
    "Controller",
    "ControllerOptions",
    "Durations",
    "Events",
    "Ewma",
    "Fixed",
    "Fleet",
    "FleetRunOptions",
    "Flow",
    "Freshness",
    "Hints",
    "Job",
    "NewJob",
    "NewRecord",
    "Outbox",
    "OutboxRunOptions",
    "PollwiseError",
    "Queue",
    "Rate",
    "Reading",
    "Record",
    "Reject",
    "Retry",
    "SharedBudget",
    "Snooze",
    "Strategy",
    "SyncQueue",
    "Target",
    "Task",
    "WaitProgress",
    "Worker",
    "WorkerRunOptions",
    "Worth",
    "from_context",
    "group",
    "open",
    "open_sync",
    "poll",
    "poll_sync",
    "results_before",
    "task_ref",
    "until",
    "until_sync",
]

# A name is imported when it is first used, so that a program that only polls does not load fleets
# and outboxes. Type checkers see the imports above instead, and find misspelt names.
if not TYPE_CHECKING:
    import importlib
    import sys

    #: The module that defines each name; after a colon, the name there.
    _HOMES = {
        "Adaptive": "pollwise.core.strategies.adaptive",
        "Agent": "pollwise.agent.agent",
        "AgentOptions": "pollwise.agent.options",
        "Allowance": "pollwise.core.budget",
        "Batch": "pollwise.runtime.loop",
        "BatchFill": "pollwise.core.strategies.batch_fill",
        "Breaker": "pollwise.core.breaker",
        "Clock": "pollwise.runtime.clock",
        "Completion": "pollwise.core.strategies.completion",
        "Concurrency": "pollwise.queues.limits.record",
        "Controller": "pollwise.controller.controller",
        "ControllerOptions": "pollwise.controller.options",
        "Durations": "pollwise.core.forecast.durations",
        "Events": "pollwise.runtime.events",
        "Ewma": "pollwise.core.strategies.ewma",
        "Fixed": "pollwise.core.strategies.fixed",
        "Fleet": "pollwise.fleet.fleet",
        "FleetRunOptions": "pollwise.fleet.engine.options",
        "Flow": "pollwise.worker.flows.building",
        "Freshness": "pollwise.core.strategies.freshness",
        "Hints": "pollwise.runtime.hints",
        "Job": "pollwise.runtime.jobs",
        "NewJob": "pollwise.runtime.jobs",
        "NewRecord": "pollwise.outbox.records",
        "Outbox": "pollwise.outbox.outbox",
        "OutboxRunOptions": "pollwise.outbox.relay",
        "Queue": "pollwise.queues.base",
        "Rate": "pollwise.queues.limits.record",
        "Reading": "pollwise.fleet.targets",
        "Record": "pollwise.outbox.records",
        "Retry": "pollwise.core.retry",
        "SharedBudget": "pollwise.runtime.limits.budget",
        "Strategy": "pollwise.core.strategies.base",
        "SyncQueue": "pollwise.queues.sync",
        "Target": "pollwise.fleet.targets",
        "Task": "pollwise.worker.tasks",
        "WaitProgress": "pollwise.waiting.progress",
        "Worker": "pollwise.worker.worker",
        "WorkerRunOptions": "pollwise.worker.options",
        "Worth": "pollwise.core.strategies.worth",
        "from_context": "pollwise.worker.context",
        "group": "pollwise.worker.flows.building",
        "open": "pollwise.queues.urls:open_queue",
        "open_sync": "pollwise.queues.sync",
        "poll": "pollwise.runtime.loop",
        "poll_sync": "pollwise.runtime.polling.sync",
        "results_before": "pollwise.worker.flows.taking",
        "task_ref": "pollwise.worker.tasks",
        "until": "pollwise.waiting.until",
        "until_sync": "pollwise.waiting.until",
    }
    #: Modules that are available after `import pollwise` alone.
    _PARTS = (
        "agent", "codecs", "controller", "durations", "errors", "events", "fleet", "outbox",
        "queues", "sources", "strategies", "worker",
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
