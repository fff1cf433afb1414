"""Signs webhooks, and checks the signature at the receiver: HMAC-SHA256 over time, key and body.

    Pollwise-Signature: t=1767225600,v2=5257a869e7…

`t` is when it was sent, in seconds since 1970. `v2` is the hexadecimal HMAC, with the shared
secret, of `v2.`, those digits, a full stop, the number of bytes of the header `Idempotency-Key`, a
full stop, the header, a full stop and the body. The time is signed, so that a recorded request
cannot be replayed much later, and the header, so that it cannot be replayed at once as another
event. With several secrets, during a rotation, there is a `v2` for each, and one match is enough.

`v1` is for requests without that header: the HMAC of the digits, a full stop and the body.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, SignatureError

SIGNATURE = "Pollwise-Signature"
IDEMPOTENCY_KEY = "Idempotency-Key"
#: A shorter secret can be guessed.
SECRET_BYTES_MIN = 16
#: The maximum length of the header, and the maximum number of signatures in it.
_HEADER_MAX = 4096
_SIGNATURES_MAX = 16

Secret = str | bytes


class HeaderItems(Protocol):
    """The headers of a request, in the class of any framework."""

    def items(self) -> Iterable[tuple[str, str]]: ...


def sign(
    secret: Secret | Sequence[Secret],
    body: bytes,
    at: float | None = None,
    *,
    idempotency_key: str | None = None,
) -> str:
    """The value of the header `Pollwise-Signature` for a body sent now, or at the time `at`.

    idempotency_key: the value of the header `Idempotency-Key`, which is signed too.
    """
    moment = str(int(time.time() if at is None else at))
    version = "v1" if idempotency_key is None else "v2"
    signatures = [_hmac(key, moment, body, idempotency_key) for key in secrets_of(secret)]
    return ",".join([f"t={moment}", *(f"{version}={signature}" for signature in signatures)])


def verify(
    secret: Secret | Sequence[Secret],
    headers: HeaderItems | Iterable[tuple[str, str]],
    body: bytes,
    tolerance: Duration = "5m",
    *,
    now: float | None = None,
) -> None:
    """Check that a webhook was recently sent by someone who has the secret.

    secret: one or several, any of which may match: during a rotation, the old and the new one.
    headers: all headers of the request, as an object of your framework or as pairs.
    body: the bytes of the request as received, not parsed and encoded again.
    tolerance: the maximum difference between the sender's clock and this one, plus the transfer.
    now: seconds since 1970, for tests.

    Raises `SignatureError` if the check fails; answer with 401 then. The comparison takes the same
    time for all signatures.
    """
    keys = secrets_of(secret)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise ConfigError("body must be the bytes of the request as received")
    moment, given, idempotency_key = _read(headers)
    # All are computed and compared, so that the time reveals nothing.
    expected = [_hmac(key, moment, bytes(body), idempotency_key) for key in keys]
    matches = [hmac.compare_digest(a, b) for a in expected for b in given]
    if not any(matches):
        raise SignatureError(
            "the signature does not match: the secret is different, or the body or the header "
            f"{IDEMPOTENCY_KEY} was changed. "
            "Verify the bytes as received, before anything parses them"
        )
    limit = seconds(tolerance, "tolerance", positive=True)
    off = (time.time() if now is None else now) - int(moment)
    if abs(off) > limit:
        when = "ago" if off > 0 else "ahead"
        raise SignatureError(
            f"the signature was made {abs(off):.0f} s {when}, but the tolerance is {limit:g} s: an "
            "old request, or a wrong clock"
        )


def secrets_of(secret: Secret | Sequence[Secret]) -> list[bytes]:
    """Check one secret or several; errors do not show them."""
    several = [secret] if isinstance(secret, (str, bytes)) else list(secret)
    keys = [text.encode() if isinstance(text, str) else text for text in several]
    if not keys or not all(isinstance(key, bytes) for key in keys):
        raise ConfigError("the secret must be a string or bytes, or a list of them")
    if any(len(key) < SECRET_BYTES_MIN for key in keys):
        raise ConfigError(
            f"a secret has less than {SECRET_BYTES_MIN} bytes and can be guessed; make one with "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return keys


def _read(
    headers: HeaderItems | Iterable[tuple[str, str]],
) -> tuple[str, list[str], str | None]:
    """The signed time, the signatures, and the header that they cover; None for the body alone."""
    # Frameworks have their own classes for headers, and few of them are mappings.
    pairs = list(headers.items() if hasattr(headers, "items") else headers)
    values = [value for name, value in pairs if name.lower() == SIGNATURE.lower()]
    if not values:
        raise SignatureError(f"the request has no header {SIGNATURE}")
    header = values[0]
    if len(values) > 1 or not isinstance(header, str) or len(header) > _HEADER_MAX:
        raise SignatureError(
            f"the header {SIGNATURE} must appear once, with at most {_HEADER_MAX} characters"
        )
    parts = [part.strip().partition("=")[::2] for part in header.split(",")]
    moments = [value for name, value in parts if name == "t"]
    marked = [value for name, value in pairs if name.lower() == IDEMPOTENCY_KEY.lower()]
    version = "v2" if any(name == "v2" for name, _ in parts) else "v1"
    given = [value for name, value in parts if name == version and value.isascii()]
    if len(marked) > 1:
        raise SignatureError(f"the header {IDEMPOTENCY_KEY} must appear once")
    if version == "v1" and marked:
        raise SignatureError(
            f"the header {IDEMPOTENCY_KEY} is not signed: the request has no v2. Its sender must "
            "sign it, or leave the header out"
        )
    if len(moments) != 1 or not _is_moment(moments[0]) or not 0 < len(given) <= _SIGNATURES_MAX:
        raise SignatureError(f"the header {SIGNATURE} must look like t=1767225600,v2=5257a869…")
    return moments[0], given, "".join(marked) if version == "v2" else None


def _is_moment(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _hmac(key: bytes, moment: str, body: bytes, idempotency_key: str | None) -> str:
    before = f"{moment}.".encode()
    if idempotency_key is not None:
        # With its length, so that nothing can be moved between the header and the body.
        header = idempotency_key.encode("utf-8", "surrogateescape")
        before = f"v2.{moment}.{len(header)}.".encode() + header + b"."
    return hmac.new(key, before + body, "sha256").hexdigest()
