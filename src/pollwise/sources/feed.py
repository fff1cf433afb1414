"""An RSS or Atom feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pollwise.core.budget import Allowance
from pollwise.durations import Duration
from pollwise.errors import ProbeError
from pollwise.fleet.probes.feed import FeedEntry, parsed
from pollwise.runtime.clock import Clock
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.sources.base import LIMIT, Found, State
from pollwise.sources.cursors import CursorStore
from pollwise.sources.listed import ListedSource, digest_of
from pollwise.sources.web import TIMEOUT, WebSource, validators_in

#: Default maximum size of a feed, unpacked, in bytes.
FEED_MAX = 8 * 1024 * 1024


class Feed(ListedSource[FeedEntry], WebSource[FeedEntry]):
    """The entries of a feed, each once, the oldest first.

        async with Feed("https://project.example/news.xml", cursor="sqlite:///cursors.db") as feed:
            async for entries in pollwise.poll(feed, Adaptive("1m", "1h")):
                print([entry.texts["title"] for entry in entries])

    An entry is known by its id (or guid, link, title); a changed text is not a new entry. The last
    10,000 ids are remembered, also those of entries that are no longer in the feed. 304 is an empty
    poll. If all entries are new, and as many as ever, older ones may have left the feed unseen: the
    event `WindowPassed` tells so. The limits of the server and the options of
    the request are as for `HttpJson`.
    """

    keeps_gone = True

    def __init__(
        self,
        url: str,
        *,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        limit: int = LIMIT,
        budget: SharedBudget | None = None,
        timeout: Duration = TIMEOUT,
        max_bytes: int = FEED_MAX,
        clock: Clock | None = None,
        **request: Any,
    ) -> None:
        super().__init__(
            url, name, request, budget=budget, timeout=timeout, body_max=max_bytes, cursor=cursor,
            limit=limit, clock=clock,
        )  # fmt: skip
        self._valid: dict[str, str] = {}
        self._window = self._passed = 0
        self._wait = 0.0
        self._allowance: Allowance | None = None

    async def _find(self, state: State, hold: float) -> Found[FeedEntry]:
        found = await super()._find(state, hold)
        after = found.state
        if found.more:
            # The rest of this answer is still to come, so the next request must not be conditional.
            after = {key: each for key, each in after.items() if key != "valid"}
        wait = None if found.more else self._wait
        passed, self._passed = self._passed, 0
        return Found(found.items, after, found.more, wait, self._allowance, passed)

    async def _list(self, state: State) -> Sequence[tuple[str, FeedEntry]] | None:
        answer, self._wait, self._allowance = await self._request(state.get("valid", {}))
        self._window = state.get("window", 0)
        if answer.unchanged:
            return None
        try:
            entries = parsed(answer.body)
        except ValueError as error:
            raise ProbeError(f"{self._fetch.shown}: {error}") from None
        self._valid = validators_in(answer)
        moments = [each.moment for each in entries]
        order = sorted(range(len(entries)), key=lambda n: (moments[n] or 0.0, -n))
        listed = [(digest_of(entries[n].id), entries[n]) for n in order]
        before = set(state.get("seen", ()))
        if before and len(listed) >= max(self._window, 2) and before.isdisjoint(dict(listed)):
            self._passed = len(listed)
        self._window = max(self._window, len(listed))
        return listed

    def _rest(self) -> State:
        rest: dict[str, Any] = {"window": self._window}
        return {**rest, "valid": self._valid} if self._valid else rest
