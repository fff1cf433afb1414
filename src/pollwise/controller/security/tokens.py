"""Tokens: 256 random bits, shown once, stored as their SHA-256.

A token is too long to be found from its hash, so a fast hash is safe, and every request can afford
it.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
from hashlib import sha256
from pathlib import Path

from pollwise.controller.state.base import ControllerState, new_id
from pollwise.controller.state.values import SCOPES, Scope, Token
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, StoreError
from pollwise.platforms.files import open_private
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_name

#: The start of a token, so that scanners recognise one.
PREFIX = "pollwise_"
#: The longest validity of a token, in seconds: ten years.
EXPIRES_MAX = 10 * 365 * 86400.0
#: Longer text is not a token, and is not hashed.
LENGTH_MAX = 200


def new_secret() -> str:
    """A token: 32 random bytes as text."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(secret: str | bytes) -> str:
    """The hash under which a token is stored."""
    return sha256(secret if isinstance(secret, bytes) else secret.encode()).hexdigest()


def checked_scope(scope: object) -> Scope:
    if scope not in SCOPES:
        raise ConfigError(f"scope = {scope!r} is none of {', '.join(SCOPES)}")
    return scope


def checked_expiry(expires_in: Duration | None, name: str = "expires_in_s") -> float | None:
    """How long a token will be valid, in seconds; None for ever."""
    if expires_in is None:
        return None
    length = seconds(expires_in, name, positive=True)
    if not math.isfinite(length) or length > EXPIRES_MAX:
        raise ConfigError(f"{name} = {expires_in!r} is above the limit of ten years")
    return length


class Tokens:
    """The tokens of a controller."""

    def __init__(self, state: ControllerState, clock: Clock | None = None) -> None:
        self._state = state
        self._clock = clock or state.clock

    async def make(
        self,
        scope: str,
        name: str,
        *,
        expires_in: Duration | None = None,
        all_jobs: bool = False,
        by: str = "",
    ) -> tuple[Token, str]:
        """A new token as it is stored, and its secret, which cannot be shown again.

        all_jobs: it may see, cancel and retry the jobs of others too; only for the scope put.
        """
        chosen, length = checked_scope(scope), checked_expiry(expires_in)
        if all_jobs and chosen != "put":
            raise ConfigError(
                f"all_jobs is for the scope put; {chosen} has its own rules. Leave it out"
            )
        secret = new_secret()
        row = Token(
            new_id(self._clock),
            checked_name(name, "name", ConfigError),
            chosen,
            hash_of(secret),
            created_by=by,
            expires_at=self._expiry(length),
            all_jobs=all_jobs,
        )
        return await self._state.add_token(row), secret

    async def rotate(
        self, token_id: str, *, expires_in: Duration | None = None
    ) -> tuple[Token, str] | None:
        """Replace the secret of a token; None if it does not exist or was revoked.

        Without `expires_in`, it is valid from now for as long as it was made for.
        """
        length = checked_expiry(expires_in)
        found = await self._state.token(token_id)
        if found is None or found.revoked_at is not None:
            return None
        if length is None and found.expires_at is not None:
            length = max(found.expires_at - found.created_at, 1.0)
        secret = new_secret()
        expires_at = self._expiry(length)
        row = await self._state.rotate_token(found.id, found.hash, hash_of(secret), expires_at)
        return None if row is None else (row, secret)

    async def revoke(self, token_id: str) -> Token | None:
        return await self._state.revoke_token(token_id)

    async def first_admin(self, path: Path) -> Path | None:
        """If there is no token, write an admin's to a file that only its owner can read; its path.

        An existing file is left alone: it may hold the token of another controller.
        """
        if await self._state.list_tokens(limit=1):
            return None
        secret = new_secret()
        _write_private(path, secret)
        row = Token(new_id(self._clock), "first admin", "admin", hash_of(secret))
        try:
            await self._state.add_token(row)
        except BaseException:
            path.unlink(missing_ok=True)  # noqa: ASYNC240
            raise
        return path

    def _expiry(self, length: float | None) -> float | None:
        return None if length is None else self._clock.epoch() + length


def _write_private(path: Path, secret: str) -> None:
    try:
        descriptor = open_private(path)
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise taken(path) from None
        advice = "choose a place that this user may write to"
        raise StoreError(f"{path} cannot be written: {error.strerror}; {advice}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secret + "\n")


def taken(path: Path) -> StoreError:
    """The error for a token file that exists already."""
    return StoreError(
        f"{path} cannot be written: it exists already, and may hold the admin token of another "
        "store. Choose another file for the first admin token of this one (--token-file), or start "
        "it in another folder"
    )
