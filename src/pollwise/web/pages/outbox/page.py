"""The page of an outbox: how far it is behind, which keys are blocked and why, and its records."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pollwise.errors import PollwiseError
from pollwise.outbox.records import OutboxStats, RecordState
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.views import COUNTED_MAX
from pollwise.web.pages.outbox.source import OutboxSource
from pollwise.web.pages.queues.figures import charts_of
from pollwise.web.pages.queues.page import SPANS
from pollwise.web.pages.search import PageSearch
from pollwise.web.sources import RANGES
from pollwise.web.texts import compact, counted
from pollwise.web.view import NotShown, Refused, View, Visit

#: Records and blocked keys on one page.
ROWS = 50
#: The longest text of a filter, in characters.
TEXT_MAX = 200
#: The most records that one bulk action takes.
BULK_MAX = 10_000
BULK_AT_ONCE = 1_000

#: The tabs of the page: blocked keys, then records by state; "" for all records.
TABS: tuple[tuple[str, str], ...] = (
    ("blocked", "Blocked keys"),
    ("dead", "Dead"),
    ("ready", "Ready"),
    ("leased", "Leased"),
    ("waiting", "Waiting for a retry"),
    ("delayed", "Delayed"),
    ("done", "Done"),
    ("all", "All"),
)


@dataclass(frozen=True, slots=True)
class RecordSearch(PageSearch):
    """What the address asks for."""

    state: str = ""
    kind: str = ""
    key: str = ""
    error: str = ""
    span: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RecordSearch:
        given = cls.texts_of(query, TEXT_MAX)
        for name, known in (("state", dict(TABS)), ("span", RANGES)):
            if given[name] not in known:
                given[name] = ""
        return cls(**given)

    @property
    def filtered(self) -> bool:
        return bool(self.kind or self.key or self.error)


class OutboxView(View):
    """What the pages of an outbox share: what can be done on them, and when they change."""

    actions: ClassVar[Mapping[str, str]] = {
        "retry": "operate",
        "drop": "operate",
        "release": "operate",
    }

    async def marker(self, visit: Visit) -> Hashable:
        return (await source_of(visit).snapshot()).marker


def source_of(visit: Visit) -> OutboxSource:
    """The outbox in the address."""
    found = visit.web.sources.outboxes.get(visit.path["slug"])
    if found is None:
        raise NotShown(f"There is no outbox {visit.path['slug'][:80]!r} here.")
    return found


class OutboxPage(OutboxView):
    """One outbox."""

    name = "outbox"
    path = "/outboxes/{slug}"
    template = "outbox/page.html"

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = source_of(visit)
        search = RecordSearch.of(visit.query)
        shown = await source.snapshot()
        values: dict[str, Any] = {"source": source, "shown": shown, "search": search}
        values |= {"blocked": [], "records": [], "next": None, "wrong": None, "tab": search.state}
        values |= {"counted_stat": counted_stat, "bulk_max": BULK_MAX, "counted_max": COUNTED_MAX}
        if shown.stats is None:
            return values
        now, span = self.web.sources.clock.epoch(), search.span or "1h"
        past = await source.history(span)
        charts = charts_of(past, span, now) if past else []
        values |= {"span": span, "spans": SPANS, "charts_shown": charts}
        values["tab"] = tab = search.state or first_tab(shown.stats)
        values["tabs"] = [(name, text, *count_of(shown.stats, name)) for name, text in TABS]
        try:
            if tab == "blocked":
                values |= await self._blocked(source.store, search)
            else:
                values |= await self._records(source.store, tab, search)
        except (PollwiseError, OSError) as error:
            values["wrong"] = str(error)
        return values

    async def _blocked(self, store: OutboxStore, search: RecordSearch) -> dict[str, Any]:
        page = await store.blocked(ROWS + 1, search.after or None)
        more = len(page) > ROWS
        return {"blocked": page[:ROWS], "next": page[ROWS - 1].key if more else None}

    async def _records(self, store: OutboxStore, tab: str, search: RecordSearch) -> dict[str, Any]:
        state = None if tab == "all" else cast(RecordState, tab)
        page = await store.page(
            state,
            kind=search.kind or None,
            key=search.key or None,
            error=(search.error or None) if tab == "dead" else None,
            limit=ROWS,
            after=search.after or None,
        )
        return {"records": page.records, "next": page.next}

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        source = source_of(visit)
        store = source.store
        try:
            if action == "release":
                return await _release(store, form)
            return await _retry_or_drop(store, action, form)
        finally:
            source.forget()


def first_tab(stats: OutboxStats) -> str:
    """The tab that is open at first: what needs an operator."""
    if stats.keys_blocked:
        return "blocked"
    return "dead" if stats.dead else "all"


def count_of(stats: OutboxStats, tab: str) -> tuple[bool, int | None]:
    """How many rows a tab has, and whether there may be more."""
    name = "keys_blocked" if tab == "blocked" else tab
    return name in stats.capped, None if tab == "all" else getattr(stats, name)


def counted_stat(stats: OutboxStats, name: str) -> str:
    """A count of an outbox in few characters, with a plus if there may be more."""
    return compact(getattr(stats, name)) + ("+" if name in stats.capped else "")


async def _release(store: OutboxStore, form: Mapping[str, str]) -> str:
    relay, key = form.get("relay", ""), form.get("key", "")
    if not relay and not key:
        raise Refused("Name the relay or the key whose leases end.")
    count = await store.release([key] if key else None, relay or None)
    return f"Ended {counted(count, 'lease')}."


async def _retry_or_drop(store: OutboxStore, action: str, form: Mapping[str, str]) -> str:
    do = store.retry if action == "retry" else store.drop
    done = "Retried" if action == "retry" else "Dropped"
    lane = form.get("lane") or None
    if ident := form.get("id", ""):
        count = await do([ident], lane=lane)
        if not count:
            raise Refused(f"Record {ident[:40]} is not dead any more; nothing was changed.")
        return f"{done} record {ident}."
    if key := form.get("of_key", ""):
        count = await do(None, [key], lane=lane)
        return f"{done} {counted(count, 'dead record')} of the key {key}."
    if form.get("all") != "yes":
        raise Refused("Choose a record, a key, or all.")
    kind, key, error = (form.get(each, "").strip() for each in ("kind", "key", "error"))
    if not kind and not error:
        count = await do(None, [key] if key else None)
        return f"{done} {counted(count, 'dead record')}."
    return await _each_of_filter(store, action, kind, key, error)


async def _each_of_filter(store: OutboxStore, action: str, kind: str, key: str, error: str) -> str:
    """Retry or drop the dead records that match, page by page."""
    do = store.retry if action == "retry" else store.drop
    count = 0
    after: str | None = None
    while count < BULK_MAX:
        page = await store.page(
            "dead",
            kind=kind or None,
            key=key or None,
            error=error or None,
            limit=BULK_AT_ONCE,
            after=after,
        )
        if page.records:
            count += await do([each.record.id for each in page.records])
        after = page.next
        if after is None:
            break
    done = "Retried" if action == "retry" else "Dropped"
    more = " There may be more: do it again." if after is not None else ""
    return f"{done} {counted(count, 'dead record')} of the filter.{more}"
