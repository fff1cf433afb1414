"""RSS and Atom: does a feed have a new entry?

    [[target]]
    name = "news of the project"
    type = "feed"
    url = "https://project.example/news.xml"

The reading is the set of entry ids: another order, or an advertisement in a text, is not a change.
The standard library's parser reads the feed and refuses declared entities, so that a small file
cannot expand to a large one, and no other file is ever loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from xml.parsers import expat

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.extract import digest
from pollwise.fleet.probes.http.fetch import HttpAnswer
from pollwise.fleet.probes.http.probe import URL_FACTS, UrlProbe
from pollwise.fleet.probes.options import failed

DEPTH_MAX = 100
#: Maximum length of a kept text.
TEXT_MAX = 2000
ENTRIES_MAX = 10_000

_ROOTS = frozenset({"rss", "feed", "RDF"})
_ENTRIES = frozenset({"item", "entry"})
_IDS = ("id", "guid", "link", "title")
_DATES = ("updated", "pubDate", "published", "date")
_KEPT = frozenset({*_IDS, *_DATES})


FACTS = {
    "value": "a digest of the ids of all entries",
    "entries": "number of entries",
    "newest": "title of the newest entry",
    **URL_FACTS,
}


@dataclass(slots=True)
class FeedEntry:
    """One entry: its texts by the name of their element."""

    texts: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return next((self.texts[key] for key in _IDS if self.texts.get(key)), "")

    @property
    def moment(self) -> float | None:
        return next(
            (found for key in _DATES if (found := _moment(self.texts.get(key, ""))) is not None),
            None,
        )

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "moment": self.moment, "texts": self.texts}


class FeedProbe(UrlProbe):
    """Reads a feed. Options: url, and the request options of http."""

    __slots__ = ()

    limit = 8 * 1024 * 1024

    async def _read(self, answer: HttpAnswer) -> tuple[str, float | None, dict[str, Plain], str]:
        try:
            entries = parsed(answer.body)
        except ValueError as error:
            raise failed(f"{self._fetch.shown}: {error}") from None
        moments = [each.moment for each in entries]
        newest = max(range(len(entries)), key=lambda n: (moments[n] or 0.0, -n), default=None)
        title = "" if newest is None else entries[newest].texts.get("title", "")
        facts: dict[str, Plain] = {"entries": len(entries), "newest": title[:120]}
        ids = "\n".join(sorted({each.id for each in entries}))
        changed_at = None if newest is None else moments[newest]
        return (
            digest(ids.encode("utf-8", "replace")),
            answer.changed_at if changed_at is None else changed_at,
            facts,
            title[:80] or f"{len(entries)} entries",
        )


def parsed(raw: bytes) -> list[FeedEntry]:
    """The entries of a feed; ValueError if it is not a valid feed."""
    reader = _FeedReader()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # Old feeds name a document type, which is harmless; declared entities are not.
    parser.EntityDeclHandler = reader.refuse
    parser.UnparsedEntityDeclHandler = reader.refuse
    parser.ExternalEntityRefHandler = reader.refuse
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    try:
        parser.Parse(raw, True)
    except expat.ExpatError as error:
        raise ValueError(f"the body is not XML: {expat.ErrorString(error.code)}") from None
    except (LookupError, UnicodeError):  # an unknown encoding
        raise ValueError("the body has an unknown encoding") from None
    return reader.entries


class _FeedReader:
    def __init__(self) -> None:
        self.entries: list[FeedEntry] = []
        self._path: list[str] = []
        self._inside: int | None = None  # depth of the entry that is being read
        self._into: str | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition("}")[2]
        self._path.append(name)
        if len(self._path) == 1 and name not in _ROOTS:
            raise ValueError(f"the body is not a feed but <{name[:40]}>")
        if len(self._path) > DEPTH_MAX:
            raise ValueError(f"the elements of the feed are nested more than {DEPTH_MAX} deep")
        if self._inside is None:
            if name in _ENTRIES:
                if len(self.entries) == ENTRIES_MAX:
                    raise ValueError(f"the feed has more than {ENTRIES_MAX:,} entries")
                self.entries.append(FeedEntry())
                self._inside = len(self._path)
        elif len(self._path) == self._inside + 1 and name in _KEPT:
            texts = self.entries[-1].texts
            if name not in texts:
                self._into = name
                texts[name] = attributes.get("href", "")[:TEXT_MAX] if name == "link" else ""

    def end(self, _name: str) -> None:
        if self._inside == len(self._path):
            self._inside = None
        elif self._inside is not None and len(self._path) == self._inside + 1 and self._into:
            texts = self.entries[-1].texts
            texts[self._into] = " ".join(texts[self._into].split())
            self._into = None
        self._path.pop()

    def text(self, said: str) -> None:
        if self._into is not None:
            texts = self.entries[-1].texts
            if len(texts[self._into]) < TEXT_MAX:
                texts[self._into] += said[:TEXT_MAX]

    def refuse(self, *_: object) -> int:
        raise ValueError("the feed declares entities, which are refused")


def _moment(text: str) -> float | None:
    if not text:
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            return moment.timestamp() if moment.tzinfo else None
        except (TypeError, ValueError, OverflowError, OSError):
            continue
    return None


make = FeedProbe
