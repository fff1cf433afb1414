"""Who calls, and what they may do.

A request says who it is from by `Authorization: Bearer <token>`. What a token stands for is
remembered for a few seconds, so a poll costs no look at the state; a token that is revoked on
another controller is void there after so long, and here at once.

A worker's own token holds as long as the one that it registered with: with that, what was entrusted
to whoever has it is taken back as a whole. Rotating that one only changes who can register.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, TypeVar

from pollwise.controller.http.answers import Refused, no_such
from pollwise.controller.security.tokens import LENGTH_MAX, hash_of
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import JobRow, Token, WorkerRow
from pollwise.runtime.clock import Clock

T = TypeVar("T")

#: How long what a token stands for is remembered, in seconds; and that it does not hold.
REMEMBERED = 5.0
UNKNOWN_REMEMBERED = 1.0
#: The most tokens that are remembered; and of those that do not hold.
MOST = 20_000
UNKNOWN_MOST = 1_000

#: What a caller may do: the scopes of tokens, and `own`, a registered worker's own token.
Role = Literal["admin", "submit", "worker", "own"]

_BEARER = b"bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from.

    id: of the token, or of the worker whose own token it is.
    worker_id: the worker's, for its own token.
    """

    id: str
    name: str
    role: Role
    worker_id: str | None = None

    @property
    def who(self) -> str:
        """As the audit log names them."""
        return f"{'worker' if self.role == 'own' else 'token'}:{self.id}"

    def must_be_admin(self) -> None:
        self._must(self.role == "admin", "an admin token")

    def must_submit(self) -> None:
        """May they submit, see and cancel jobs?"""
        self._must(self.role in ("admin", "submit"), "a token with the scope submit")

    def must_register(self) -> None:
        self._must(self.role in ("admin", "worker"), "a token with the scope worker")

    def must_see_workers(self) -> None:
        self._must(self.role in ("admin", "submit"), "a token with the scope submit")

    def must_be_worker(self, worker_id: str) -> None:
        """Are they this worker? Another's is as good as not there."""
        self._must(
            self.role in ("admin", "own"), "the token that the worker got when it registered"
        )
        if self.role == "own" and self.worker_id != worker_id:
            raise no_such("worker", worker_id)

    def may_see(self, job: JobRow) -> bool:
        """A worker sees what it runs, or ran last, and nothing else."""
        if self.role == "own":
            return job.worker_id is not None and job.worker_id == self.worker_id
        return self.role in ("admin", "submit")

    def must_see(self, job: JobRow | None, job_id: str) -> JobRow:
        """The job; for who may not see it, it is as good as not there."""
        self._must(self.role != "worker", "a token with the scope submit")
        if job is None or not self.may_see(job):
            raise no_such("job", job_id)
        return job

    def _must(self, may: bool, what: str) -> None:
        if not may:
            raise Refused(
                403,
                "forbidden",
                f"this needs {what}; yours has the scope {self.role}",
                "Use such a token; an admin can make one with POST /api/tokens.",
            )


