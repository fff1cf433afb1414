"""The part of every queue's contract that operators use: counts, lists, pages, retry and drop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, overload

from pollwise.errors import Compensated, ConfigError, Unsupported
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.notes import NotedStore
from pollwise.queues.views import (
    COUNTED_MAX,
    NAMES_MAX,
    BulkDone,
    JobFilter,
    JobPage,
    Stats,
    listed,
)
from pollwise.runtime.jobs import ENDED, JobInfo, State
from pollwise.runtime.store import MAX_PAGE, distinct

BulkAction = Literal["retry", "drop", "cancel"]
DEAD: tuple[State, ...] = ("dead",)
#: How many jobs an error names.
NAMED_MAX = 20


class ViewedStore(NotedStore):
    """A store whose jobs can be counted, listed, retried and dropped."""

    capabilities: ClassVar[Capabilities]

    async def jobs(
        self,
        state: State | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        worker: str | None = None,
        limit: int = 50,
    ) -> list[JobInfo]:
        """The first jobs of a state, of some kinds or of a worker, in the order of `page`.

        If few jobs match, this reads page after page until it has `limit` jobs or all of them; to
        see more jobs, or to read no more than a page, call `page`.

        kind: one kind, or several.
        worker: only jobs that this worker runs or has ended.
        limit: up to MAX_PAGE.
        """
        kinds = distinct([kind] if isinstance(kind, str) else kind, "kind")
        chosen = JobFilter(state, None if kinds is None else tuple(kinds), worker, limit)
        page = await self.page(chosen)
        found = page.jobs
        while page.next is not None and len(found) < limit:
            page = await self.page(replace(chosen, limit=limit - len(found), after=page.next))
            found += page.jobs
        return found

    async def arrivals(self, after: str | None = None, limit: int = 50) -> list[JobInfo]:
        """The jobs that were put after the one with this id, in put order.

        after: None begins with the first job.
        limit: the maximum number, up to MAX_PAGE.
        """
        chosen = JobFilter(limit=limit, after=after)
        self._check_views(None)
        return [self._as_listed(info) for info in await self._arrivals(chosen)]

    async def page(self, chosen: JobFilter) -> JobPage:
        """A page of the jobs that match a filter, in the order that the store can read best.

        Postgres and SQLite show one state after the other: leased jobs (the lease that ends first),
        ready ones (by kind, in the order of claims), delayed ones (the one due first), blocked ones
        (by key), then dead, done and cancelled ones (the newest first). Other stores show the
        newest put first.
        Of a payload or a result of more than 200 characters of JSON, a page has the beginning; see
        `JobInfo.cut_parts`. `get` returns the whole.
        The work is bounded: a page may be short and have a `next`; see `pollwise.queues.views`.
        """
        self._check_views(chosen.state)
        page = JobPage([], None, 0) if chosen.nothing else await self._page(chosen)
        return replace(page, jobs=[self._as_listed(info) for info in page.jobs])

    def _as_listed(self, info: JobInfo) -> JobInfo:
        """A record as lists have it; the whole in a store that cannot show one job by itself."""
        return self._sealing.info(listed(info) if self.capabilities.views else info)

    async def names(self) -> list[str]:
        """The queues in this store that have jobs or notes, and this one; at most NAMES_MAX.

        A store that cannot list its queues returns only this one.
        """
        return sorted({self.name, *await self._names()})[:NAMES_MAX]

    @abstractmethod
    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        """The number of jobs in each state.

        most: up to how many jobs of a state are counted, in a store that would have to read them
            all; `Stats.capped` names the states that have more. The default takes milliseconds.
        """

    @abstractmethod
    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        """The number of jobs in each state, for each kind that has jobs.

        most: how many jobs that are not ready are read, in all states together. Redis reads at most
            10,000.
        ready_most: up to how many ready jobs are counted; by default `most`. SQLite and Postgres
            count them ten times faster than others. Redis always counts all; `http://` queues and
            object stores count up to `most`.
        A state with more jobs is in `Stats.capped`; the numbers of other states are exact.
        """

    @overload
    async def retry(self, which: JobFilter, *, anyway: bool = False) -> BulkDone: ...

    @overload
    async def retry(self, which: Sequence[str] | None = None, *, anyway: bool = False) -> int: ...

    async def retry(
        self, which: JobFilter | Sequence[str] | None = None, *, anyway: bool = False
    ) -> BulkDone | int:
        """Run jobs again, with fresh attempts; return how many.

        None: all dead jobs. With ids: these, if they are dead, done or cancelled.
        With a filter: the jobs that match, only dead ones unless it names a state; see `BulkDone`.

        A dead job is *compensated* if a job that runs `on_failure` of it has been started: its flow
        would go on beside that. Raises `Compensated` for the id of such a job, before anything is
        retried; other calls leave such jobs dead. anyway: retry them too.
        """
        if isinstance(which, JobFilter):
            spared = partial(self._retry_spared, anyway=anyway)
            return await self._bulk("retry", _ended(which), spared, anyway=anyway)
        ids = distinct(which, "ids")
        count = await self._retry_asked(ids, anyway)
        if count:
            self._give_hints(count)
        return count

    async def _retry_asked(self, ids: Sequence[str] | None, anyway: bool) -> int:
        if anyway or not self.capabilities.flows:
            return await self._retry(ids)
        compensated = await self._compensated(ids)
        if ids is not None and compensated:
            raise Compensated(_compensation(compensated))
        if not compensated:
            return await self._retry(ids)
        chosen: JobFilter | None = JobFilter("dead", limit=MAX_PAGE)
        dead: list[str] = []
        while chosen is not None:
            found, after = await self._page_ids(chosen)
            dead += found
            chosen = None if after is None else replace(chosen, after=after)
        dead.sort(key=lambda job_id: (len(job_id), job_id))  # in put order, for those with a key
        slices = (dead[start : start + MAX_PAGE] for start in range(0, len(dead), MAX_PAGE))
        return sum([await self._retry_but(ids, compensated) for ids in slices])

    async def _retry_spared(self, ids: list[str], anyway: bool) -> int:
        """Retry those that are not compensated."""
        spared = [] if anyway or not self.capabilities.flows else await self._compensated(ids)
        count = await self._retry_but(ids, spared)
        if count:
            self._give_hints(count)
        return count

    async def _retry_but(self, ids: Sequence[str], others: Collection[str]) -> int:
        left = [each for each in ids if each not in set(others)]
        return await self._retry(left) if left else 0

    @overload
    async def drop(self, which: JobFilter) -> BulkDone: ...

    @overload
    async def drop(self, which: Sequence[str] | None = None) -> int: ...

    async def drop(self, which: JobFilter | Sequence[str] | None = None) -> BulkDone | int:
        """Delete dead jobs permanently (None: all); return how many.

        With a filter: the jobs that match, only dead ones unless it names the state done or
        cancelled; see `BulkDone`.
        """
        if isinstance(which, JobFilter):
            return await self._bulk("drop", _ended(which), self._drop_ended)
        return await self._drop(distinct(which, "ids"))

    # What a store implements.

    @abstractmethod
    async def _page(self, chosen: JobFilter) -> JobPage:
        """As `page`; a store may use `page_of_list` for it."""

    @abstractmethod
    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        """As `arrivals`; only the limit and `after`, an id, of the filter count."""

    async def _page_ids(self, chosen: JobFilter) -> tuple[list[str], str | None]:
        """The ids of a page, and its `next`; a store overrides this to read no payloads."""
        page = await self._page(chosen)
        return [info.job.id for info in page.jobs], page.next

    async def _names(self) -> Iterable[str]:
        return ()

    @abstractmethod
    async def _retry(self, ids: Sequence[str] | None) -> int: ...

    async def _compensated(self, ids: Sequence[str] | None) -> list[str]:
        """Of these jobs, or of all, those that are dead and have a successor of `on_failure` that
        waits for no predecessor any more and is not cancelled."""
        return []

    @abstractmethod
    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        """Delete jobs that are in one of these states."""

    # Helpers.

    async def _bulk(
        self,
        action: BulkAction,
        chosen: JobFilter,
        act: Callable[[list[str]], Awaitable[int]],
        *,
        anyway: bool = False,
    ) -> BulkDone:
        """Apply an action to one page of the jobs that match. anyway: as for `retry`."""
        self._check_views(chosen.state)
        if chosen.nothing:
            return BulkDone(0, None)
        ids, after = await self._page_ids(chosen)
        return BulkDone(await act(ids) if ids else 0, after)

    async def _drop_ended(self, ids: list[str]) -> int:
        return await self._drop(ids, ENDED)

    def _check_views(self, state: State | None) -> None:
        if state != "dead" and not self.capabilities.views:
            raise self._no_views("list jobs")

    def _no_views(self, what: str) -> Unsupported:
        return Unsupported(
            f"{self.url} cannot {what}: its store shows a job only to the worker that claims it. "
            '`stats` counts the jobs, and `jobs("dead")` shows the dead ones'
        )


def _compensation(ids: Sequence[str]) -> str:
    """Why these jobs are not retried."""
    named = ", ".join(ids[:NAMED_MAX]) + f" and {len(ids) - NAMED_MAX} more" * (
        len(ids) > NAMED_MAX
    )
    jobs, theirs = ("job", "its") if len(ids) == 1 else ("jobs", "their")
    return (
        f"{jobs} {named} not retried: {theirs} failure has started the jobs of on_failure, which "
        "may have undone its flow, and a retry would go on with that. Put a new flow, or retry "
        "with anyway=True (--anyway) if the flow may go on"
    )


def _ended(chosen: JobFilter) -> JobFilter:
    """The filter for ended jobs; without a state, for dead ones."""
    if chosen.live or chosen.state not in (None, *ENDED):
        raise ConfigError(
            f"state = {chosen.state!r}: only dead, done and cancelled jobs can be retried or "
            "dropped; cancel the others first"
        )
    return replace(chosen, state=chosen.state or "dead")
