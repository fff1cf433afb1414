"""Hidden: what a file of targets took from the environment is shown nowhere, wherever it stands.

A key may be in the path of a URL, in a header or in a query. Whoever took it out of the file did
not want it to be read, so it is hidden in all that is told of the targets of this process.
"""

from __future__ import annotations

from pollwise.runtime.redact import HIDDEN, without_query_values

#: Shorter ones are no secrets, and may be in any word.
SHORTEST = 5

_values: set[str] = set()


def hide(value: str) -> None:
    """Show this value no more."""
    if len(value) >= SHORTEST:
        _values.add(value)


def without_hidden(text: str) -> str:
    """A text as it may be shown."""
    for value in sorted(_values, key=len, reverse=True) if _values else ():
        text = text.replace(value, HIDDEN)
    return text


def shown_url(url: str) -> str:
    """A URL as it may be shown: no password, no value of its query, nothing hidden."""
    return without_query_values(without_hidden(url))
