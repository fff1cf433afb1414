"""The base of all sources: when a cursor is committed, and what is delivered again."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from pollwise.core.budget import Allowance
from pollwise.durations import shown
from pollwise.errors import ConfigError, SourceClosed, StoreError
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import storable
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.loop import Batch
from pollwise.sources.cursors import CursorStore, open_cursors

T = TypeVar("T")
S = TypeVar("S", bound="Source[Any]")

#: Maximum size of a cursor, as JSON, in bytes.
CURSOR_MAX = 1024 * 1024
#: How many items a poll delivers at most.
LIMIT = 100
#: The maximum of `limit`.
LIMIT_MAX = 10_000
#: The maximum length of a name, in characters.
NAME_MAX = 500

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The result of one poll of a source.

    state: the cursor once these items are taken, as plain JSON values.
    more: there is more, so the next poll may follow at once.
    not_before, allowance, passed: as for `Batch`.
    """

    items: Sequence[T]
    state: State
    more: bool = False
    not_before: float | None = None
    allowance: Allowance | None = None
    passed: int = 0


class Source(ABC, Generic[T]):
    """A source with a cursor, for `pollwise.poll(source, strategy)`.

        async with Folder("inbox", cursor="sqlite:///cursors.db") as inbox:
            async for files in pollwise.poll(inbox, Adaptive("1s", "30s")):
                ...

    An item is delivered at least once, and again only after a crash. The cursor is committed when
    the next poll begins, because the consumer has taken the batch before it; or with `commit()`; or
    at the end of `async with`, if no exception ended it. A new loop begins where the last commit
    was, so a consumer that raised gets its batch again.

    cursor: where the cursor is kept: a URL such as "sqlite:///cursors.db", a `CursorStore`, or None
        for memory.
    name: what the cursor is kept under. Two sources in one store need two names.
    limit: how many items a poll delivers at most.
    """

    #: Hints that end a pause of the loop early, if the source has any.
    hints: Hints | None = None
    #: The budget that the loop asks before each poll, if the source has one.
    budget: SharedBudget | None = None

    def __init__(
        self,
        name: str,
        cursor: str | CursorStore | None = None,
        *,
        limit: int = LIMIT,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or len(name) > NAME_MAX or storable(name) != name:
            raise ConfigError(
                f"name = {shown(name)} must be a text of 1 to {NAME_MAX} characters that a store "
                "can keep; give another with name="
            )
        whole("limit", limit, 1, LIMIT_MAX)
        self.name = name
        self.limit = limit
        self.clock: Clock = clock or Clock()
        self._cursors, self._owned = open_cursors(cursor)
        self._saved: str | None = None
        self._state: State = {}
        self._pending: State | None = None
        self._loaded = self._polling = self._closed = False

    async def __call__(self) -> Batch[T]:
        """One poll: commits what was delivered before, and returns what came after it."""
        return await self._poll(0.0)

    async def _poll(self, hold: float) -> Batch[T]:
        self._check_open()
        if self._polling:
            raise ConfigError(
                f"two loops poll {self.name!r} at the same time; give each its own source"
            )
        self._polling = True
        try:
            await self.commit()
            if not self._loaded:
                self._saved = await self._cursors.load(self.name)
                self._state = self._decoded(self._saved)
                self._loaded = True
            found = await self._find(self._state, hold)
        finally:
            self._polling = False
        if found.state != self._state:
            self._encoded(found.state)  # one that cannot be saved is an error now
            self._pending = found.state
        return Batch(
            found.items,
            len(found.items) if found.more else None,
            not_before=found.not_before,
            allowance=found.allowance,
            passed=found.passed,
        )

    @abstractmethod
    async def _find(self, state: State, hold: float) -> Found[T]:
        """Return the items that came after `state`, which is {} at first."""

    async def commit(self) -> None:
        """Save that everything delivered so far was handled; it is not delivered again."""
        pending = self._pending
        if pending is None:
            return
        self._check_open()
        await self._note_done(pending)
        text = self._encoded(pending)
        if text != self._saved:
            await self._cursors.save(self.name, text, self._saved)
        if self._pending is pending:
            self._state, self._saved, self._pending = pending, text, None

    async def _note_done(self, pending: State) -> None:
        """Tell the server that the delivered items were handled, if it keeps track of that."""

    def begin_polling(self) -> None:
        """A new loop begins: what was delivered and not committed is delivered to it again."""
        self._pending = None

    async def close(self) -> None:
        """Release everything, without a commit. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._release()
        finally:
            if self.hints is not None:
                await self.hints.aclose()
            if self._owned:
                await self._cursors.close()

    async def _release(self) -> None:
        """Close what the source has open."""

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.commit()
        finally:
            await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SourceClosed(f"the source {self.name!r} is closed; open it again")

    def _decoded(self, text: str | None) -> State:
        if text is None:
            return {}
        try:
            state = json.loads(text)
        except (ValueError, RecursionError):
            state = None
        if not isinstance(state, dict):
            raise StoreError(
                f"the cursor of {self.name!r} is not one of Pollwise; give another name=, or "
                "remove it from its store"
            )
        return state

    def _encoded(self, state: State) -> str:
        text = json.dumps(state, separators=(",", ":"), sort_keys=True)
        if len(text) > CURSOR_MAX:
            raise StoreError(
                f"the cursor of {self.name!r} has {len(text):,} bytes; at most {CURSOR_MAX:,} are "
                "kept"
            )
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def whole(name: str, value: object, minimum: int, maximum: int) -> None:
    """Check a whole number within bounds."""
    fits = isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
    if not fits:
        raise ConfigError(
            f"{name} = {shown(value)} must be a whole number from {minimum} to {maximum}"
        )
