"""How webhooks are signed, and how a receiver checks that: HMAC-SHA256 over time and body.

    Pollwise-Signature: t=1767225600,v1=5257a869e7…

`t` is when it was sent, in seconds since 1970, and `v1` the HMAC, in hexadecimal, of those digits,
a full stop and the body, under the secret that both sides share. The time is signed too, so that a
request somebody recorded cannot be sent again much later. With several secrets, while one takes the
place of another, there is a `v1` for each, and one that fits is enough.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, SignatureError

SIGNATURE = "Pollwise-Signature"
#: A shorter secret can be guessed.
SECRET_BYTES_MIN = 16
#: The longest header that is looked at, and the most signatures in it.
_HEADER_MAX = 4096
_SIGNATURES_MAX = 16

Secret = str | bytes


class HeaderItems(Protocol):
    """The headers of a request, in whatever class a framework has for them."""

    def items(self) -> Iterable[tuple[str, str]]: ...


def sign(secret: Secret | Sequence[Secret], body: bytes, at: float | None = None) -> str:
    """The value of the header `Pollwise-Signature` for a body that is sent now, or at `at`."""
    moment = str(int(time.time() if at is None else at))
    signatures = [_hmac(key, moment, body) for key in secrets_of(secret)]
    return ",".join([f"t={moment}", *(f"v1={signature}" for signature in signatures)])


def verify(
    secret: Secret | Sequence[Secret],
    headers: HeaderItems | Iterable[tuple[str, str]],
    body: bytes,
    tolerance: Duration = "5m",
    *,
    now: float | None = None,
) -> None:
    """Check that a webhook was sent by who has the secret, and not long ago.

    secret: one, or several, any of which may fit: while you change it, the old and the new one.
    headers: all of the request's, as your framework has them, or as pairs.
    body: of the request, byte by byte as it came: not what a JSON library makes of it.
    tolerance: how far the sender's clock may be from this one, and how long a request may travel.
    now: seconds since 1970, for tests.

    Raises `SignatureError` if not; answer with 401 then. How long the comparison takes tells
    nothing about the right signature.
    """
    keys = secrets_of(secret)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise ConfigError("body must be the bytes of the request as they came")
    moment, given = _read(headers)
    # All are computed and compared, whichever fits: nothing is learnt from how long it takes.
    expected = [_hmac(key, moment, bytes(body)) for key in keys]
    fits = [hmac.compare_digest(a, b) for a in expected for b in given]
    if not any(fits):
        raise SignatureError(
            "the signature does not fit: another secret, or the body was changed on its way. Check "
            "the bytes as they came, before anything parses them"
        )
    limit = seconds(tolerance, "tolerance", positive=True)
    off = (time.time() if now is None else now) - int(moment)
    if abs(off) > limit:
        when = "ago" if off > 0 else "ahead"
        raise SignatureError(
            f"the signature was made {abs(off):.0f} s {when}, and {limit:g} s are tolerated: an "
            "old request, or a clock that is wrong"
        )


def secrets_of(secret: Secret | Sequence[Secret]) -> list[bytes]:
    """Check one secret or several; what is wrong is told without them."""
    several = [secret] if isinstance(secret, (str, bytes)) else list(secret)
    keys = [text.encode() if isinstance(text, str) else text for text in several]
    if not keys or not all(isinstance(key, bytes) for key in keys):
        raise ConfigError("the secret must be text or bytes, or several of them")
    if any(len(key) < SECRET_BYTES_MIN for key in keys):
        raise ConfigError(
            f"a secret has less than {SECRET_BYTES_MIN} bytes, and can be guessed; make one with "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return keys


def _read(headers: HeaderItems | Iterable[tuple[str, str]]) -> tuple[str, list[str]]:
    """The time, as it was signed, and the signatures in the header."""
    # Frameworks have classes of their own for headers, and few of them are mappings.
    pairs = headers.items() if hasattr(headers, "items") else headers
    values = [value for name, value in pairs if name.lower() == SIGNATURE.lower()]
    if not values:
        raise SignatureError(f"the request has no header {SIGNATURE}")
    header = values[0]
    if len(values) > 1 or not isinstance(header, str) or len(header) > _HEADER_MAX:
        raise SignatureError(f"the header {SIGNATURE} must be there once, and not be that long")
    parts = [part.strip().partition("=")[::2] for part in header.split(",")]
    moments = [value for name, value in parts if name == "t"]
    given = [value for name, value in parts if name == "v1" and value.isascii()]
    if len(moments) != 1 or not _is_moment(moments[0]) or not 0 < len(given) <= _SIGNATURES_MAX:
        raise SignatureError(f"the header {SIGNATURE} must look like t=1767225600,v1=5257a869…")
    return moments[0], given


def _is_moment(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _hmac(key: bytes, moment: str, body: bytes) -> str:
    return hmac.new(key, moment.encode() + b"." + body, "sha256").hexdigest()
