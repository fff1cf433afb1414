"""Open the queue that a command is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from pollwise.errors import ConfigError
from pollwise.platforms import loops
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.redact import without_secrets

T = TypeVar("T")
Url = Annotated[str, typer.Argument(help="The queue, as in sqlite:///jobs.db?queue=mail")]
Id = Annotated[str, typer.Argument(help="The job's id, as `queue list` shows it.")]


def with_queue(
    url: str,
    work: Callable[[Queue], Awaitable[T]],
    *,
    create: bool = False,
    codec: CodecChain | None = None,
) -> T:
    """Open a queue, call `work` with it, close it and return the result.

    Views get no codec: commands do not show what is encrypted.
    """

    async def main() -> T:
        async with open_queue(url, create=create, codec=codec) as queue:
            if isinstance(queue, MemoryQueue):
                raise ConfigError(
                    f"{without_secrets(url)!r} is a queue in this process's memory, which no other "
                    "process can see; name a store, such as sqlite:///jobs.db"
                )
            return await work(queue)

    return loops.run(main())
