"""Hides secrets in what jobs carry: payloads, headers, results and progress.

A rule is a pattern for the name of a value at any depth: `password`, `*token`. Rules ignore case
and the signs between words, so `api_key` hides `apiKey` too. A rule with dots, such as
`card.number`, has to match the end of the path to the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import cache
from typing import Any
from unicodedata import normalize

from pollwise.errors import ConfigError
from pollwise.runtime.redact import HIDDEN, is_secret
from pollwise.settings.sections import REDACTED

#: The most rules, and the longest rule in characters.
RULES_MAX = 200
RULE_LENGTH_MAX = 100
#: Deeper values are hidden as a whole.
LEVELS_MAX = 100
#: A text that is itself JSON is searched up to this many characters; a longer one is not shown.
JSON_TEXT_MAX = 256 * 1024

_QUOTED = re.compile(r"""["'`]""")
_SEPARATORS = re.compile(r"[\s_\-]+")
_SIGNS = re.compile(r"[\W_]+")
#: A name in a text that a value follows, as in JSON, in a `repr` and in `password=…`; the value.
_NAMED = re.compile(
    r"""(?P<quote>\\{0,4}["'])(?P<quoted>[^"'\\\n]{1,100})(?P=quote)\s{0,9}[:=]>?\s{0,9}"""
    r"|(?<![\w.$-])(?P<bare>[A-Za-z_][\w.-]{0,99})=(?![=>\s])"
)
_VALUE = re.compile(
    r"""[bBrRuUfF]{0,2}(?P<quote>\\{0,4}["']).*?(?:(?<!\\)(?P=quote)|\Z)|\[[^\]]*\]?|\{[^}]*\}?"""
    r"""|[^\s,;&}\])"']+""",
    re.DOTALL,
)
_NOTHING = frozenset({"None", "null", "true", "false", "True", "False", '""', "''", HIDDEN})
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>]+", re.IGNORECASE)
#: Secrets that can be recognised without a name.
_KNOWN = re.compile(
    r"(?P<kept>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<![\w-])pollwise_[A-Za-z0-9_-]{20,}"
    r"|(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_PIECES = re.compile(r"([&;#])")
_URL_INSIDE = re.compile(r"://|%3a%2f%2f", re.IGNORECASE)


class Redacted(str):
    """Stands for a value that a rule hides. It says so in its text, and does not contain the value.

    rule: the rule that hid it.
    """

    __slots__ = ("rule",)
    rule: str

    def __new__(cls, rule: str, why: str = "") -> Redacted:
        made = super().__new__(cls, why or "hidden")
        made.rule = rule
        return made


class RedactionRules:
    """Patterns for the names of values to hide; checked and compiled once."""

    def __init__(self, rules: Iterable[str] = REDACTED) -> None:
        if isinstance(rules, (str, bytes, Mapping)):
            raise ConfigError(f"redact = {str(rules)[:80]!r} must be a list of rules: ['password']")
        self.rules: tuple[str, ...] = tuple(rules)
        if len(self.rules) > RULES_MAX:
            raise ConfigError(f"redact has {len(self.rules)} rules; the most are {RULES_MAX}")
        self._names: list[tuple[str, re.Pattern[str]]] = []
        self._paths: list[tuple[str, tuple[re.Pattern[str], ...]]] = []
        for rule in self.rules:
            parts = [_plain(part) for part in _checked(rule).split(".")]
            patterns = tuple(re.compile(translate(part)) for part in parts)
            # `*.token` is any value called token: a name alone says the same.
            named = parts[-1] if set(parts[:-1]) <= {"*"} else None
            if named is not None:
                self._names.append((rule, patterns[-1]))
            else:
                self._paths.append((rule, patterns))
        self._known: dict[str, str | None] = {}

    def hiding(self, path: tuple[str, ...]) -> str | None:
        """The rule that hides the value at this path of names; None if none does."""
        if not path:
            return None
        name = path[-1]
        if name not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()
            ways = _name_forms(name)
            self._known[name] = next(
                (rule for rule, pattern in self._names if any(map(pattern.match, ways))), None
            )
        found = self._known[name]
        if found is not None or not self._paths:
            return found
        plain_path = [_plain(part) for each in path for part in each.split(".")]
        for rule, patterns in self._paths:
            tail = plain_path[-len(patterns) :]
            if len(tail) == len(patterns) and all(
                pattern.match(part) for pattern, part in zip(patterns, tail, strict=True)
            ):
                return rule
        return None


def redacted(value: Any, rules: RedactionRules | None = None, name: str = "") -> Any:
    """A copy of a JSON value in which `Redacted` stands for each secret.

    rules: by default `REDACTED`. name: what the value itself is called, for rules with dots
        such as `headers.x_key`.

    >>> redacted({"user": "ada", "password": "hunter2", "db": "postgresql://app:s3@db/x"})
    {'user': 'ada', 'password': 'hidden', 'db': 'postgresql://app:***@db/x'}
    """
    return _redacted(value, rules or _default_rules(), (name,) if name else (), 0)


@cache
def _default_rules() -> RedactionRules:
    return RedactionRules()


def redacted_text(text: str, rules: RedactionRules | None = None) -> str:
    """Text, such as an error or a log, without passwords in URLs, known kinds of tokens, and values
    that follow the name of a rule.

    >>> redacted_text("401 from https://u:hunter2@api.example/ (Authorization: Bearer abcdefgh1)")
    '401 from https://u:***@api.example/ (Authorization: Bearer ***)'
    >>> redacted_text("no login: {'user': 'ada', 'password': 'hunter2'}")
    "no login: {'user': 'ada', 'password': ***}"
    """
    if "://" in text:
        text = _URL.sub(lambda url: _url(url[0]), text)
    text = _KNOWN.sub(lambda found: (found["kept"] or "") + HIDDEN, text)
    return _without_named(text, rules or _default_rules())


def _without_named(text: str, rules: RedactionRules) -> str:
    parts, done, at = [], 0, 0
    while head := _NAMED.search(text, at):
        at = head.end()
        name = head["quoted"] or head["bare"]
        value = _VALUE.match(text, at) if rules.hiding((name,)) is not None else None
        # A line of code such as `connect(password=password)` reveals nothing.
        if value is not None and value[0] not in _NOTHING and value[0] != name:
            parts += [text[done:at], HIDDEN]
            done = at = value.end()
    return "".join([*parts, text[done:]]) if parts else text


def _url(url: str) -> str:
    """A URL without its password. Unlike `without_secrets`, it takes linear time: URLs in payloads
    are as long as their authors like."""
    before, asked, query = url.partition("?")
    scheme, _, rest = before.partition("://")
    if "@" in query and "@" not in rest and ":" in rest.partition("/")[0]:
        # A password may contain a '?'. This hides too much of some odd URLs, never too little.
        inside, _, host = query.rpartition("@")
        rest, (host, asked, query) = f"{rest}?{inside}@", host.partition("?")
        rest += host
    user, at, host = rest.rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        bearer = scheme.lower() in ("http", "https") and not colon
        before = f"{scheme}://{HIDDEN if bearer else name + colon + HIDDEN * bool(colon)}@{host}"
    return before + asked + "".join(map(_option, _PIECES.split(query)))


def _option(piece: str) -> str:
    name, equals, value = piece.partition("=")
    inside = _URL_INSIDE.search(value)
    has_user = inside is not None and ("@" in value or "%40" in value)
    if value and (is_secret(name) or name.lower() == "sig" or has_user):
        return f"{name}{equals}{HIDDEN}"
    return piece


def _redacted(value: Any, rules: RedactionRules, path: tuple[str, ...], level: int) -> Any:
    rule = rules.hiding(path)
    if rule is not None and not (value is None or value == "" or isinstance(value, bool)):
        return Redacted(rule)
    if level > LEVELS_MAX:
        return Redacted("", f"hidden: nested more than {LEVELS_MAX} levels deep")
    if isinstance(value, str):
        return _text(value, rules, path, level)
    if isinstance(value, Mapping):
        # {"name": "password", "value": "…"}, as in lists of variables, headers and tags
        called = [
            each
            for key, each in value.items()
            if isinstance(each, str) and str(key).lower() in ("name", "key")
        ]
        named = next((each for each in called if rules.hiding((*path, each))), (*called, "")[0])
        return {
            _name(key, rules): _redacted(
                each,
                rules,
                (*path, named if named and str(key).lower() == "value" else str(key)),
                level + 1,
            )
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_entry(each, rules, path, level + 1) for each in value]
    return value


def _name(key: Any, rules: RedactionRules) -> Any:
    return redacted_text(key, rules) if isinstance(key, str) else key


def _entry(value: Any, rules: RedactionRules, path: tuple[str, ...], level: int) -> Any:
    """An entry of a list; it may be a pair such as ["Authorization", "…"], as lists of headers have
    them."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str):
        named = (*path, value[0]) if rules.hiding((*path, value[0])) else path
        first, second = _redacted(value[0], rules, path, level + 1), value[1]
        return [first, _redacted(second, rules, named, level + 1)]
    return _redacted(value, rules, path, level)


def _text(text: str, rules: RedactionRules, path: tuple[str, ...], level: int) -> str:
    """A text; if it is JSON itself, the values in it are hidden too."""
    core = text.strip("\ufeff \t\r\n")
    if core[:1] in ("{", "[", '"') and core[-1:] in ("}", "]", '"') and len(core) > 1:
        if len(text) > JSON_TEXT_MAX:
            return Redacted("", "hidden: JSON in a text that is too long to be searched")
        try:
            inside = json.loads(core, object_pairs_hook=_once_each)
        except (ValueError, RecursionError):
            return redacted_text(text, rules)
        shown = _redacted(inside, rules, path, level + 1)
        return text if shown == inside else json.dumps(shown, ensure_ascii=False)
    return redacted_text(text, rules)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON in a text. A repeated name is refused: one of its values would be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name occurs twice")
    return made


def _name_forms(name: str) -> set[str]:
    """The names to compare: without invisible characters, and the last part of `db.password`."""
    whole = normalize("NFKC", name)
    return {_plain(name), _SIGNS.sub("", whole.lower()), _plain(whole.rpartition(".")[2])}


def _plain(name: str) -> str:
    """A name without case and separators, so that apiKey, API-Key and api_key are one."""
    return _SEPARATORS.sub("", name.lower())


def _checked(rule: object) -> str:
    if not isinstance(rule, str) or not rule.strip() or len(rule) > RULE_LENGTH_MAX:
        raise ConfigError(
            f"redact has {str(rule)[:80]!r}; a rule is a name or a pattern of at most "
            f"{RULE_LENGTH_MAX} characters, such as password, *token or card.number"
        )
    if _QUOTED.search(rule):
        raise ConfigError(
            f"redact has {rule!r}, which would hide nothing; write the name without quotes"
        )
    if any(not part.strip() for part in rule.split(".")):
        raise ConfigError(f"redact has {rule!r}, which has an empty part; write card.number")
    return rule.strip()
