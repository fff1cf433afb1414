"""Background jobs: handlers by kind, run against any queue. `worker` has the class that users see,
`run` a single run of it; the code shared with the outbox's relay is in `runtime.executor`.
"""

from pollwise.worker.once import RunSummary
from pollwise.worker.options import WorkerRunOptions
from pollwise.worker.worker import Worker

__all__ = ["RunSummary", "Worker", "WorkerRunOptions"]
