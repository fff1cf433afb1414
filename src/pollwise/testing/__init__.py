"""For users' own tests: a virtual clock, stores in memory, and the conformance suite.

    from pollwise.testing import MemoryQueue, VirtualClock

    def test_my_handler():
        clock = VirtualClock()
        queue = MemoryQueue(clock=clock)
        clock.run(my_program(queue))  # an idle hour takes no time

`pollwise.testing.conformance` tests an implementation of a queue; it is imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock

if TYPE_CHECKING:
    from pollwise.testing import conformance

__all__ = ["MemoryOutboxStore", "MemoryQueue", "VirtualClock", "conformance"]


def __getattr__(name: str) -> Any:
    if name == "conformance":
        return importlib.import_module("pollwise.testing.conformance")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
