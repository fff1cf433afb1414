"""Decodes payloads and headers as stores keep them, for each job separately.

Any program can write to a store, and Python refuses some JSON that others accept, such as whole
numbers of more than 4,300 digits. A job that cannot be decoded has the text as its payload and the
reason as `unreadable`; the caller of `claim` settles it as dead, and the other jobs run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pollwise.runtime.payloads.depth import DEPTH_MAX, deeper_than
from pollwise.runtime.payloads.envelope_fields import same_value

#: The longest payload or result in a list, in characters of JSON; of a longer one, a list has the
#: beginning. Stores read one more than that.
LISTED_MAX = 200


class NotUtf8(str):
    """Text from a store that is not UTF-8; U+FFFD stands for what is not."""

    __slots__ = ()


class CutText(str):
    """The beginning of a payload or a result, as JSON text, in a list: lists read no long ones."""

    __slots__ = ()


class DecodedJob(NamedTuple):
    """The payload and the headers of a job, and why they cannot be decoded."""

    payload: Any
    headers: Mapping[str, str]
    unreadable: str | None = None


def decode_job(payload: str | bytes, headers: str | bytes | None = None) -> DecodedJob:
    """Decode a payload and headers from JSON. Never raises."""
    try:
        decoded = decode(payload)
    except ValueError as error:
        reason = f"its payload cannot be decoded: {error}"
        return DecodedJob(shown(payload), _headers_or_none(headers) or {}, reason)
    if not headers:
        return DecodedJob(decoded, {})
    found = _headers_or_none(headers)
    if found is None:
        return DecodedJob(decoded, {}, f"its headers are not text by name: {shown(headers)[:200]}")
    return DecodedJob(decoded, found)


def decode(text: str | bytes) -> Any:
    """Decode JSON; raise ValueError with the reason for anything that `encode` would not write."""
    if isinstance(text, bytes):
        text = text.decode()
    elif isinstance(text, NotUtf8):
        raise ValueError("it is not UTF-8")  # noqa: TRY004
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"it nests deeper than {DEPTH_MAX} levels") from None
    if text.count("[") + text.count("{") > DEPTH_MAX and deeper_than(value, DEPTH_MAX):
        raise ValueError(f"it nests deeper than {DEPTH_MAX} levels")
    if "\\ud" in text or "\\uD" in text:  # half of a surrogate pair cannot be sent on
        json.dumps(value, ensure_ascii=False).encode()
    return value


def decode_result(text: str | bytes | None) -> Any:
    """A result, or its text if it cannot be decoded; None if there is none."""
    if not text:
        return None
    try:
        return decode(text)
    except ValueError:
        return shown(text)


def is_cut(text: str | bytes | None) -> bool:
    """True if a payload or a result is too long for a list."""
    return text is not None and len(text) > LISTED_MAX and len(shown(text)) > LISTED_MAX


def cut_text(text: str | bytes) -> CutText:
    """What a list has of a payload or a result that is too long for it."""
    return CutText(shown(text[: LISTED_MAX * 4])[:LISTED_MAX])


def cut_value(value: Any, unreadable: str | None = None) -> CutText | None:
    """The beginning of a decoded payload or result that is too long for a list.

    unreadable: why it is not decoded, but its text.
    """
    if type(value) is CutText:
        return value
    if unreadable is not None and isinstance(value, str):
        return cut_text(value) if is_cut(value) else None
    text = ""
    for part in _ENCODER.iterencode(value):  # it encodes no more than is wanted
        text += part
        if len(text) > LISTED_MAX:
            return cut_text(text)
    return None


def decode_document(raw: bytes) -> Any:
    """Decode a JSON document with several jobs in it.

    If that fails because of a payload or a result, it becomes a string with its text. Beside such
    a payload is the reason, as `unreadable`. Raises ValueError if the rest is not JSON.
    """
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return json.loads(_with_text_for_bad_values(raw.decode()))


def shown(text: str | bytes) -> str:
    """Text from a store, with U+FFFD for what is not UTF-8."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def same_payload(one: str, other: str) -> bool:
    """True if two encoded payloads are the same JSON; the order of keys does not matter."""
    try:
        return one == other or same_value(decode(one), decode(other))
    except ValueError:
        return False


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _headers_or_none(text: str | bytes | None) -> dict[str, str] | None:
    try:
        found = decode(text or "{}")
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        return None
    return found


_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_VALUE = re.compile(r'"(payload|result)"\s*:\s*|"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s,\]}]*', re.DOTALL)


def _with_text_for_bad_values(text: str) -> str:
    parts, at = [], 0
    while found := _VALUE.search(text, at):
        parts.append(text[at : found.end()])
        at = found.end()
        if found[1] is None:
            continue
        end = _end_of_value(text, at)
        value, at = text[at:end], end
        try:
            decode(value)
        except ValueError as error:
            parts.append(json.dumps(value))
            if found[1] == "payload":
                reason = f"its payload cannot be decoded: {error}"
                parts.append(f', "unreadable": {json.dumps(reason)}')
        else:
            parts.append(value)
    return "".join([*parts, text[at:]])


def _end_of_value(text: str, start: int) -> int:
    if text[start : start + 1] not in ("[", "{"):
        found = _SCALAR.match(text, start)
        return found.end() if found else start
    depth = 0
    for token in _BRACKET.finditer(text, start):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
            if not depth:
                return token.end()
    return len(text)
