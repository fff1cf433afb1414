"""django-outbox-pattern, on Django 5.2 and psycopg, with a publisher that does nothing.

It publishes by STOMP. The outbox is measured, so its connection class (one of its settings) sends
nothing. It takes all pending records in one transaction, saves each record in a call of its own,
and then sleeps. `wait=0`, the minimum of that setting, is fastest, and polls without a pause when
there are no records; `wait=1` is its default. Records have no keys; they are kept for 30 days, its
default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path[0] = str(Path(__file__).resolve().parents[2])

import django  # noqa: E402
from django.conf import settings  # noqa: E402

from benchmarks.queue_peers.protocol import Driver, Handle, main  # noqa: E402


class Nowhere:
    """A broker's connection that sends nothing."""

    handle: Handle

    def __init__(self, **_: object) -> None:
        self._connected = False

    def is_connected(self) -> bool:
        return self._connected

    def connect(self, **_: object) -> None:
        self._connected = True

    def disconnect(self) -> None:
        self._connected = False

    def send(self, body: str, **_: object) -> None:
        Nowhere.handle(json.loads(body)["sent"])


class DjangoDriver(Driver):
    def __init__(self, url: str, options: argparse.Namespace) -> None:
        super().__init__(url, options)
        parts = urlsplit(url)
        settings.configure(
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": parts.path.lstrip("/"),
                    "USER": parts.username,
                    "HOST": parts.hostname,
                    "PORT": parts.port,
                }
            },
            INSTALLED_APPS=["django_outbox_pattern"],
            DJANGO_OUTBOX_PATTERN={
                "DEFAULT_CONNECTION_CLASS": f"{__name__}.Nowhere",
                "DEFAULT_PRODUCER_WAITING_TIME": int(options.way.removeprefix("wait=") or 1),
                "DEFAULT_PUBLISHED_CHUNK_SIZE": 1000,
            },
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            USE_TZ=True,
        )
        django.setup()

    async def setup(self) -> None:
        from django.core.management import call_command

        await asyncio.to_thread(call_command, "migrate", verbosity=0)

    async def connect(self) -> None:
        return

    async def put(self, sent: list[float]) -> None:
        await asyncio.to_thread(self._put, sent)

    def _put(self, sent: list[float]) -> None:
        from django.db import transaction
        from django_outbox_pattern.models import (  # type: ignore[import-not-found]
            Published,
        )

        records: list[Any] = [Published(destination="/topic/o", body={"sent": s}) for s in sent]
        with transaction.atomic():
            if len(records) == 1:
                records[0].save()
            else:
                Published.objects.bulk_create(records)

    def work(self, handle: Handle) -> None:
        from django_outbox_pattern.factories import (  # type: ignore[import-not-found]
            factory_producer,
        )

        Nowhere.handle = staticmethod(handle)
        producer = factory_producer()
        while True:  # as its command `publish` does
            producer.publish_message_from_database()


if __name__ == "__main__":
    main(DjangoDriver)
