"""The fields of an envelope, and which payloads are the same. Needs no codec."""

from __future__ import annotations

import hashlib
import json
from typing import Any

#: The names of the codecs, the encoded bytes in base64, and fingerprints.
CODEC_NAMES, DATA, SAME = "~codec", "data", "same"


def is_envelope(value: Any) -> bool:
    """True if a decoded payload or result is an envelope."""
    return type(value) is dict and CODEC_NAMES in value and isinstance(value[CODEC_NAMES], str)


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values; text, because 1 == True == 1.0 in Python."""
    return json.dumps(value, sort_keys=True)


def same_value(one: Any, other: Any) -> bool:
    """True if two payloads are the same JSON, or envelopes with the same fingerprint."""
    if not is_envelope(one) and not is_envelope(other):
        return canonical(one) == canonical(other)
    return bool(fingerprints_of(one) & fingerprints_of(other))


def fingerprints_of(value: Any) -> set[tuple[str, str]]:
    """The fingerprints of a payload. A plain payload has one, as from a codec without a key."""
    if not is_envelope(value):
        return {("", hashlib.sha256(canonical(value).encode()).hexdigest()[:40])}
    given = value.get(SAME)
    if not isinstance(given, dict):
        return {("=", canonical(value))}
    return {(str(key), str(each)) for key, each in given.items()}
