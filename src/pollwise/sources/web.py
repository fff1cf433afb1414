"""The base of sources over HTTP: requests by the client of the fleet, within a budget per host."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from pollwise.core.budget import Allowance
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError, MissingExtra, ProbeTimeout
from pollwise.fleet.probes.kept import connections
from pollwise.fleet.probes.options import BadOptions, ProbeOptions
from pollwise.fleet.targets import Target
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.limits.headers import allowance_in, asked_pause
from pollwise.runtime.polling.decisions import check_shared
from pollwise.runtime.redact import shown_url, without_hidden, without_secrets
from pollwise.sources.base import Source
from pollwise.sources.listed import digest_of

try:
    from pollwise.fleet.probes.http.fetch import Fetch, HttpAnswer
except MissingExtra as error:
    raise MissingExtra("a source over HTTP", "fleet") from error

T = TypeVar("T")

#: The budget of one host for all sources of a process that have no budget of their own: polls a
#: second, and how many of them may start at once.
HOST_POLLS = 10
#: How long a poll may take, in seconds, all of its answer included.
TIMEOUT = 30.0
#: Maximum length of a validator (ETag) that is kept.
_VALIDATOR_MAX = 512

_hosts: weakref.WeakValueDictionary[str, SharedBudget] = weakref.WeakValueDictionary()


def budget_of_host(url: str) -> SharedBudget:
    """The budget that the sources of one host share, unless they have one of their own."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()
    found = _hosts.get(origin)
    if found is None:
        found = _hosts[origin] = SharedBudget(HOST_POLLS, "1s", burst=HOST_POLLS)
    return found


class WebSource(Source[T], Generic[T]):
    """Base of the sources over HTTP. Options of the request are those of the probe `http`."""

    def __init__(
        self,
        url: str,
        name: str | None,
        given: Mapping[str, Any],
        *,
        budget: SharedBudget | None,
        timeout: Duration,
        body_max: int,
        **rest: Any,
    ) -> None:
        super().__init__(name or _name_of(type(self).__name__.lower(), url), **rest)
        if isinstance(body_max, bool) or not isinstance(body_max, int) or body_max < 1:
            raise ConfigError(f"max_bytes = {shown(body_max)} must be a number of bytes, 1 or more")
        target = Target("source", "http", options={"url": url, **given})
        options = ProbeOptions(target)
        self._fetch = Fetch(options, ("GET", "POST"), body_max)
        try:
            options.finish()
        except BadOptions as wrong:
            said = "; ".join(f"{key} {what}".strip() for key, what in wrong.problems)
            raise ConfigError(f"{type(self).__name__}: {said}") from None
        self.timeout: float = seconds(timeout, "timeout", positive=True)
        check_shared(budget, None)
        self.budget: SharedBudget = budget or budget_of_host(url)
        self._open: AsyncExitStack | None = None

    async def _request(
        self, validators: Mapping[str, str], url: str | None = None
    ) -> tuple[HttpAnswer, float, Allowance | None]:
        """The answer, how long the server asked not to be polled, and what it has left."""
        if self._open is None:
            self._open = AsyncExitStack()
            await self._open.enter_async_context(connections())
        epoch = self.clock.epoch()
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._fetch(epoch, validators, url)
        except TimeoutError:
            raise ProbeTimeout(
                f"{self._fetch.shown} was not answered within {self.timeout:g} s; check the "
                "server, or raise timeout"
            ) from None
        return answer, asked_pause(answer.headers, epoch), allowance_in(answer.headers, epoch)

    async def _release(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.aclose()


def _name_of(kind: str, url: str) -> str:
    """The name of a source: its URL, and a digest of the query, whose values are not shown.

    A secret there is left out, so that a new one does not begin another cursor.
    """
    place = f"{kind}:{shown_url(url)}"
    query = without_hidden(without_secrets(url)).partition("?")[2]
    return f"{place[:480]}#{digest_of(query)}" if query else place[:500]


def validators_in(answer: HttpAnswer) -> dict[str, str]:
    """Headers that make the next request of the same URL conditional."""
    return {
        key: answer.headers[key]
        for key in ("etag", "last-modified")
        if key in answer.headers and len(answer.headers[key]) <= _VALIDATOR_MAX
    }
