"""The pytest plugin: fixtures for tests of programs that put and run jobs.

Every pytest run where Pollwise is installed imports this module, so it imports nothing else of
Pollwise until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pollwise.testing.clock import SteppedClock
    from pollwise.testing.jobs import RecordingQueue, WorkerTesters


@pytest.fixture
def virtual_clock() -> SteppedClock:
    """The clock of `pollwise_queue`. It stands still until the test moves it."""
    from pollwise.testing.clock import SteppedClock

    return SteppedClock()


@pytest.fixture
def pollwise_queue(virtual_clock: SteppedClock) -> Iterator[RecordingQueue]:
    """A queue in memory that remembers puts: `pollwise_queue.assert_put(resize, image=7)`."""
    from pollwise.testing.clock import SteppedClock
    from pollwise.testing.jobs import RecordingQueue

    # A program may have a fixture of the same name for a clock of its own.
    ours = isinstance(virtual_clock, SteppedClock)
    queue = RecordingQueue(virtual_clock if ours else SteppedClock())
    yield queue
    queue.release_all()


@pytest.fixture
def pollwise_worker(pollwise_queue: RecordingQueue) -> WorkerTesters:
    """`pollwise_worker(app.worker)` makes a worker use `pollwise_queue` until the test ends."""
    from pollwise.testing.jobs import WorkerTesters

    return WorkerTesters(pollwise_queue)
