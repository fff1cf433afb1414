"""A queue in Postgres. The work is done by functions in its own schema; see `tables`."""

from pollwise.queues.postgres.queue import PostgresQueue

__all__ = ["PostgresQueue"]
