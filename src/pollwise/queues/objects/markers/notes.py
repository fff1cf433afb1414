"""Notes as objects: pauses, records of workers, and orders to them.

A name is never written twice: a new note is a new object beside the old one, which is then deleted.
The newest counts. Pauses and orders are in `live/`, so that the LIST of a claim shows them and no
claim pays a request for them; their names sort before those of all jobs. `read_roots` ignores them.
A claim that uses the rest of an earlier listing does not see a pause for up to LISTING_FRESH.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pollwise.queues.notes import NOTES_MAX, WHOLE, NewNote, Note, NoteWritten, Topic, plain_kind
from pollwise.queues.objects.chain import ListedObject
from pollwise.queues.objects.core import Core
from pollwise.queues.objects.names import digits, safe_name, salt, tag_of
from pollwise.queues.presence import PRESENCE_EVERY

#: The folder of each topic.
FOLDERS: dict[str, tuple[str, ...]] = {
    "pauses": ("live", "-pauses"),
    "orders": ("live", "-orders"),
    "workers": ("workers",),
}
#: The time of a note that stays, in microseconds.
FOR_EVER = 32**11 - 1


@dataclass(frozen=True, slots=True)
class NoteObject:
    """The object of a note: `<folder>/<name>/<until>-<written>-<salt>`, both in microseconds."""

    path: str
    name: str  # as `_name` writes it
    until: str
    written: str


@dataclass(frozen=True, slots=True)
class KindChoice:
    """The kinds that a claim may take: these, or all but the paused ones.

    paused: as `_name` writes them; empty if kinds are named, which are then without the paused.
    """

    kinds: Sequence[str] | None
    paused: frozenset[str] = frozenset()

    def wants(self, kind: str) -> bool:
        if self.kinds is not None:
            return kind in self.kinds
        return not self.paused or not _names(kind) & self.paused

    def tags(self) -> set[str] | None:
        """The tags of the kinds; None for all."""
        return None if self.kinds is None else {tag_of(kind) for kind in self.kinds}

    def unsure_tags(self) -> set[str]:
        """The tags of puts whose body has to be read, because a paused kind has the same."""
        return {name.partition(".")[0] for name in self.paused}


class ObjectNotes:
    """The notes of one handle."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._listed: list[ListedObject] = []  # those that the newest LIST of `live/` showed
        self._listed_at = float("-inf")
        self._ours: dict[tuple[str, str], str] = {}  # by topic and name, what this handle wrote

    def saw(self, items: Sequence[ListedObject]) -> None:
        """The first page of a LIST of `live/`."""
        before = self._core.path("live", "0")
        self._listed = [item for item in items if item.name < before]
        self._listed_at = self._core.clock.now()

    def choice(self, kinds: Sequence[str] | None) -> KindChoice:
        """The kinds that a claim may take, by the newest LIST."""
        if not self._listed:
            return KindChoice(kinds)
        paused = {note.name for note in self._read(self._listed, "pauses")}
        if _name(WHOLE) in paused:
            return KindChoice([])
        if kinds is not None:
            return KindChoice([kind for kind in kinds if not _names(kind) & paused])
        return KindChoice(None, frozenset(paused))

    async def write(self, note: NewNote) -> NoteWritten:
        core, name = self._core, _name(note.name)
        place = note.topic, name
        now = core.time.now()
        path = ""
        if note.value is not None:
            until = FOR_EVER if note.ttl is None else round((now + note.ttl) * 1e6)
            stamp = f"{digits(until, 11)}-{digits(round(now * 1e6), 11)}-{salt()}"
            path = core.path(*FOLDERS[note.topic], name, stamp)
        if note.topic == "workers":  # without a LIST: nobody else writes this name
            old = [self._ours[place]] if place in self._ours else []
            done = bool(old) or note.value is not None
        else:
            listed = await core.listing(*FOLDERS[note.topic])
            found = self._read(listed, note.topic)
            old = [each.path for each in found if each.name == name]
            names = {each.name for each in found} - {name}
            done = bool(old) if note.value is None else len(names) < NOTES_MAX[note.topic]
        if note.value is not None and done:
            text = json.dumps([note.name, note.value], ensure_ascii=False)
            await core.create(path, text.encode())
            self._ours[place] = path
        if note.value is None:
            self._ours.pop(place, None)
        if old and done:
            await core.delete(old)
        return NoteWritten(done, await self._answer(note))

    async def _answer(self, note: NewNote) -> str | None:
        """The note of the same name in another topic, if the newest LIST showed one.

        Without a recent LIST, because a worker is too busy to poll, it is listed for this.
        """
        if note.answer is None:
            return None
        listed = self._listed
        if self._core.clock.now() - self._listed_at > PRESENCE_EVERY:
            listed = await self._core.listing(*FOLDERS[note.answer])
        name = _name(note.name)
        found = [each for each in self._read(listed, note.answer) if each.name == name]
        values = [each.value for each in await self._values(note.answer, found)]
        return values[-1] if values else None

    async def read(self, topics: Sequence[Topic]) -> list[Note]:
        notes: list[Note] = []
        for topic in topics:
            listed = await self._core.listing(*FOLDERS[topic])
            notes += await self._values(topic, self._read(listed, topic))
            await self._delete_expired(listed, topic)
        return notes

    async def _values(self, topic: str, found: Sequence[NoteObject]) -> list[Note]:
        newest = {each.name: each.path for each in sorted(found, key=lambda each: each.written)}
        notes = []
        for raw in await self._core.all(self._core.get(path) for path in newest.values()):
            if isinstance(raw, BaseException):
                raise raw
            if raw is not None:  # else it was deleted meanwhile
                name, value = json.loads(raw)
                notes.append(Note(topic, name, value))
        return notes

    def _read(self, items: Iterable[ListedObject], topic: str) -> list[NoteObject]:
        """The notes of a topic that have not expired."""
        now = digits(round(self._core.time.now() * 1e6), 11)
        return [note for note in self._all(items, topic) if note.until > now]

    def _all(self, items: Iterable[ListedObject], topic: str) -> Iterable[NoteObject]:
        folder = self._core.path(*FOLDERS[topic]) + "/"
        for item in items:
            name, _, stamp = item.name.removeprefix(folder).partition("/")
            parts = stamp.split("-")
            if item.name.startswith(folder) and len(parts) == 3:
                yield NoteObject(item.name, name, parts[0], parts[1])

    async def _delete_expired(self, items: Iterable[ListedObject], topic: str) -> None:
        now = digits(round(self._core.time.now() * 1e6), 11)
        if expired := [note.path for note in self._all(items, topic) if note.until <= now]:
            await self._core.delete(expired)


def _names(kind: str) -> set[str]:
    """The names of the pauses that apply to a kind."""
    return {_name(kind), _name(plain_kind(kind))}


def _name(name: str) -> str:
    """The folder for a name: the tag of a kind, so that paused puts are found, and the name."""
    return "whole" if name == WHOLE else f"{tag_of(name)}.{safe_name(name)}"
