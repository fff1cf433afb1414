"""The page of a fleet: its targets with filters, its groups, and the nodes that poll it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pollwise.errors import ConfigError, PollwiseError
from pollwise.fleet.stores.base import TargetOrder
from pollwise.fleet.stores.paging import VIEWED_STATES, TargetFilter, TargetSort
from pollwise.web.pages.fleet.rows import ORDER_WORDS, STATES, WORDS, TargetRow
from pollwise.web.pages.fleet.source import FleetSource, ShownFleet
from pollwise.web.pages.search import PageSearch
from pollwise.web.texts import counted
from pollwise.web.view import NotShown, Refused, View, Visit

#: Targets on one page.
ROWS = 50
#: The most targets that one bulk order takes, and how many are read at a time.
BULK_MAX = 10_000
BULK_AT_ONCE = 500
#: The most groups that the page lists.
GROUPS_MAX = 100
#: What can be chosen for adaptive polling; None removes an earlier choice.
SWITCHES: Mapping[str, bool | None] = {"on": True, "off": False, "default": None}
SORTS: Mapping[TargetSort, str] = {
    "name": "name", "stale": "oldest success first", "next": "next poll first",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TargetSearch(PageSearch):
    """What the address asks for. group: "-" for targets without a group."""

    state: str = ""
    group: str = ""
    text: str = ""
    sort: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> TargetSearch:
        given = cls.texts_of(query, 600)
        given["state"] = WORDS.get(given["state"], given["state"])
        return cls(**given)

    @property
    def filtered(self) -> bool:
        return bool(self.state or self.group or self.text)

    def filter(self, limit: int = ROWS, after: str | None = None) -> TargetFilter:
        """Raises `ConfigError` if the address is wrong."""
        group = "" if self.group == "-" else self.group or None
        return TargetFilter(
            STATES.get(self.state, self.state) or None,
            group,
            self.text.strip() or None,
            self.sort or "name",  # type: ignore[arg-type]
            limit,
            after,
        )


class FleetPage(View):
    """One fleet."""

    name = "fleet"
    path = "/fleets/{slug}"
    template = "fleet/page.html"
    actions: ClassVar[Mapping[str, str]] = dict.fromkeys((*ORDER_WORDS, "adaptive"), "operate")

    async def marker(self, visit: Visit) -> Hashable:
        return (await source_of(visit).snapshot()).marker

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = source_of(visit)
        search = TargetSearch.of(visit.query)
        shown = await source.snapshot()
        values: dict[str, Any] = {
            "source": source, "shown": shown, "search": search, "rows": [], "next": None,
            "wrong": None, "sorts": SORTS, "bulk_max": BULK_MAX, "with_uptimes": False,
            "paces": [], "oldest": None,
        }  # fmt: skip
        if shown.counts is None:
            return values
        now = self.web.sources.clock.epoch()
        try:
            page = await source.page(search.filter(after=search.after or None))
            orders = await source.pending([each.name for each in page.targets])
            by_name: dict[str, list[TargetOrder]] = {}
            for order in orders:
                by_name.setdefault(order.name, []).append(order)
            shares = await source.uptimes([each.name for each in page.targets], now)
            values["rows"] = [
                TargetRow(each, now, by_name.get(each.name, ()), shares.get(each.name))
                for each in page.targets
            ]
            values["with_uptimes"] = bool(shares)
            values["next"] = page.next
        except (ConfigError, PollwiseError, OSError) as error:
            values["wrong"] = str(error)
        states = shown.counts.states
        values["states"] = [(WORDS.get(each, each), states[each]) for each in VIEWED_STATES]
        values["groups"] = groups_of(shown)
        try:
            oldest = await source.oldest()
            values["oldest"] = None if oldest is None else TargetRow(oldest, now)
            values["paces"] = await paces_of(source)
        except (PollwiseError, OSError) as error:
            values["wrong"] = str(error)
        return values

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        """Give an order to one target, or to all of a filter."""
        source = source_of(visit)
        if action == "adaptive":
            return await self._switch(source, visit, form)
        if name := form.get("name", ""):
            names = [name] if await source.target(name) is not None else []
        elif form.get("all") == "yes":
            names = await self._all_of(source, TargetSearch.of(form))
        else:
            raise Refused("Choose a target, or all of a filter.")
        if not names:
            raise Refused("No target matches; nothing was ordered.")
        done = await source.order(action, names, who_of(visit), address_of(visit))
        word, targets = ORDER_WORDS[action], counted(len(names), "target")
        what = f"“{word}” for {targets if len(names) > 1 else names[0]}"
        return (
            f"Done: {what}." if done else f"Ordered: {what}. The polling node does it in seconds."
        )

    async def _switch(self, source: FleetSource, visit: Visit, form: Mapping[str, str]) -> str:
        """Turn adaptive polling on or off, for a group or for all targets."""
        if form.get("adaptive") not in SWITCHES:
            raise Refused("Choose whether adaptive polling is on or off.")
        enabled, group = SWITCHES[form["adaptive"]], form.get("group") or None
        await source.switch_adaptive(group, enabled, who_of(visit), address_of(visit))
        whose = "all targets" if group is None else f"group {group}"
        said = {True: "on", False: "off", None: "as before"}[enabled]
        lasts = (
            "The polling nodes apply it in seconds, and it survives restarts."
            if source.keeps_settings
            else "It lasts until this process ends: the fleet is paced by its code."
        )
        return f"Adaptive polling of {whose}: {said}. {lasts}"

    async def _all_of(self, source: FleetSource, search: TargetSearch) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while len(names) < BULK_MAX:
            page = await source.page(search.filter(BULK_AT_ONCE, after))
            names += [each.name for each in page.targets]
            after = page.next
            if after is None:
                break
        return names[:BULK_MAX]


async def paces_of(source: FleetSource) -> list[tuple[str | None, str]]:
    """Whether adaptive polling is on, as a key of SWITCHES, for all targets (None) and by group."""
    found = await source.adaptive()
    words = {value: word for word, value in SWITCHES.items()}
    groups = (await source.groups())[:GROUPS_MAX]
    return [(group, words[found.get(group)]) for group in (None, *groups)]


def source_of(visit: Visit) -> FleetSource:
    """The fleet in the address."""
    found = visit.web.sources.fleets.get(visit.path["slug"])
    if found is None:
        raise NotShown(f"There is no fleet {visit.path['slug'][:80]!r} here.")
    return found


def who_of(visit: Visit) -> str:
    """For the audit log of the fleet, and for the log of the node that carries out an order."""
    return f"web: {visit.viewer.who}"


def address_of(visit: Visit) -> str:
    client = visit.request.client
    return "" if client is None else client.host


def groups_of(shown: ShownFleet) -> list[dict[str, Any]]:
    """The groups: how many targets each has, how many of them fail, and how often they are
    polled."""
    if shown.counts is None:
        return []
    found: list[dict[str, Any]] = []
    for group, states in shown.counts.groups.items():
        total = sum(states.values())
        down = states.get("dead", 0) + states.get("open", 0)
        failing = states.get("confirming", 0) + states.get("backing off", 0)
        found.append(
            {
                "name": group, "total": total, "down": down, "failing": failing,
                "paused": states.get("paused", 0), "rate": shown.counts.rates.get(group, 0.0),
            }
        )  # fmt: skip
    found.sort(key=lambda each: (-each["down"], -each["failing"], each["name"] or ""))
    return found[:GROUPS_MAX]
