from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pollwise.errors import StoreUnavailable
from pollwise.sources import Found, Source, SourceUrl


class LogLines(Source[str]):
    """The lines of a file that grows, each once."""

    def __init__(self, path: str, *, name: str | None = None, **common: Any) -> None:
        self.path = Path(path).absolute()
        super().__init__(name or f"log:{self.path}", **common)

    async def _find(self, state: Mapping[str, Any], hold: float) -> Found[str]:
        try:
            return await asyncio.to_thread(self._read, state.get("at", 0))
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be read: {error.strerror}") from None

    def _read(self, at: int) -> Found[str]:
        found: list[str] = []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < at:  # a new file took its place
                at = 0
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n") or len(found) == self.limit:
                    break  # still being written, or one for the next poll
                found.append(line.decode("utf-8", "replace").rstrip())
                at += len(line)
        return Found(found, {"at": at}, more=len(found) == self.limit)


def open_log(at: SourceUrl) -> LogLines:
    """log:///path, with the options that all sources have."""
    return LogLines(unquote(at.parts.path), **at.options())
