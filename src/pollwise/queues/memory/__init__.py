"""A queue in memory: `queue` is the queue, and `job` a job in it."""

from pollwise.queues.memory.queue import MemoryQueue as MemoryQueue
