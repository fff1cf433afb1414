"""Claims over HTTP, bound to the token of the client that got them.

The ids and tokens of a store's claims are small numbers, which anybody can guess. So each claim
that leaves has a seal in its receipt: a keyed hash of the claim and of who claimed. A claim that
comes back from somebody else, or with other values, does not fit its seal.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from pollwise.errors import ConfigError
from pollwise.runtime.jobs import Claim

#: How many characters a seal has: 18 bytes in base64.
SEAL_LENGTH = 24


class ClaimSeals:
    """Seals claims, and opens those that come back.

    read_key: returns the key. All controllers on one state have the same, also after a restart.
    """

    def __init__(self, read_key: Callable[[], Awaitable[bytes]]) -> None:
        self._read_key = read_key
        self._key = b""

    async def ready(self) -> None:
        """Read the key, once; to be called before the others."""
        if not self._key:
            self._key = await self._read_key()

    def seal(self, claim: Claim, who: str) -> Claim:
        """A claim as `who` receives it."""
        return replace(claim, receipt=self._seal(claim, who) + claim.receipt)

    def open(self, claim: Claim, who: str) -> Claim | None:
        """A claim that `who` sent back, as the store knows it; None if it is not theirs."""
        if not claim.receipt:
            raise ConfigError(
                f"the claim of job {claim.job.id[:80]!r} has no receipt; send back all fields that "
                "the claim had: id, kind, key, attempt, token and receipt"
            )
        seal, receipt = claim.receipt[:SEAL_LENGTH], claim.receipt[SEAL_LENGTH:]
        opened = replace(claim, receipt=receipt)
        fits = hmac.compare_digest(seal.encode(), self._seal(opened, who).encode())
        return opened if fits else None

    def open_all(self, claims: Sequence[Claim], who: str) -> tuple[list[Claim | None], list[str]]:
        """Open several claims; also return the ids of those that are not theirs."""
        opened = [self.open(each, who) for each in claims]
        pairs = zip(claims, opened, strict=True)
        return opened, [claim.job.id for claim, fits in pairs if fits is None]

    def _seal(self, claim: Claim, who: str) -> str:
        job = claim.job
        said = [who, job.queue, job.id, job.kind, job.key, job.attempt]
        said += [claim.token, claim.receipt]
        digest = blake2b(json.dumps(said).encode(), key=self._key, digest_size=18).digest()
        return urlsafe_b64encode(digest).decode()
