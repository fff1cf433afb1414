"""The first page: every queue at a glance, and what needs attention."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Any

from pollwise.web.view import View, Visit


class OverviewPage(View):
    """Every queue, with its depth and its oldest job."""

    name = "overview"
    path = "/"
    template = "overview.html"

    async def marker(self, visit: Visit) -> Hashable:
        queues = self.web.sources.queues.values()
        snapshots = await asyncio.gather(*(source.snapshot() for source in queues))
        return tuple(each.marker for each in snapshots)

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        queues = self.web.sources.queues.values()
        snapshots = await asyncio.gather(*(source.snapshot() for source in queues))
        return {"queues": list(zip(queues, snapshots, strict=True))}
