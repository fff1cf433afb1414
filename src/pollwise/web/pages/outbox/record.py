"""The page of a record: what it carries, what each handler has done, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pollwise.errors import PollwiseError
from pollwise.outbox.progress import NO_HANDLER, HandlerProgress, RecordProgress
from pollwise.outbox.records import RecordInfo
from pollwise.web.pages.outbox.page import OutboxView, source_of
from pollwise.web.redaction import redacted
from pollwise.web.texts import counted
from pollwise.web.tree import raw, tree
from pollwise.web.view import Acted, NotShown, Refused, Visit


@dataclass(frozen=True, slots=True)
class LaneStory:
    """A record in one lane: its state, and what each handler has done."""

    info: RecordInfo
    handlers: tuple[tuple[str, HandlerProgress], ...]

    @property
    def attempts(self) -> int:
        return max((each.attempts for _, each in self.handlers), default=0)


class RecordPage(OutboxView):
    """One record of an outbox."""

    name = "record"
    path = "/outboxes/{slug}/records/{id}"
    template = "outbox/record.html"

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source, ident = source_of(visit), visit.path["id"][:80]
        try:
            found = await source.store.get(ident)
        except (PollwiseError, OSError) as error:
            return {"source": source, "id": ident, "record": None, "error": str(error)}
        if not found:
            raise NotShown(
                f"There is no record {ident} in {source.title}. It may be done: records are "
                "deleted when they are done, unless the outbox keeps them."
            )
        record = found[0].record
        payload = None if record.sealed is not None else redacted(record.payload, self.web.rules)
        text, cut = ("", False) if record.sealed is not None else raw(payload)
        return {
            "source": source,
            "id": ident,
            "record": record,
            "lanes": [LaneStory(info, _handlers(info)) for info in found],
            "payload": None if record.sealed is not None else tree(payload, "payload"),
            "raw": text,
            "cut": cut,
            "headers": redacted(dict(record.headers), self.web.rules),
            "error": None,
        }

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str | Acted:
        source, ident = source_of(visit), visit.path["id"][:80]
        store, lane = source.store, form.get("lane") or None
        found = await store.get(ident)
        source.forget()
        if action == "release":
            held = [info for info in found if info.state == "leased" and info.record.key]
            if not held:
                raise Refused(f"No relay holds the key of record {ident} any more.")
            count = await store.release([str(held[0].record.key)])
            return f"Ended {counted(count, 'lease')} of the key {held[0].record.key}."
        if not any(info.state == "dead" and lane in (None, info.lane) for info in found):
            raise Refused(f"Record {ident} is not dead any more; nothing was changed.")
        if action == "retry":
            await store.retry([ident], lane=lane)
            return f"Retried record {ident}."
        await store.drop([ident], lane=lane)
        back = visit.request.scope.get("root_path", "") + self.web.path_of(
            "outbox", slug=source.slug
        )
        return Acted(f"Dropped record {ident}.", back)


def _handlers(info: RecordInfo) -> tuple[tuple[str, HandlerProgress], ...]:
    """What each handler has done, by its name; without entries that are not handlers."""
    progress = RecordProgress.read(info.progress)
    return tuple(
        (name or "no handler", progress.of(name))
        for name in progress.names
        if name == NO_HANDLER or name.isprintable()
    )
