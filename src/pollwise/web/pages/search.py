"""What the searches of pages share: how they read an address, and how they link to another page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class PageSearch:
    """A search as it stands in the address: each field is a parameter, and "" means any.

    after: where the page begins.
    """

    after: str = ""

    @classmethod
    def texts_of(cls, query: Mapping[str, str], most: int | None = None) -> dict[str, str]:
        """The parameters of an address by field, cut to `most` characters."""
        return {each.name: query.get(each.name, "").strip()[:most] for each in fields(cls)}

    def address(self, **changed: str) -> str:
        """The query of another page like this one.

        It begins at the first row, unless `after` is given.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"after": "", **changed}
        return "?" + urlencode({name: value for name, value in values.items() if value})
