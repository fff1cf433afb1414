"""Compares what is defined with what is polled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pollwise.fleet.definitions.shown import changed_keys
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.targets import Target


@dataclass(frozen=True, slots=True)
class DefinitionChanges:
    """How the definitions differ from what is polled.

    added: defined, and not polled yet. removed: polled, and not defined any more.
    changed: by name, the keys that are different. Secrets are not compared.
    twice: in the file and in the store.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, list[str]]
    twice: tuple[str, ...]

    def __bool__(self) -> bool:
        """True if something differs; a target that is defined twice does not."""
        return bool(self.added or self.removed or self.changed)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compared(
    file: Mapping[str, Target], stored: Mapping[str, Target], saved: Iterable[SavedTarget]
) -> DefinitionChanges:
    """The difference between the targets of the file and of the store, and the saved ones."""
    wanted = {**stored, **file}
    polled = {each.name: each for each in saved}
    changed = {}
    for name in sorted(wanted.keys() & polled.keys()):
        keys = _differing(wanted[name], polled[name])
        if keys:
            changed[name] = keys
    return DefinitionChanges(
        tuple(sorted(wanted.keys() - polled.keys())),
        tuple(sorted(polled.keys() - wanted.keys())),
        changed,
        tuple(sorted(file.keys() & stored.keys())),
    )


def _differing(wanted: Target, polled: SavedTarget) -> list[str]:
    written = polled.more.get("written")
    if isinstance(written, str):
        return changed_keys(written, wanted.written)
    # Saved by an earlier version, or a target of code.
    known = (("type", polled.type, wanted.type), ("group", polled.group, wanted.group))
    return [key for key, before, after in known if before is not None and before != after]
