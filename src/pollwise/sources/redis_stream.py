"""A Redis Stream, read by a cursor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError, MissingExtra, StoreError
from pollwise.runtime.clock import Clock
from pollwise.runtime.loop import Batch
from pollwise.runtime.redact import shown_url
from pollwise.sources.base import LIMIT, Found, Source, State
from pollwise.sources.cursors import CursorStore

try:
    from pollwise.storage.redis.connections import Connections, RedisAddress
except ModuleNotFoundError as error:
    raise MissingExtra("a source in Redis", "redis") from error

#: How long a poll may take, beyond its hold, in seconds.
TIMEOUT = 10.0
#: The longest hold of a poll, in seconds.
HOLD_MAX = 3600.0
_ID = re.compile(rb"\d{1,20}-\d{1,20}")


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry: its id, and its fields. Bytes that are not UTF-8 are escaped (surrogateescape)."""

    id: str
    fields: Mapping[str, str]

    @property
    def added_at(self) -> float:
        """When it was added by the server's clock, in seconds since 1970."""
        return int(self.id.partition("-")[0]) / 1000


class RedisStream(Source[StreamEntry]):
    """The entries of a stream, each once, in their order.

        events = RedisStream("redis://cache/0", "events", cursor="sqlite:///cursors.db")
        async for entries in pollwise.poll(events, Fixed(0, hold="30s")): ...

    A strategy with a hold lets the server wait for entries (XREAD BLOCK). Entries that the stream
    drops before they were read (MAXLEN) are lost; nothing says so.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        limit: int = LIMIT,
        timeout: Duration = TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(stream, str) or not stream:
            raise ConfigError(f"stream = {shown(stream)} must be the name of a stream")
        address = RedisAddress(url, stream)
        name = name or f"redis:{shown_url(str(address))}#{stream}"
        super().__init__(name, cursor, limit=limit, clock=clock)
        self.stream = stream
        self.timeout: float = seconds(timeout, "timeout", positive=True)
        self._connections = Connections(address, self.clock, self.timeout + HOLD_MAX, _unchecked)

    async def __call__(self, hold: float = 0.0) -> Batch[StreamEntry]:
        return await self._poll(hold)

    async def _find(self, state: State, hold: float) -> Found[StreamEntry]:
        after = state.get("after", "0-0")
        hold = min(hold, HOLD_MAX)
        # 0 would block without end.
        block: tuple[str | int, ...] = ("BLOCK", max(round(hold * 1000), 1)) if hold > 0 else ()
        answer = await self._connections.send(
            "XREAD", "COUNT", self.limit, *block, "STREAMS", self.stream, after,
            within=self.timeout + hold,
        )  # fmt: skip
        if not answer:
            return Found((), state)
        try:
            [(_, raw)] = answer
            entries = [_entry(*each) for each in raw]
        except (TypeError, ValueError):
            raise StoreError(
                f"{self._connections.address} answered XREAD with something other than entries"
            ) from None
        if not entries:
            return Found((), state)
        return Found(entries, {"after": entries[-1].id}, len(entries) >= self.limit)

    async def _release(self) -> None:
        await self._connections.close()


async def _unchecked(_: Connections) -> None:
    """There is nothing to check before the first call."""


def _entry(id: bytes, fields: Any) -> StreamEntry:
    if not _ID.fullmatch(id):
        raise ValueError(id)
    texts = [each.decode("utf-8", "surrogateescape") for each in fields]
    return StreamEntry(id.decode(), dict(zip(texts[::2], texts[1::2], strict=True)))
