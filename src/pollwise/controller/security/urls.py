"""Signed URLs of logs, for browsers: an EventSource cannot send a header with a token.

A URL is valid for one job and a short time. It names the token that it was made with, whose rights
are checked again at each use: it ends when that token is revoked or expires.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable

from pollwise.controller.security.auth import Auth, Caller, InvalidToken
from pollwise.runtime.clock import Clock

#: How long a URL is valid, in seconds: by default, and at most.
VALID_FOR = 300.0
VALID_FOR_MAX = 3600.0

_SIGNATURE = re.compile(r"(\d{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})\Z", re.ASCII)


class SignedUrls:
    """Signs URLs, and finds out who made one.

    read_key: returns the key. All controllers on one state have the same.
    """

    def __init__(self, read_key: Callable[[], Awaitable[bytes]], auth: Auth, clock: Clock) -> None:
        self._read_key = read_key
        self._auth = auth
        self._clock = clock
        self._key = b""

    async def sign(self, who: Caller, job_id: str, valid_for: float) -> tuple[str, float]:
        """A signature for the log of a job, and until when it is valid."""
        until = int(self._clock.epoch() + valid_for)
        return f"{until}.{who.id}.{await self._mac(job_id, until, who.id)}", float(until)

    async def caller(self, signature: str, job_id: str) -> Caller:
        """Whose token a signature was made with; `HttpError` (401) if it is not valid now."""
        found = _SIGNATURE.match(signature)
        if found is None or not hmac.compare_digest(
            found[3], await self._mac(job_id, int(found[1]), found[2])
        ):
            raise InvalidToken("the signature is not valid for this job", _AGAIN)
        if int(found[1]) <= self._clock.epoch():
            raise InvalidToken("the signed URL has expired", _AGAIN)
        return await self._auth.caller_of(found[2])

    async def _mac(self, job_id: str, until: int, token_id: str) -> str:
        if not self._key:
            self._key = await self._read_key()
        said = f"{job_id}\n{until}\n{token_id}".encode()
        return hmac.digest(self._key, said, "sha256").hex()


_AGAIN = "Ask for a new one: POST /api/jobs/{id}/logs/url."
