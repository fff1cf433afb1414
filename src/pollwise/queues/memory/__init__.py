"""A queue in memory: `queue` is the queue, `job` a job in it, `flows` the links between jobs, and
`views` what is shown of them.
"""

from pollwise.queues.memory.queue import MemoryQueue as MemoryQueue
