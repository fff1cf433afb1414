"""Records that are published at the same time travel together: AWS bills calls, and takes ten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pollwise.errors import PublishError

#: The most messages in one call.
BATCH = 10
#: The most calls under way at a time.
PARALLEL = 16

Entry = dict[str, Any]
#: Sends entries in one call; answers for each of them with None, or why it was not taken.
Send = Callable[[list[Entry]], Awaitable[list[PublishError | None]]]


@dataclass(slots=True, eq=False)
class _Unsent:
    entry: Entry
    size: int
    sent: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Gathers what is sent within one step of the event loop; waits for nothing else to come.

    A relay begins all that it has claimed at once, so that under load batches are full, and a
    record that comes alone does not wait.
    """

    def __init__(self, send: Send, bytes_max: int) -> None:
        self._send = send
        self._bytes_max = bytes_max
        self._waiting: list[_Unsent] = []
        self._places = asyncio.Semaphore(PARALLEL)
        self._calls: set[asyncio.Task[None]] = set()

    async def send(self, entry: Entry, size: int) -> None:
        """Send an entry with others; raises what became of this one."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        waiting = _Unsent(entry, size)
        self._waiting.append(waiting)
        await waiting.sent

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in self._batches(waiting):
            call = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _batches(self, waiting: list[_Unsent]) -> Iterator[list[_Unsent]]:
        batch: list[_Unsent] = []
        size = 0
        for each in waiting:
            if batch and (len(batch) == BATCH or size + each.size > self._bytes_max):
                yield batch
                batch, size = [], 0
            batch.append(each)
            size += each.size
        yield batch

    async def _call(self, batch: list[_Unsent]) -> None:
        async with self._places:
            batch = [each for each in batch if not each.sent.done()]  # some may have given up
            if not batch:
                return
            try:
                answers = await self._send([each.entry for each in batch])
            except Exception as error:
                answers = [error] * len(batch)  # type: ignore[list-item]
            for each, answer in zip(batch, answers, strict=True):
                if not each.sent.done():
                    if answer is None:
                        each.sent.set_result(None)
                    else:
                        each.sent.set_exception(answer)

    async def close(self) -> None:
        """End the calls that nobody waits for any more."""
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
