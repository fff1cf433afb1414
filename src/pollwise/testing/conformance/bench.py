"""The base of the checks: the bench, and functions that state what they expect.

These raise `AssertionError` themselves instead of using `assert`, because the suite also runs
outside of pytest and under `python -O`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol, TypeVar
from unittest import SkipTest

from pollwise.errors import LeaseLost, Unsupported
from pollwise.queues.base import Queue
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Claim, NewJob, Settlement

E = TypeVar("E", bound=Exception)
Q = TypeVar("Q", bound=Queue)

#: A lease, in units, that does not end during a check.
LONG = 1000.0


class NotCapable(SkipTest):
    """The implementation says that it cannot do what this check is about. pytest skips it."""


class Check(Protocol):
    """One clause of the contract; its docstring says which."""

    __name__: str

    def __call__(self, bench: Bench) -> Awaitable[None]: ...


class Bench(ABC):
    """How the suite reaches one empty store, and how it lets time pass there.

    unit: seconds in a unit of time. All leases, delays and waits of the checks are a few units. A
        real server needs a unit well above its response time; the virtual clock takes any.
    """

    unit: float = 1.0

    @abstractmethod
    async def queue(self, **options: Any) -> Queue:
        """A new handle on the store, as another process would have it.

        options: `keep` and `max_payload_bytes`, the same each time within a check. A store that
        lives in one object may return that object again.
        """

    @abstractmethod
    async def elapse(self, units: float) -> None:
        """Let at least `units * unit` seconds pass on the store's clock."""

    def keep(self, queue: Q) -> Q:
        """Remember a handle, so that `close` closes it."""
        self._handles().append(queue)
        return queue

    async def close(self) -> None:
        """Close what `keep` remembers. Override it to remove the store as well."""
        handles = self._handles()
        while handles:
            await handles.pop().close()

    def _handles(self) -> list[Queue]:
        handles: list[Queue] = self.__dict__.setdefault("_kept", [])
        return handles

    async def take(
        self,
        queue: Queue,
        limit: int = 100,
        *,
        worker: str = "worker",
        lease: float = LONG,
        kinds: Sequence[str] | None = None,
    ) -> list[Claim]:
        """Claim, with the lease in units."""
        return await queue.claim(worker, limit, lease * self.unit, 0, kinds)

    async def take_one(self, queue: Queue, *, worker: str = "worker", lease: float = LONG) -> Claim:
        """Claim one job, which must be there."""
        claims = await self.take(queue, 1, worker=worker, lease=lease)
        equal(len(claims), 1, "jobs found by a claim with limit 1, when one is ready")
        return claims[0]

    async def pause(self, queue: Queue, units: float) -> bool:
        """Sleep as the poll loop does; return whether a hint ended it."""
        hint, hints = Hint(), queue.hints()
        hints.join(hint)
        hints.asleep(hint)
        try:
            return await queue.clock.sleep(units * self.unit, hint)
        finally:
            hints.leave(hint)


def require(able: object, what: str) -> None:
    """Skip the check unless the store can do what it is about."""
    if not able:
        raise NotCapable(f"the store's capabilities deny: {what}")


async def keeping(bench: Bench, units: float) -> Queue:
    """A queue that keeps finished jobs this long; skips the check if the store cannot."""
    try:
        return await bench.queue(keep=units * bench.unit)
    except Unsupported:
        require((await bench.queue()).capabilities.keep, "keep")
        raise  # its capabilities say that it can


def arranged(queue: Queue, values: Iterable[Any]) -> list[Any]:
    """Values in their order if the store keeps one, else sorted."""
    return list(values) if queue.capabilities.ordered else sorted(values, key=repr)


async def gone(queue: Queue, job_id: str, what: str) -> None:
    """Expect that this job does not exist, if the store can show jobs."""
    if queue.capabilities.views:
        equal(await queue.get(job_id), None, what)


async def nothing_left(queue: Queue, what: str) -> None:
    """Expect that no job exists, if the store can show jobs."""
    if queue.capabilities.views:
        equal(await queue.jobs(), [], what)


def expect(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def equal(got: object, wanted: object, what: str) -> None:
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


async def refused(error: type[E], call: Awaitable[object], what: str) -> E:
    """Await a call that must raise `error`, and return the error."""
    try:
        result = await call
    except error as raised:
        return raised
    raise AssertionError(f"{what}: wanted {error.__name__}, but it returned {result!r}")


async def lost(call: Awaitable[object], ids: Iterable[str], what: str) -> None:
    """Await a call that must be refused for exactly these jobs."""
    error = await refused(LeaseLost, call, what)
    equal(sorted(error.lost), sorted(ids), f"{what}: the jobs that LeaseLost names")


def ids(claims: Iterable[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]


def payloads(claims: Iterable[Claim]) -> list[Any]:
    return [claim.job.payload for claim in claims]


def numbered(*numbers: Any, **options: Any) -> list[NewJob]:
    """Jobs of kind "job" whose payloads are these."""
    return [NewJob("job", number, **options) for number in numbers]


def done(claims: Iterable[Claim]) -> list[Settlement]:
    return [Settlement.done(claim) for claim in claims]


async def kill(bench: Bench, queue: Queue, *jobs: NewJob, error: str = "broken") -> list[str]:
    """Put jobs, claim them and settle each as dead; return their ids."""
    put = await queue.put(jobs)
    claims = {claim.job.id: claim for claim in await bench.take(queue, len(put))}
    equal(sorted(claims), sorted(put), "the jobs claimed in order to settle them as dead")
    await queue.settle([Settlement.dead(claims[job_id], error) for job_id in put])
    return put
