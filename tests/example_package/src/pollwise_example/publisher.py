from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO, Unpack
from urllib.parse import unquote

from pollwise.errors import PublishError
from pollwise.outbox import Record
from pollwise.outbox.publishers import (
    Message,
    Publisher,
    PublisherOptions,
    PublisherUrl,
    unique_of,
)


class JournalPublisher(Publisher[TextIO]):
    """Appends records to a file, a line of JSON for each."""

    def __init__(self, path: str, **common: Unpack[PublisherOptions]) -> None:
        # Its name, its place for messages, the secrets that messages must not show.
        super().__init__(f"journal:{path}", f"journal://{path}", [], common)
        self._path = Path(path)

    async def _open(self) -> TextIO:
        return self._path.open("a", encoding="utf-8")

    async def _send(self, client: TextIO, record: Record, message: Message) -> None:
        line = {"id": unique_of(record), "body": message.body.decode()}
        client.write(f"{json.dumps(line)}\n")
        client.flush()  # what returns counts as published

    async def _close(self, client: TextIO) -> None:
        client.close()

    def _explained(self, error: Exception) -> PublishError:
        return PublishError(f"{self.where} cannot be written: {error}")


def open_journal(at: PublisherUrl) -> JournalPublisher:
    """journal:///path, with the options that all publishers have."""
    return JournalPublisher(unquote(at.parts.path), **at.options())
