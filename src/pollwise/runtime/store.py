"""The base of queues and of outbox stores, and all that the executor knows of them.

Both hand out claims under a lease, and a batch is one round trip. The public methods check their
arguments, so that every store refuses the same values with the same errors.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Generic, Self, TypeVar

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, PayloadError
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import MAX_LEASE, checked_name
from pollwise.runtime.payloads.envelope import CodecChain, Codecs, chain_of
from pollwise.runtime.payloads.sealing import Sealing

#: The maximum number of jobs or records in one put, claim or settle.
MAX_BATCH = 10_000
#: The maximum number of jobs or records in one page.
MAX_PAGE = 1_000
#: How many jobs or records one prune deletes at most, so that it does not keep the store from other
#: calls for long. One that deletes fewer leaves nothing that is due.
PRUNE_SLICE = 1_000
#: How long `close` waits for claims that are being given back, in seconds; then their leases run
#: out.
GIVE_BACK_WITHIN = 5.0

#: How long a poll may take after one that found nothing, in seconds, if the timeout of the store
#: is longer: a network may have swallowed it, and an idle worker should notice soon. The poll after
#: one that failed may take the whole timeout, so that a slow server gets its time.
IDLE_WITHIN = 10.0
#: How long the opening of a connection may take, in seconds, if the timeout of a call is longer.
CONNECT_WITHIN = 10.0

C = TypeVar("C")
S = TypeVar("S")


class WorkStore(ABC, Generic[C]):
    """A store that work is claimed from; C is a claim."""

    #: The noun for the store in errors.
    _what: ClassVar[str]
    #: How long settlements are gathered for one call, in seconds, and how many at most. Only stores
    #: that bill each call gather.
    gather: ClassVar[float] = 0.0
    gather_up_to: ClassVar[int] = 1
    #: A limit of the next poll below the timeout of the store; see IDLE_WITHIN.
    _poll_within: float | None = None

    def __init__(
        self, name: str, *, clock: Clock | None, keep: Duration | None, max_payload_bytes: int
    ) -> None:
        self.name: str = checked_name(name, self._what, ConfigError)
        self.clock: Clock = clock or Clock()
        self.keep: float | None = None if keep is None else seconds(keep, "keep", positive=True)
        if max_payload_bytes < 1:
            raise ConfigError(f"max_payload_bytes = {max_payload_bytes!r} must be at least 1")
        self.max_payload_bytes = max_payload_bytes
        self.use_codec(None)
        self._hints = self._make_hints()
        self._giving_back: set[asyncio.Task[None]] = set()

    def use_codec(self, codec: Codecs | CodecChain | None) -> None:
        """Encode payloads and results with these codecs, in their order; None: with none.

        When they are read, they are decoded. Every process that puts or runs jobs needs the same
        codecs.
        """
        self._sealing = Sealing(f"{self._what} {self.name}", chain_of(codec))

    def pass_sealed_on(self) -> None:
        """Accept payloads and results that others have encoded, to pass them on as they are.
        Otherwise, a value that looks like an envelope is refused."""
        self._sealing.passes_on = True

    @property
    def codec(self) -> CodecChain | None:
        """The codecs that encode payloads and results; None if there are none."""
        return self._sealing.chain

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the store is, without credentials, so that it is safe to print."""

    async def prune(self) -> int:
        """Delete what is finished and was kept long enough, a limited number; return how many."""
        return 0 if self.keep is None else await self._prune(self.keep)

    async def migrate(self) -> list[int]:
        """Create or update the store's tables; return the versions that were applied.

        Does nothing for a store that has no tables or updates them itself.
        """
        return []

    def migration(self) -> str | None:
        """The SQL that `migrate` would run; None for a store where it does nothing."""
        return None

    def hints(self) -> Hints:
        """The hints that end the pauses of this store's pollers early."""
        return self._hints

    async def close(self) -> None:
        """Release the store. A closed one cannot be used again."""
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=GIVE_BACK_WITHIN)
        await self._hints.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What a store implements.

    @abstractmethod
    async def _prune(self, keep: float) -> int: ...

    @abstractmethod
    async def _give_back(self, claims: list[C]) -> None:
        """Settle claims that nobody will work on."""

    def _make_hints(self) -> Hints:
        return Hints()

    # Helpers.

    def _give_hints(self, count: int, kinds: Iterable[str] | None = None) -> None:
        """Wake sleepers in this process and in others: there is work to claim."""
        self._hints.send_to_others(count, kinds)  # first: it asks who sleeps here
        self._hints.send(count, kinds)

    def _hint_when_due(self, due: float | None) -> None:
        """Wake a poller when the next work falls due, as reported by a claim."""
        if due is not None:
            self._hints.send_at(self.clock.now() + max(due - self.clock.epoch(), 0.0))

    async def _claim_or_give_back(
        self, claiming: Coroutine[Any, Any, list[C]], *, held: bool = False
    ) -> list[C]:
        """Claim; if the caller is cancelled meanwhile, give back what the store hands out."""
        call = asyncio.ensure_future(claiming)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if held:
                call.cancel()  # a held claim can end without claiming
            # In a task of its own: a second cancellation must not strand the claims either.
            task = asyncio.ensure_future(self._give_back_claimed(call))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)
            await asyncio.shield(task)
            raise

    async def _give_back_claimed(self, call: asyncio.Future[list[C]]) -> None:
        # The caller is gone, so errors are dropped; if giving back fails, the leases run out.
        with suppress(asyncio.CancelledError, Exception):
            await self._give_back(await call)

    def _check_size(self, kind: str, size: int) -> None:
        if size > self.max_payload_bytes:
            raise PayloadError(
                f"the payload of kind {kind!r} has {size} bytes of JSON; the limit "
                f"max_payload_bytes is {self.max_payload_bytes}. Store it elsewhere and put a "
                "reference to it, or raise the limit."
            )


def checked_batch(batch: Iterable[S], call: str) -> list[S]:
    listed = list(batch)
    if len(listed) > MAX_BATCH:
        raise ConfigError(
            f"{call} got a batch of {len(listed)}; at most {MAX_BATCH} at once, so split it"
        )
    return listed


def once_each(
    settlements: Iterable[S], claim_of: Callable[[S], Hashable]
) -> tuple[list[S], list[S]]:
    """The first settlement of each claim, and those that settle a claim again."""
    first: dict[Hashable, S] = {}
    again = []
    for settlement in settlements:
        claim = claim_of(settlement)
        if claim in first:
            again.append(settlement)
        else:
            first[claim] = settlement
    return list(first.values()), again


def checked_lease(lease: Duration) -> float:
    lease_s = seconds(lease, "lease", positive=True)
    if lease_s > MAX_LEASE:
        raise ConfigError(f"lease = {lease!r} is above the limit of {MAX_LEASE:g} s")
    return lease_s


def check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise ConfigError(f"limit = {limit!r} must be from 1 to {MAX_PAGE}")


def distinct(names: Sequence[str] | None, what: str) -> Sequence[str] | None:
    """Each name once. A single string is refused: it would be split into its letters."""
    if isinstance(names, str):
        raise ConfigError(f"{what} = {names!r} is one string; give a list: [{names!r}]")
    return None if names is None else list(dict.fromkeys(names))
