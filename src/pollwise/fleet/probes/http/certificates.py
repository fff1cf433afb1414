"""Until when a certificate is valid, read from the certificate itself.

Python tells it only of certificates that it verified. Those that are watched without (self-signed
ones, as on many appliances) end all the same, so the one date is read here: the second of the two
in `validity`, the fifth element of what is signed (RFC 5280, 4.1), the fourth without a version.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pollwise.core.outcome import Plain

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


def note_certificate(facts: dict[str, Plain], secured: Any, epoch: float, warning: float) -> None:
    """Write down how long the certificate of a connection is valid, and warn in time."""
    raw = secured.getpeercert(binary_form=True)
    days = days_left(raw, epoch) if raw else None
    if days is not None:
        facts["tls_expires_in_days"] = days
        if days * 86400 < warning:
            facts["warning"] = f"the certificate ends in {days:g} days"


def days_left(raw: bytes, epoch: float) -> float | None:
    """Days from `epoch` until a certificate (DER) ends, to a tenth; None if it cannot be read."""
    try:
        ends = _not_after(raw)
    except (ValueError, IndexError):
        return None
    return round((ends - epoch) / 86400, 1)


def _not_after(raw: bytes) -> float:
    signed, _ = _element(*_element(raw, 0, _SEQUENCE)[0], _SEQUENCE)
    body, at = signed
    if body[at] == _VERSION:
        _, (body, at) = _element(body, at)
    for _ in range(3):  # the serial number, the algorithm, the issuer
        _, (body, at) = _element(body, at)
    validity, _ = _element(body, at, _SEQUENCE)
    _, (body, at) = _element(*validity)
    tag = body[at]
    (body, at), (_, end) = _element(body, at)
    text = body[at:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of a year: from 1950 to 2049
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


_Place = tuple[bytes, int]


def _element(raw: bytes, at: int, tag: int | None = None) -> tuple[_Place, _Place]:
    """Where the content of the element at `at` begins, and where it ends."""
    if tag is not None and raw[at] != tag:
        raise ValueError("not a certificate")
    length = raw[at + 1]
    begin = at + 2
    if length & 0x80:
        digits = length & 0x7F
        if not 0 < digits <= 4:
            raise ValueError("not a certificate")
        length = int.from_bytes(raw[begin : begin + digits], "big")
        begin += digits
    if begin + length > len(raw):
        raise ValueError("cut off")
    return (raw, begin), (raw, begin + length)
