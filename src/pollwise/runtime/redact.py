"""Hides the secrets in URLs and command lines before they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote, unquote_plus, urlsplit

from pollwise.errors import ConfigError

HIDDEN = "***"
#: Options of our own URLs that say which queue or table is meant. They are shown.
OPEN_OPTIONS = frozenset({"fleet", "keep", "outbox", "queue", "schema", "sslmode"})

_TELLING = r"passw|pwd|secret|token|credential|signature|(?:api|access|account)_?key"
_TELLING_KEY = re.compile(_TELLING, re.IGNORECASE)
_OPTION = re.compile(rf"((?:[\w-]*(?:{_TELLING})[\w-]*|\bsig)=)[^&;\s]+", re.IGNORECASE)
# Up to the last @, because an unescaped password may contain one, or a slash. That hides too much
# of some odd URLs, but never too little.
_PASSWORD = re.compile(
    r"\A(\s*(?:[a-z][a-z0-9+.-]*://)?+[^:/@]*):(?!\*+@).*@", re.IGNORECASE | re.DOTALL
)
# A password without a host is where the port should be.
_NO_PORT = re.compile(
    r"\A(\s*[a-z][a-z0-9+.-]*://[^:/@\[]*):(?!\d*(?:[/?#]|\Z)|\*)[^/?#]+", re.IGNORECASE
)
# A controller's URL may carry a token in place of a user.
_BEARER = re.compile(r"\A(\s*https?://)[^:/@]+@(?:[^/?#]*@)?", re.IGNORECASE)
_VALUE = re.compile(r"([?&][\w-]+=)([^&#\s]+)")
_QUERY = re.compile(r"\?([^#\s]+)")
_PIECE = re.compile(r"([^&;=]*=)?[^&;]+")
# Not a URL, but meant as one: it is unknown where the password begins.
_BEFORE_AT = re.compile(r"\A.*@", re.DOTALL)
_IS_URL = re.compile(r"\A\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# An option of a conninfo ("host=db password='a b'"): its value ends at a space, or at its quote.
_PAIR = re.compile(
    rf"((?:[\w-]*(?:{_TELLING})[\w-]*|\bsig)\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|(?:\\.|\S)+)",
    re.IGNORECASE | re.DOTALL,
)
# A word in a sentence that may hold a password: a URL, or what is before an @.
_URL_LIKE = re.compile(r"\S*(?:://|@)\S*")


def without_user(text: str) -> str:
    """Like `without_secrets`; in a text that is not a URL, hide everything before an @.

    >>> without_user("redis//hunter2@cache/0")
    '***@cache/0'
    >>> without_user("host=db user=app password='hunter 2'")
    'host=db user=app password=***'
    """
    if _IS_URL.match(text):
        return without_secrets(text)
    return _BEFORE_AT.sub(f"{HIDDEN}@", _PAIR.sub(rf"\1{HIDDEN}", text))


def without_secrets_of(words: Iterable[str], message: str) -> str:
    """Hide the secrets of command-line words that a message quotes.

    >>> without_secrets_of(["--to=redis://:hunter2@cache"], "no option 'redis://:hunter2@cache'")
    "no option 'redis://:***@cache'"
    """
    # A message may quote a whole option, or only its value.
    parts = {part for word in words for part in (word, word.partition("=")[2])}
    for part in sorted(parts, key=len, reverse=True):
        shown = without_user(part)
        if shown != part:
            message = message.replace(part, shown)
            message = message.replace(repr(part)[1:-1], repr(shown)[1:-1])
    return message


@lru_cache(1000)
def is_secret(name: str) -> bool:
    """True if the name of an option, key or variable says that its value is secret."""
    return bool(_TELLING_KEY.search(name))


def without_secrets(text: str) -> str:
    """Hide passwords in a URL, and options whose names say that they are secret.

    >>> without_secrets("postgresql://app:hunter2@db/jobs?sslpassword=x")
    'postgresql://app:***@db/jobs?sslpassword=***'
    """
    if _is_open(text):
        return text
    text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    text = _NO_PORT.sub(rf"\1:{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}@", text)
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    return _VALUE.sub(_without_secrets_in_value, text)


def _is_open(text: str) -> bool:
    """True if no pattern here finds anything to hide: each needs an @, a =, or a colon that is not
    the one of a scheme."""
    return "@" not in text and "=" not in text and text.count(":") == text.count("://") <= 1


def without_query_values(text: str) -> str:
    """Like `without_secrets`, and hide the values of the query, because any may be a key; except
    those of OPEN_OPTIONS.

    >>> without_query_values("https://app:hunter2@api.example/v1?appid=123&units=metric")
    'https://app:***@api.example/v1?appid=***&units=***'
    >>> without_query_values("redis://:hunter2@cache/0?queue=mail&x=y")
    'redis://:***@cache/0?queue=mail&x=***'
    """
    if "?" not in text and _is_open(text):
        return text
    return _QUERY.sub(lambda query: "?" + _PIECE.sub(_hidden_piece, query[1]), without_user(text))


def _hidden_piece(piece: re.Match[str]) -> str:
    name = piece[1] or ""
    return piece[0] if name[:-1] in OPEN_OPTIONS else f"{name}{HIDDEN}"


def _without_secrets_in_value(option: re.Match[str]) -> str:
    """Hide secrets in an option whose value is itself a URL, escaped or not."""
    name, value = option.groups()
    plain = unquote_plus(value)
    shown = without_secrets(plain)
    return str(option[0]) if shown == plain else f"{name}{quote(shown, safe=':/@*=')}"


def split_url(url: str) -> SplitResult:
    """The parts of a URL. Raises ConfigError, where `urlsplit` raises ValueError with the text."""
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigError(
            f"the host of the URL {without_user(url)!r} cannot be read; write special characters "
            "in a user or a password as %XX"
        ) from None


def has_late_at(parts: SplitResult) -> bool:
    """True if an @ follows the host: then a '?', '/' or '#' before it may be of a password."""
    return "@" not in parts.netloc and "@" in unquote(parts.path + parts.query + parts.fragment)


#: Values of environment variables in a file of targets, wherever they are used: in a path, a
#: header, a query. They are hidden in everything that is printed.
_hidden: set[str] = set()
#: Shorter values are not hidden: they are hardly secrets, and could be part of any word.
_SHORTEST = 5


def hide(value: str) -> None:
    """Never show this value from now on."""
    if len(value) >= _SHORTEST:
        _hidden.add(value)


def without_hidden(text: str) -> str:
    """A text without the values given to `hide`."""
    for value in sorted(_hidden, key=len, reverse=True) if _hidden else ():
        text = text.replace(value, HIDDEN)
    return text


def shown_url(url: str) -> str:
    """A URL as it may be shown: no password, no query values, no hidden values."""
    return without_query_values(without_hidden(url))


def without_secrets_inside(text: str) -> str:
    """A text, such as an error, in which URLs and options may hold secrets.

    >>> without_secrets_inside("cannot reach redis://:hunter2@cache/0 with password='a b'")
    'cannot reach redis://:***@cache/0 with password=***'
    """
    text = _PAIR.sub(rf"\1{HIDDEN}", without_hidden(text))
    return _URL_LIKE.sub(lambda found: shown_url(found[0]), text)
