"""The audit log: who did what, from where, newest first."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from pollwise.web.view import View, Visit

_NAMED = re.compile(r"(?:token|worker):[0-9a-f]+ \((.+)\)\Z")
#: How many entries a page lists.
PAGE = 50


class AuditLogPage(View):
    """The audit log of the state: of this web interface, of the HTTP API and of commands."""

    name = "audit"
    path = "/audit"
    #: It names people and where they were, which is not for everybody who may look at jobs.
    scope = "operate"
    template = "audit.html"
    menu = "Audit"

    def shown(self) -> bool:
        return self.web.access.state is not None

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        state = self.web.access.state
        chosen = {name: visit.query.get(name, "").strip()[:500] for name in ("who", "action")}
        before = visit.query.get("before", "")
        last = int(before) if before.isascii() and before.isdigit() and len(before) < 16 else None
        found = []
        if state is not None:
            asked = {name: value or None for name, value in chosen.items()}
            found = await state.list_audit(**asked, limit=PAGE + 1, before=last)
        return {
            "entries": found[:PAGE],
            "next": found[PAGE - 1].id if len(found) > PAGE else None,
            "names": {entry.who: name_of(entry.who) for entry in found},
            "chosen": chosen,
            "first_page": last is None,
        }

    async def marker(self, visit: Visit) -> Hashable:
        state = self.web.access.state
        newest = [] if state is None else await state.list_audit(limit=1)
        return newest[0].id if newest else 0


def name_of(who: str) -> str:
    """The name of somebody in the log, without the id.

    >>> name_of("token:01a1e52a (Ada)"), name_of("command line")
    ('Ada', 'command line')
    """
    found = _NAMED.match(who)
    return found[1] if found else who
