"""Queues in a database of Django, on Django's own connections: `postgres` and `sqlite`.

A job that is put joins the open transaction: it appears with its commit, and a rollback takes it
away. The calls are those of the real queues, and run to their end without an event loop: where a
queue would await its own connection, these use Django's. They are for views, the admin and tests;
a worker opens the queue by its URL.
"""

from __future__ import annotations

from django.db import connections

from pollwise.contrib.django.conf import QueuePlace
from pollwise.queues.base import Queue


def open_joined(place: QueuePlace, name: str) -> Queue:
    """The queue with this name in the database of `place`, for calls by `run`."""
    if connections[place.database].vendor == "sqlite":
        from pollwise.contrib.django.joined.sqlite import open_on_sqlite

        return open_on_sqlite(place, name)
    from pollwise.contrib.django.joined.postgres import open_on_postgres

    return open_on_postgres(place, name)
