"""The names of tokens and workers, to be shown beside their ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pollwise.controller.state.base import PAGE_MAX, ControllerState

#: The maximum number of names to remember. A name never changes.
REMEMBERED_MAX = 10_000

_WHO = re.compile(r"(?:worker|token):[0-9a-f]{32}\Z")
_WORKER = re.compile(r"\b[0-9a-f]{32}\b")
_LABEL = re.compile(r"((?:worker|token):[0-9a-f]{32}) \((.*)\)\Z")


class Names:
    """Finds the names of tokens (`token:<id>`) and workers (`worker:<id>`)."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self._known: dict[str, str] = {}

    async def of(self, whos: Iterable[str | None]) -> Mapping[str, str]:
        """The names of those that still exist, by who they are."""
        wanted = {who for who in whos if who is not None and _WHO.match(who)}
        unknown = sorted(wanted - self._known.keys())
        if len(self._known) + len(unknown) > REMEMBERED_MAX:
            self._known.clear()
            unknown = sorted(wanted)
        for kind, read in (("worker", self._state.workers), ("token", self._state.tokens)):
            ids = [who.partition(":")[2] for who in unknown if who.startswith(kind)]
            for start in range(0, len(ids), PAGE_MAX):
                found = await read(ids[start : start + PAGE_MAX])
                self._known.update({f"{kind}:{id_}": row.name for id_, row in found.items()})
        return {who: self._known[who] for who in wanted if who in self._known}


def workers_in(text: str | None) -> list[str]:
    """The workers that an error names, such as `the lease of 0198… ran out`."""
    return [f"worker:{id_}" for id_ in _WORKER.findall(text or "")]


def with_names(text: str, names: Mapping[str, str]) -> str:
    """A text whose ids of workers are preceded by their names."""

    def named(found: re.Match[str]) -> str:
        name = names.get(f"worker:{found[0]}")
        return found[0] if name is None else f"{name} ({found[0]})"

    return _WORKER.sub(named, text)


def split_label(text: str) -> tuple[str, str | None]:
    """Who an entry of the audit log is about, and the name, from `token:<id> (name)`."""
    found = _LABEL.match(text)
    return (text, None) if found is None else (found[1], found[2])
