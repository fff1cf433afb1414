"""What people read: one line about a notice, and templates with fields of it.

A template is a text with `{target}`, `{state}`, `{lasted}` and so on, from a fixed list of fields.
`{labels.team}` and `{facts.status}` look up a name; `{{` and `}}` stand for braces. Nothing is
evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pollwise.durations import short, shown
from pollwise.errors import ConfigError, did_you_mean

#: The maximum length of one field in a text, and of a whole text.
FIELD_MAX = 500
TEXT_MAX = 4000

Payload = Mapping[str, Any]

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
#: Names by which chat services notify everybody.
_EVERYBODY = re.compile(r"@(?=everyone\b|here\b|channel\b|all\b)", re.IGNORECASE)
#: What stands before the name of a label or a fact.
_TABLES = ("facts", "labels")


def state_of(payload: Payload) -> str:
    """The state of the alert in words: "down", "still down", "up again"."""
    event, down = payload.get("event"), payload.get("when") == "down"
    if event == "opened":
        return "down" if down else "alert"
    if event == "repeated":
        return "still down" if down else "still open"
    if event == "closed":
        return "up again" if down else "over"
    return str(event or "")


def title_of(payload: Payload) -> str:
    """A title: what happened, and where."""
    name, state = _of("target", payload), state_of(payload)
    when = "" if payload.get("when") in ("down", "changed") else f": {_of('when', payload)}"
    return f"{name} is {state}{when}" if not when else f"{name}: {state}{when}"


def line_of(payload: Payload) -> str:
    """One line: what, where, since when, and how long it lasted."""
    event, group = payload.get("event"), _of("group", payload)
    parts = [title_of(payload) + (f" [{group}]" if group else "")]
    if event == "changed":
        before, after = _of("before", payload), _of("after", payload)
        parts = [f"{_of('target', payload)} changed" + (f" [{group}]" if group else "")]
        if diff := _of("diff", payload):
            parts.append(next((each for each in diff.split("\n") if each[:1] in "+-"), ""))
        elif before or after:
            parts.append(f"{before or 'nothing'} → {after or 'nothing'}")
    elif event == "closed":
        parts.append(f"lasted {_of('lasted', payload)}")
    else:
        parts.append(f"since {_of('since', payload)}")
        if event == "repeated" and payload.get("lasted") is not None:
            parts.append(f"for {_of('lasted', payload)}")
        if summary := _of("summary", payload):
            parts.append(summary)
    return _cut(" · ".join(parts))


def body_of(payload: Payload) -> str:
    """The default text of a message: the line, then one fact per line, and what changed."""
    lines = [payload.get("text") or line_of(payload)]
    rows = (("condition", "when"), ("severity", "severity"), ("labels", "labels"), ("", "link"))
    for name, field in rows:
        if found := _of(field, payload):
            lines.append(f"{name}: {found}" if name else found)
    if diff := _of("diff", payload):
        lines.append(diff)
    return _cut("\n".join(map(str, lines)))


def moment_text(at: Any) -> str:
    """A time in seconds since 1970 as people read it; "" for None and what is not a time."""
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S UTC}"
    except (OverflowError, OSError, TypeError, ValueError):
        return ""


class Template:
    """A text with fields of a notice. Unknown fields are refused with the nearest known one.

    >>> Template("{target} is {state}")({"target": "shop", "event": "opened", "when": "down"})
    'shop is down'
    """

    __slots__ = ("_parts", "text")

    def __init__(self, text: str, name: str = "template") -> None:
        if not isinstance(text, str):
            raise ConfigError(f"{name} = {shown(text)} must be text")
        self.text: str = text
        self._parts = tuple(_parts(text, name))

    def __call__(self, payload: Payload) -> str:
        return _cut(
            "".join(
                each if isinstance(each, str) else _of(each[0], payload) for each in self._parts
            )
        )

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


def filled(template: Any, payload: Payload) -> Any:
    """A table, list or text with templates in it, with their fields filled in."""
    if isinstance(template, Template):
        return template(payload)
    if isinstance(template, Mapping):
        return {name: filled(each, payload) for name, each in template.items()}
    if isinstance(template, (list, tuple)):
        return [filled(each, payload) for each in template]
    return template


def templates_in(value: Any, name: str) -> Any:
    """A table or list in which each text is a template."""
    if isinstance(value, str):
        return Template(value, name)
    if isinstance(value, Mapping):
        return {key: templates_in(each, f"{name}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [templates_in(each, name) for each in value]
    return value


def _parts(text: str, name: str) -> Iterator[str | tuple[str]]:
    at = 0
    for found in _FIELD.finditer(text):
        yield text[at : found.start()]
        at = found.end()
        if found[0] in ("{{", "}}"):
            yield found[0][0]
        elif found[1] is None:
            raise ConfigError(
                f"{name} = {shown(text)} has a single {found[0]}; write {found[0] * 2} for a brace"
            )
        else:
            yield (_checked(found[1].strip(), text, name),)
    yield text[at:]


def _checked(field: str, text: str, name: str) -> str:
    table, dot, key = field.partition(".")
    if field in FIELDS or (dot and table in _TABLES and key):
        return field
    nearest = did_you_mean(field, FIELDS, f"the fields are {', '.join(FIELDS)}")
    raise ConfigError(f"{name} = {shown(text)}: there is no field {{{field}}}; {nearest}")


def _of(field: str, payload: Payload) -> str:
    """The text of a field; "" if the notice does not have it."""
    reader = FIELDS.get(field)
    if reader is not None:
        found = reader(payload)
        if field == "diff":  # the only field of several lines
            return "\n".join(map(_plain, found[:TEXT_MAX].split("\n")))
        return _plain(found)
    table, _, key = field.partition(".")
    inside = payload.get(table)
    return _plain(_value(inside.get(key)) if isinstance(inside, Mapping) else "")


def _field(name: str) -> Callable[[Payload], str]:
    return lambda payload: _value(payload.get(name))


def _moment(name: str) -> Callable[[Payload], str]:
    return lambda payload: moment_text(payload.get(name))


def _lasted(payload: Payload) -> str:
    lasted = payload.get("lasted")
    return short(float(round(lasted))) if isinstance(lasted, (int, float)) else ""


def _reading(name: str) -> Callable[[Payload], str]:
    """A reading is its summary; one without is its value."""

    def read(payload: Payload) -> str:
        reading = payload.get(name)
        if isinstance(reading, Mapping):
            return _value(reading.get("summary") or reading.get("value"))
        return _value(reading)

    return read


def _table(name: str) -> Callable[[Payload], str]:
    def read(payload: Payload) -> str:
        table = payload.get(name)
        if not isinstance(table, Mapping):
            return ""
        return ", ".join(f"{key}={_value(each)}" for key, each in table.items())

    return read


def _value(value: Any) -> str:
    return "" if value is None else str(value)


#: The fields of templates.
FIELDS: Mapping[str, Callable[[Payload], str]] = {
    "after": _reading("after"),
    "alert": _field("alert"),
    "at": _moment("at"),
    "before": _reading("before"),
    "diff": _field("diff"),
    "event": _field("event"),
    "facts": _table("facts"),
    "fleet": _field("fleet"),
    "group": _field("group"),
    "labels": _table("labels"),
    "lasted": _lasted,
    "link": _field("link"),
    "severity": _field("severity"),
    "since": _moment("since"),
    "state": state_of,
    "summary": _field("summary"),
    "target": _field("target"),
    "text": lambda payload: _value(payload.get("text")) or line_of(payload),
    "title": title_of,
    "type": _field("type"),
    "when": _field("when"),
}


def _plain(text: str) -> str:
    """A text of unknown origin, without what chat services act on: control characters, links and
    mentions in angle brackets, and names that notify everybody."""
    kept = "".join(each if each.isprintable() else " " for each in text[: FIELD_MAX + 1])
    kept = kept.replace("<!", "<\u200b!").replace("<@", "<\u200b@").replace("<#", "<\u200b#")
    kept = _EVERYBODY.sub("@\u200b", kept)
    return kept if len(kept) <= FIELD_MAX else f"{kept[: FIELD_MAX - 2]} …"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 2]} …"
