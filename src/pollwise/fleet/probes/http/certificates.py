"""How long a server's certificate is valid.

The standard library gives the dates of verified certificates only. Self-signed ones, as on many
appliances, expire too, so `cryptography` reads them from the certificate itself.
"""

from __future__ import annotations

from typing import Any

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra

try:
    from cryptography import x509
except ImportError as error:
    raise MissingExtra("polling over HTTP or TLS", "fleet") from error

#: What reading a certificate raises if it contains anything odd.
UNREADABLE = (ValueError, TypeError, OverflowError, x509.InvalidVersion)


def note_certificate(facts: dict[str, Plain], secured: Any, epoch: float, warning: float) -> None:
    """Add the remaining validity of a connection's certificate to `facts`, and a warning if it is
    shorter than `warning` seconds."""
    raw = secured.getpeercert(binary_form=True)
    days = days_left(raw, epoch) if raw else None
    if days is not None:
        facts["days_left"] = days
        if days * 86400 < warning:
            facts["warning"] = f"the certificate expires in {days:g} days"


def days_left(raw: bytes, epoch: float) -> float | None:
    """Days from `epoch` until a certificate (DER) expires, rounded to 0.1; None if unreadable."""
    try:
        expires = x509.load_der_x509_certificate(raw).not_valid_after_utc.timestamp()
    except UNREADABLE:
        return None
    return round((expires - epoch) / 86400, 1)
