"""Who sent a request, and what they may do.

A request carries `Authorization: Bearer <token>`. The owner of a token is remembered for a few
seconds, so a poll does not read the state. A token that another controller revoked is refused here
after that time; one that this controller revoked is refused at once.

A worker's own token is valid as long as the token that it registered with: revoking that one
revokes them all at once. Rotating it changes only who can register.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

from pollwise.controller.http.answers import HttpError, no_such
from pollwise.controller.security.tokens import LENGTH_MAX, hash_of
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import Token, WorkerRow
from pollwise.controller.terms import BY
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import JobInfo

if TYPE_CHECKING:
    from starlette.requests import Request

    from pollwise.fleet.api import Authorise
    from pollwise.fleet.api import Scope as FleetScope

T = TypeVar("T")

#: How long the owner of a token is remembered, in seconds; and that a token is invalid.
REMEMBERED = 5.0
UNKNOWN_REMEMBERED = 1.0
#: The most valid and invalid tokens that are remembered.
REMEMBERED_MAX = 20_000
UNKNOWN_MAX = 1_000

#: The scope of the caller's token; `own` for the own token of a registered worker.
Role = Literal["read", "put", "operate", "worker", "admin", "own"]

_BEARER = b"bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    id: of the token, or of the worker whose own token it is.
    worker_id: only for the own token of a worker.
    all_jobs: of the scope put: it may see and cancel the jobs of others too.
    """

    id: str
    name: str
    role: Role
    worker_id: str | None = None
    all_jobs: bool = False

    @property
    def who(self) -> str:
        """Who it is, by its id."""
        return f"{'worker' if self.role == 'own' else 'token'}:{self.id}"

    @property
    def label(self) -> str:
        """Who it is, for the audit log: by its id and its name."""
        return f"{self.who} ({self.name})"

    def must_have(self, *scopes: str) -> None:
        """Raise `HttpError` (403) without one of these scopes; an admin has them all."""
        if self.role != "admin" and self.role not in scopes:
            named = [each for each in scopes if each != "own"] or ["admin"]
            self._refuse(f"a token with the scope {' or '.join(named)}")

    def must_be_worker(self, worker_id: str) -> None:
        """Raise `HttpError` unless this is the worker's own token, or an admin's."""
        if self.role not in ("admin", "own"):
            self._refuse("the token that the worker got when it registered")
        if self.role == "own" and self.worker_id != worker_id:
            raise no_such("worker", worker_id)

    @property
    def owns_only(self) -> bool:
        """True if it sees, cancels and retries only the jobs that it put."""
        return self.role == "put" and not self.all_jobs

    def may_see(self, job: JobInfo) -> bool:
        """A worker sees the jobs that it runs or was the last to run, and no others.

        A token with the scope put sees the jobs that it put, unless it was made for all jobs.
        """
        if self.role == "own":
            return job.worker is not None and job.worker == self.worker_id
        if self.owns_only:
            return job.job.headers.get(BY) == self.who
        return self.role != "worker"

    def must_see(self, job: JobInfo | None, job_id: str) -> JobInfo:
        """The job; 404 if there is none that the caller may see."""
        if self.role == "worker":
            self._refuse("a token with the scope read, put or operate")
        if job is None or not self.may_see(job):
            raise no_such("job", job_id)
        return job

    def _refuse(self, what: str) -> NoReturn:
        what_to_do = "Use such a token; an admin can make one with POST /api/tokens."
        if self.role == "worker":
            what_to_do = (
                'This token only registers workers: POST {"name": "mini-1"} to '
                "/api/workers/register, and use the worker_id and the token of the answer."
            )
        raise HttpError(
            403, "forbidden", f"this needs {what}; yours has the scope {self.role}", what_to_do
        )


