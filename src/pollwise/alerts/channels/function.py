"""Calls a Python function with each notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, Unpack

from pollwise.alerts.channels.base import Channel, ChannelOptions
from pollwise.alerts.values import Notice
from pollwise.durations import shown
from pollwise.errors import ChannelError, ConfigError
from pollwise.runtime.executor.handlers import is_async, takes
from pollwise.runtime.executor.threads import DaemonThreads

#: The maximum number of calls of one plain function at a time.
THREADS = 4


class FunctionChannel(Channel):
    """Calls a function, async or plain, with each notice.

        FunctionChannel("lamp", "house.lamps:blink")

    call: a function of one `Notice`, or "module:function". A plain one runs in a thread: at the
        timeout it is not stopped, but its result is ignored.

    What it raises counts as a failure and is tried again, unless it has `permanent = True`.
    """

    def __init__(
        self, name: str, call: Callable[[Notice], Any] | str, **common: Unpack[ChannelOptions]
    ) -> None:
        super().__init__(name, common)
        self._call = _named(call) if isinstance(call, str) else call
        if not callable(self._call):
            raise ConfigError(f"call = {shown(call)} is not a function; give 'module:function'")
        try:
            fits = takes(self._call, 1)
        except ValueError:  # some functions written in C have no signature
            fits = True
        if not fits:
            raise ConfigError(f"call = {shown(call)} must take one argument: the notice")
        self._threads: DaemonThreads | None = None

    async def _send(self, notice: Notice) -> None:
        try:
            if is_async(self._call):
                await self._call(notice)
                return
            if self._threads is None:
                self._threads = DaemonThreads(THREADS, f"channel-{self.name}")
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._call, notice)
        except ChannelError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and _cancelling():
                raise
            raise ChannelError(
                f"{self}: {type(error).__name__}: {error}",
                permanent=bool(getattr(error, "permanent", False)),
                retry_after=getattr(error, "retry_after", None),
            ) from error

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _named(text: str) -> Any:
    module, _, name = text.partition(":")
    if not module or not name:
        raise ConfigError(f"call = {text!r} must be written as 'module:function'")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the module, which may raise anything
        raise ConfigError(
            f"call = {text!r} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    return found
