"""A queue in Redis or Valkey. The work is done by the Lua scripts beside this file."""

from pollwise.queues.redis.queue import RedisQueue

__all__ = ["RedisQueue"]