class Auth:
    """Finds out who sent a request."""

    def __init__(self, state: ControllerState, clock: Clock | None = None) -> None:
        self._state = state
        self._clock = clock or state.clock
        self._known: OrderedDict[str, tuple[Caller, float, float | None]] = OrderedDict()
        self._invalid: OrderedDict[str, tuple[str, str, float]] = OrderedDict()
        self._registrars: OrderedDict[str, tuple[Token | None, float]] = OrderedDict()
        self._used: dict[str, float] = {}

    async def caller(self, authorization: str | bytes | None) -> Caller:
        """Who sent this header; `HttpError` (401) if the token is missing or invalid."""
        digest = _digest(authorization)
        found = self._remembered(digest)
        if found is None:
            found = await self._look_up(digest)
        if found.role != "own":
            self._used[found.id] = self._clock.now()
        return found

    async def caller_of(self, token_id: str) -> Caller:
        """Who a token belongs to, by its id; `HttpError` (401) if it is no longer valid."""
        return self._token(await self.token_of(token_id))

    async def token_of(self, token_id: str) -> Token:
        """A token by its id, as it is stored; `HttpError` (401) if it is no longer valid."""
        token = await self._registrar(f"token:{token_id}")
        if token is None:
            raise InvalidToken("the token is not known", "Ask an admin for another.")
        self._token(token)  # raises if it was revoked or has expired
        return token

    def forget(self, token_hash: str | None = None) -> None:
        """Forget a token that was revoked or rotated; None for all, those of workers included."""
        self._registrars.clear()
        if token_hash is None:
            self._known.clear()
            self._invalid.clear()
        else:
            self._known.pop(token_hash, None)
            self._invalid.pop(token_hash, None)

    async def write_down(self) -> None:
        """Save when tokens were last used, in one batch."""
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
        invalid = self._invalid.get(digest)
        if invalid is not None and now < invalid[2]:
            raise InvalidToken(*invalid[:2])
        return None

    async def _look_up(self, digest: str) -> Caller:
        try:
            caller, expires_at = await self._found(digest)
        except InvalidToken as invalid:
            until = self._clock.now() + UNKNOWN_REMEMBERED
            _put(self._invalid, digest, (invalid.message, invalid.what_to_do, until), UNKNOWN_MAX)
            raise
        until = self._clock.now() + REMEMBERED
        _put(self._known, digest, (caller, until, expires_at), REMEMBERED_MAX)
        return caller

    async def _found(self, digest: str) -> tuple[Caller, float | None]:
        """Whose token this is, and until when it is valid."""
        token = await self._state.token_by_hash(digest)
        if token is not None and hmac.compare_digest(token.hash, digest):
            return self._token(token), token.expires_at
        worker = await self._state.worker_by_token(digest)
        if worker is not None and hmac.compare_digest(worker.token_hash, digest):
            return await self._worker(worker)
        raise InvalidToken(
            "the token is not known", "Check it; a rotated token is invalid at once."
        )

    def _token(self, token: Token) -> Caller:
        if token.revoked_at is not None:
            raise InvalidToken("the token was revoked", "Ask an admin for another.")
        if self._is_over(token.expires_at):
            raise InvalidToken("the token has expired", "Have it rotated, or ask for another.")
        return Caller(token.id, token.name, token.scope, all_jobs=token.all_jobs)

    async def _worker(self, worker: WorkerRow) -> tuple[Caller, float | None]:
        by = await self._registrar(worker.registered_by)
        if by is not None and by.revoked_at is not None:
            raise InvalidToken(
                "the token that this worker registered with was revoked",
                "Register again with another token of the scope worker, which an admin can make.",
            )
        if by is not None and self._is_over(by.expires_at):
            raise InvalidToken(
                "the token that this worker registered with has expired",
                "Have it rotated, or ask an admin for another, and register again with that.",
            )
        if self._is_over(worker.token_expires_at):
            raise InvalidToken("the token has expired", "Register again.")
        ends = [worker.token_expires_at, None if by is None else by.expires_at]
        expires_at = min((each for each in ends if each is not None), default=None)
        return Caller(worker.id, worker.name, "own", worker.id), expires_at

    async def _registrar(self, who: str) -> Token | None:
        """The token that a worker registered with. Many share it, so it is remembered too."""
        kind, _, token_id = who.partition(":")
        if kind != "token":
            return None
        found, until = self._registrars.get(token_id, (None, 0.0))
        now = self._clock.now()
        if until <= now:
            found = await self._state.token(token_id)
            _put(self._registrars, token_id, (found, now + REMEMBERED), UNKNOWN_MAX)
        return found

    def _is_over(self, expires_at: float | None) -> bool:
        return expires_at is not None and expires_at <= self._clock.epoch()


class InvalidToken(HttpError):
    """A token is missing or not valid (401)."""

    def __init__(self, message: str, what_to_do: str) -> None:
        headers = {"WWW-Authenticate": "Bearer"}
        super().__init__(401, "unauthorized", message, what_to_do, headers)


def _put(kept: OrderedDict[str, T], key: str, value: T, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _digest(authorization: str | bytes | None) -> str:
    """The hash of the token in a header."""
    if not authorization:
        raise InvalidToken("this needs a token", "Send the header `Authorization: Bearer <token>`.")
    header = (
        authorization
        if isinstance(authorization, bytes)
        else authorization.encode("utf-8", "surrogateescape")
    )
    secret = header[len(_BEARER) :].strip()
    if header[: len(_BEARER)].lower() != _BEARER or not 0 < len(secret) <= LENGTH_MAX:
        raise InvalidToken(
            "the Authorization header holds no bearer token", "Write `Bearer <token>`."
        )
    return hash_of(secret)


def fleet_tokens(auth: Auth) -> Authorise:
    """Let a fleet's API accept the tokens of a controller: `read` to look, `operate` for orders.

    authorise = fleet_tokens(controller.auth)
    app.mount("/api/fleet", pollwise.fleet.api.application(control, authorise))
    """
    from pollwise.fleet.api import Refusal

    async def authorise(request: Request, scope: FleetScope) -> str:
        try:
            caller = await auth.caller(request.headers.get("authorization"))
            caller.must_have(*(("operate",) if scope == "operate" else ("read", "operate")))
        except HttpError as error:
            # The controller, which could make a token, is elsewhere.
            make = "Use such a token; `pollwise serve token create` makes one in its store."
            what_to_do = make if error.status == 403 else error.what_to_do
            raise Refusal(
                error.status, error.message, what_to_do, error.headers, code=error.code
            ) from None
        return caller.who

    return authorise
