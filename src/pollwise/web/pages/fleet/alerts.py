"""The page of a fleet's alerts: the open ones, the closed ones, and who acknowledged them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pollwise.alerts.values import AlertFilter
from pollwise.errors import ConfigError, PollwiseError
from pollwise.web.pages.fleet.page import address_of, source_of, who_of
from pollwise.web.pages.search import PageSearch
from pollwise.web.texts import counted
from pollwise.web.view import Refused, View, Visit

#: Alerts on one page, the most that are acknowledged at once, and the longest note.
ROWS = 50
CHOSEN_MAX = 200
NOTE_MAX = 500
#: The colours of severities.
SEVERITY_TONES = {"critical": "red", "warning": "amber", "info": "blue"}


@dataclass(frozen=True, slots=True)
class AlertSearch(PageSearch):
    """What the address asks for. state: "closed"; else the open ones."""

    state: str = ""
    target: str = ""
    group: str = ""

    def filter(self) -> AlertFilter:
        """Raises `ConfigError` if the address is wrong."""
        state: Any = self.state or "open"
        return AlertFilter(state, self.target or None, self.group or None, ROWS, self.after or None)


class FleetAlertsPage(View):
    """The alerts of one fleet."""

    name = "alerts"
    path = "/fleets/{slug}/alerts"
    template = "fleet/alerts.html"
    actions: ClassVar[Mapping[str, str]] = {"acknowledge": "operate"}

    async def marker(self, visit: Visit) -> Hashable:
        return await source_of(visit).alerts_marker()

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = source_of(visit)
        search = AlertSearch(**AlertSearch.texts_of(visit.query, 600))
        values: dict[str, Any] = {
            "source": source, "search": search, "alerts": [], "next": None, "wrong": None,
            "tones": SEVERITY_TONES, "note_max": NOTE_MAX,
        }  # fmt: skip
        try:
            page = await source.alerts(search.filter())
            values["alerts"], values["next"] = page.alerts, page.next
        except (ConfigError, PollwiseError, OSError) as error:
            values["wrong"] = str(error)
        return values

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        """Acknowledge the chosen alerts."""
        ids = await visit.picked("id", CHOSEN_MAX)
        note = form.get("note", "").strip()
        if not ids:
            raise Refused("Choose an alert.")
        if len(note) > NOTE_MAX:
            raise Refused(f"The note has {len(note)} characters; at most {NOTE_MAX} are kept.")
        found = await source_of(visit).acknowledge(ids, who_of(visit), note, address_of(visit))
        if not found:
            raise Refused("None of these alerts is open any more; nothing was changed.")
        they = "It is" if len(found) == 1 else "They are"
        return f"Acknowledged: {counted(len(found), 'alert')}. {they} not repeated any more."
