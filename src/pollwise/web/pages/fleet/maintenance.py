"""The page of a fleet's maintenance windows: in which alerts are held back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode

from pollwise.alerts.windows import NOTE_MAX, MaintenanceWindow
from pollwise.errors import ConfigError, PollwiseError
from pollwise.fleet.control import note
from pollwise.fleet.maintenance import MaintenanceBook, in_words
from pollwise.web.pages.fleet.page import address_of, source_of, who_of
from pollwise.web.pages.fleet.source import FleetSource
from pollwise.web.texts import one_line
from pollwise.web.view import Acted, Refused, View, Visit

#: The fields of the form that are times.
TIMES = ("every", "start", "end", "for")
#: All its fields, and the most characters of one that are shown again when the form was refused.
FIELDS = ("target", "group", "all", "note", *TIMES)
FIELD_MAX = 255


@dataclass(frozen=True, slots=True)
class ShownWindow:
    """A window on a page. when: in words. until, next: if it is under way; when it begins next."""

    window: MaintenanceWindow
    when: str
    until: float | None
    next: float | None

    @classmethod
    def of(cls, window: MaintenanceWindow, now: float) -> ShownWindow:
        return cls(window, in_words(window, now), window.until(now), window.next(now))


class FleetMaintenancePage(View):
    """The maintenance windows of one fleet."""

    name = "maintenance"
    path = "/fleets/{slug}/maintenance"
    template = "fleet/maintenance.html"
    actions: ClassVar[Mapping[str, str]] = dict.fromkeys(("add", "end", "remove"), "operate")

    async def marker(self, visit: Visit) -> Hashable:
        try:
            return tuple(await windows_of(source_of(visit)))
        except (PollwiseError, OSError) as error:
            return str(error)

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = source_of(visit)
        now = self.web.sources.clock.epoch()
        values: dict[str, Any] = {"source": source, "windows": [], "wrong": None, "most": NOTE_MAX}
        values["given"] = {key: visit.query.get(key, "")[:FIELD_MAX] for key in FIELDS}
        try:
            found = [ShownWindow.of(each, now) for each in await windows_of(source)]
        except (PollwiseError, OSError) as error:
            return {**values, "wrong": str(error)}
        # Those under way first, then by when they begin; those that are over last.
        found.sort(key=lambda each: (each.until is None, each.next is None, each.next or 0.0))
        return {**values, "windows": found}

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> Acted:
        source, now = source_of(visit), self.web.sources.clock.epoch()
        book, who = _book(source), who_of(visit)
        if action == "add":
            try:
                window = await self._add(source, book, form, who, now)
            except (Refused, ConfigError) as refused:
                given = {key: form[key][:FIELD_MAX] for key in FIELDS if form.get(key)}
                back = f"{visit.request.url.path}?{urlencode(given)}#new"
                raise Refused(str(refused), back) from None
            detail = f"{window.id} {in_words(window, now)} {window.note}".strip()
        elif action == "end":
            window = await book.end(form.get("id", ""), now)
            detail = window.id
        else:
            window = await book.remove(form.get("id", ""))
            detail = window.id
        address = address_of(visit)
        await note(source.store, who, f"maintenance.{action}", window.whom, detail, address)
        done = {"add": "Added", "end": "Ended", "remove": "Removed"}[action]
        said = f"{done}: maintenance of {one_line(window.whom, 200)}."
        return Acted(said, visit.request.url.path)  # without what a refused form had

    async def _add(
        self,
        source: FleetSource,
        book: MaintenanceBook,
        form: Mapping[str, str],
        who: str,
        now: float,
    ) -> MaintenanceWindow:
        table: dict[str, Any] = {
            key: form[key].strip() for key in TIMES if form.get(key, "").strip()
        }
        if text := form.get("note", "").strip():
            table["note"] = text
        name, group = form.get("target", "").strip(), form.get("group", "").strip()
        if name:
            table["targets"] = [name]
        if group:
            table["groups"] = [group]
        if form.get("all") == "yes":
            table["all"] = True
        if not (name or group or "all" in table):
            raise Refused("Say for whom it is: a target, a group, or all targets.")
        shown = await source.snapshot()
        groups = [] if shown.counts is None else [each for each in shown.counts.groups if each]
        targets = [name] if name and await source.target(name) is not None else []
        return await book.add(table, who, now, targets=targets, groups=groups)


def _book(source: FleetSource) -> MaintenanceBook:
    return MaintenanceBook(source.store, source.maintenance)


async def windows_of(source: FleetSource) -> list[MaintenanceWindow]:
    """The windows of a fleet, as far as this process knows them."""
    return await _book(source).windows()
