"""A queue in a SQLite file."""

from pollwise.queues.sqlite.queue import SqliteQueue

__all__ = ["SqliteQueue"]