class Auth:
    """Finds out who a request is from."""

    def __init__(self, state: ControllerState, clock: Clock | None = None) -> None:
        self._state = state
        self._clock = clock or state.clock
        self._known: OrderedDict[str, tuple[Caller, float, float | None]] = OrderedDict()
        self._void: OrderedDict[str, tuple[_Void, float]] = OrderedDict()
        self._registrars: OrderedDict[str, tuple[Token | None, float]] = OrderedDict()
        self._used: dict[str, float] = {}

    async def caller(self, authorization: str | bytes | None) -> Caller:
        """Who sent this header; `Refused` (401) if that is nobody."""
        digest = _digest(authorization)
        found = self._remembered(digest)
        if found is None:
            found = await self._look_up(digest)
        if found.role != "own":
            self._used[found.id] = self._clock.now()
        return found

    async def caller_of(self, secret: str) -> Caller:
        """Who has this token: for what carries no header, such as a WebSocket's first message."""
        return await self.caller(f"Bearer {secret}")

    def forget(self, token_hash: str | None = None) -> None:
        """A token (None: any, and those of workers) was revoked, rotated or changed: look again."""
        self._registrars.clear()
        if token_hash is None:
            self._known.clear()
            self._void.clear()
        else:
            self._known.pop(token_hash, None)
            self._void.pop(token_hash, None)

    async def write_down(self) -> None:
        """Note when tokens were last used, all at once."""
        if self._used:
            used, self._used = self._used, {}
            now = self._clock.now()
            await self._state.tokens_used({each: now - at for each, at in used.items()})

    def _remembered(self, digest: str) -> Caller | None:
        now = self._clock.now()
        known = self._known.get(digest)
        if known is not None:
            caller, until, expires_at = known
            if now < until and not self._is_over(expires_at):
                return caller
            del self._known[digest]
            return None
        void = self._void.get(digest)
        if void is not None and now < void[1]:
            raise void[0].refused()
        return None

    async def _look_up(self, digest: str) -> Caller:
        try:
            caller, expires_at = await self._found(digest)
        except _Void as void:
            _put(self._void, digest, (void, self._clock.now() + UNKNOWN_REMEMBERED), UNKNOWN_MOST)
            raise void.refused() from None
        until = self._clock.now() + REMEMBERED
        _put(self._known, digest, (caller, until, expires_at), MOST)
        return caller

    async def _found(self, digest: str) -> tuple[Caller, float | None]:
        """Whose token this is, and until when it holds."""
        token = await self._state.token_by_hash(digest)
        if token is not None and hmac.compare_digest(token.hash, digest):
            if token.revoked_at is not None:
                raise _Void("the token was revoked", "Ask an admin for another.")
            if self._is_over(token.expires_at):
                raise _Void("the token has expired", "Have it rotated, or ask for another.")
            return Caller(token.id, token.name, token.scope), token.expires_at
        worker = await self._state.worker_by_token(digest)
        if worker is not None and hmac.compare_digest(worker.token_hash, digest):
            return await self._worker(worker)
        raise _Void("the token is not known", "Check it; a rotated token is void at once.")

    async def _worker(self, worker: WorkerRow) -> tuple[Caller, float | None]:
        by = await self._registrar(worker.registered_by)
        if by is not None and by.revoked_at is not None:
            raise _Void(
                "the token that this worker registered with was revoked",
                "Register again with another token of the scope worker, which an admin can make.",
            )
        if by is not None and self._is_over(by.expires_at):
            raise _Void(
                "the token that this worker registered with has expired",
                "Have it rotated, or ask an admin for another, and register again with that.",
            )
        if self._is_over(worker.token_expires_at):
            raise _Void("the token has expired", "Register again.")
        ends = [worker.token_expires_at, None if by is None else by.expires_at]
        expires_at = min((each for each in ends if each is not None), default=None)
        return Caller(worker.id, worker.name, "own", worker.id), expires_at

    async def _registrar(self, who: str) -> Token | None:
        """The token that a worker registered with: the same for many, so it is remembered, too."""
        kind, _, token_id = who.partition(":")
        if kind != "token":
            return None
        found, until = self._registrars.get(token_id, (None, 0.0))
        now = self._clock.now()
        if until <= now:
            found = await self._state.token(token_id)
            _put(self._registrars, token_id, (found, now + REMEMBERED), UNKNOWN_MOST)
        return found

    def _is_over(self, expires_at: float | None) -> bool:
        return expires_at is not None and expires_at <= self._clock.epoch()


class _Void(Exception):
    """A token does not hold; why, and what to do about it."""

    def __init__(self, message: str, what_to_do: str) -> None:
        super().__init__(message)
        self.message = message
        self.what_to_do = what_to_do

    def refused(self) -> Refused:
        return _unauthorized(self.message, self.what_to_do)


def _put(kept: OrderedDict[str, T], key: str, value: T, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _digest(authorization: str | bytes | None) -> str:
    """The hash of the token in a header."""
    if not authorization:
        raise _unauthorized(
            "this needs a token", "Send the header `Authorization: Bearer <token>`."
        )
    header = (
        authorization
        if isinstance(authorization, bytes)
        else authorization.encode("utf-8", "surrogateescape")
    )
    secret = header[len(_BEARER) :].strip()
    if header[: len(_BEARER)].lower() != _BEARER or not 0 < len(secret) <= LENGTH_MAX:
        raise _unauthorized(
            "the Authorization header holds no bearer token", "Write `Bearer <token>`."
        )
    return hash_of(secret)


def _unauthorized(message: str, what_to_do: str) -> Refused:
    return Refused(401, "unauthorized", message, what_to_do, {"WWW-Authenticate": "Bearer"})
