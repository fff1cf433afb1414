"""Stores that stay open between polls, one per URL, and the errors of their calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from pollwise.core.outcome import Plain
from pollwise.errors import PollwiseError, ProbeError, StoreUnavailable
from pollwise.fleet.probes.kept import shared
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.runtime.redact import shown_url, without_hidden, without_secrets
from pollwise.runtime.rollups.points import MINUTE, HistoryPoint
from pollwise.runtime.store import WorkStore

#: A store that no target polled for this long is closed, in seconds.
IDLE_SECONDS = 900.0
#: Default of `window`: the rates are those of this time, in seconds; and its bounds.
WINDOW = 300.0
WINDOW_MIN, WINDOW_MAX = 60.0, 86400.0

S = TypeVar("S", bound=WorkStore[Any])

#: The facts that come from the history of a store.
RATES = {
    "done_per_minute": "runs that ended well, per minute of `window`",
    "failed_per_minute": "runs that ended with an error, per minute of `window`",
    "failing": "share of the runs in `window` that ended with an error: 0 to 1",
}


@dataclass(slots=True)
class _OpenStore:
    store: WorkStore[Any]
    users: int = 0
    used_at: float = 0.0


class OpenStores:
    """The open stores of a process, the longest unused first."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], _OpenStore] = OrderedDict()

    @asynccontextmanager
    async def lent(self, what: str, url: str, make: Callable[[str], S]) -> AsyncIterator[S]:
        """The store at a URL, opened with `make` if it is not open."""
        now = asyncio.get_running_loop().time()
        key = what, url
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = _OpenStore(make(url))
        self._open.move_to_end(key)
        found.users += 1
        found.used_at = now
        try:
            await self._close_unused(now)
            yield cast(S, found.store)
        finally:
            found.users -= 1

    async def _close_unused(self, now: float) -> None:
        key, first = next(iter(self._open.items()))
        if not first.users and now - first.used_at > IDLE_SECONDS:
            del self._open[key]
            with suppress(PollwiseError, OSError):
                await first.store.close()

    async def aclose(self) -> None:
        while self._open:
            _, found = self._open.popitem()
            with suppress(PollwiseError, OSError):
                await found.store.close()


@asynccontextmanager
async def open_store_of(what: str, url: str, make: Callable[[str], S]) -> AsyncIterator[S]:
    """The kept store at a URL; errors of its calls are those of a failed poll."""
    try:
        async with shared(OpenStores, OpenStores).lent(what, url, make) as store:
            yield store
    except ProbeError:
        raise
    except (PollwiseError, OSError) as error:
        text = without_secrets(without_hidden(" ".join(str(error).split())))[:300]
        # A file that is missing, or tables of another version: somebody has to act.
        permanent = isinstance(error, PollwiseError) and not isinstance(error, StoreUnavailable)
        raise failed(
            f"{shown_url(url)}: {text or type(error).__name__}", permanent=permanent
        ) from None


def checked_store(
    options: ProbeOptions, make: Callable[[str], S], key: str = "url"
) -> tuple[str, S | None]:
    """The option `url` and the store there, which is not contacted; None if the URL is wrong."""
    url = options.text(key, needed=True)
    if not url:
        return "", None
    try:
        return url, make(url)
    except (PollwiseError, ImportError) as error:
        said = without_secrets(without_hidden(str(error)))
        options.wrong(key, f"= {shown_url(url)!r}: {said}")
        return url, None


def window_of(options: ProbeOptions) -> float:
    """The option `window`, in seconds."""
    window = options.duration("window", WINDOW)
    if not WINDOW_MIN <= window <= WINDOW_MAX:
        options.wrong("window", f"= {window:g} s must be from 1m to 24h")
        return WINDOW
    return window


def host_in(url: str) -> str | None:
    """The host of a store's URL, whose polls are limited together; None for files."""
    with suppress(ValueError):
        return urlsplit(url).hostname
    return None


def rates(points: Iterable[HistoryPoint], now: float, window: float) -> dict[str, Plain]:
    """The facts in RATES, from the minutes of the window."""
    done = failures = 0
    for each in points:
        done += each.done
        failures += each.failed
    # The history begins with the whole minute in which the window begins.
    minutes = (now - (now - window) // MINUTE * MINUTE) / MINUTE
    runs = done + failures
    return {
        "done_per_minute": round(done / minutes, 2),
        "failed_per_minute": round(failures / minutes, 2),
        "failing": round(failures / runs, 4) if runs else 0.0,
    }
