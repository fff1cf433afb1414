"""Pollwise in Django: a backend for its tasks, commands that run workers, and jobs in the admin.

Add "pollwise.contrib.django" to INSTALLED_APPS. `conf` reads settings.POLLWISE, `backend` is what
settings.TASKS names, `queues` makes the calls of views, and `joined` makes them on Django's own
connections.
"""

from pollwise.contrib.django.conf import database_url, queue_url
from pollwise.contrib.django.queues import put

__all__ = ["database_url", "put", "queue_url"]
