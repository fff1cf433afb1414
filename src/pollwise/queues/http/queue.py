"""A queue of a controller's store, over HTTP: for workers that cannot reach the store itself.

`pollwise serve` has the store. This end has the same contract, and each call is one request. Hints
come over a WebSocket where possible, and are checked as everywhere: a proxy that blocks WebSockets
costs only latency. The controller refuses what its store cannot do. Only admins may use queues that
its setting `controller.queues` does not name.

An answer may be lost. Reads are simply repeated; a put, a claim or a cancel is repeated with the
same nonce, which the controller recognises; a settlement is fenced by its token.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from urllib.parse import quote, urlencode

from pollwise.durations import Duration, seconds
from pollwise.errors import (
    Compensated,
    ConfigError,
    JobError,
    PayloadError,
    StoreError,
    UniqueConflict,
    Unsupported,
)
from pollwise.queues.base import MAX_PAYLOAD_BYTES, ClaimRequest, claim_of
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.flows.keeping import kept_at_least
from pollwise.queues.http import wire
from pollwise.queues.http.channel import HttpChannel, HttpTransport
from pollwise.queues.http.client import (
    ControllerClient,
    NoAnswer,
    PollGuard,
    RequestRefused,
    Socket,
    TokenSource,
    decoded,
)
from pollwise.queues.http.flows import FlowCalls
from pollwise.queues.http.notes import HttpNotes
from pollwise.queues.viewed import DEAD, BulkAction
from pollwise.queues.views import COUNTED_MAX, BulkDone, JobFilter, JobPage, Stats
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import (
    Claim,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
)
from pollwise.runtime.store import IDLE_WITHIN
from pollwise.storage.in_doubt import InDoubt

if TYPE_CHECKING:  # else `client` imports it, and says which extra is missing
    import httpx

#: The longest hold of one request, in seconds, because many proxies cut answers that take 30 s. A
#: longer hold is several requests.
HOLD_AT_ONCE = 20.0
#: The largest answer, in bytes: the payloads of a claim.
ANSWER_BYTES_MAX = 256 * 1024 * 1024
#: How long to wait when the controller does not hold the request, in seconds.
NOT_HELD = 1.0
#: The queue of the controller's own jobs, which cannot be used this way.
AGENTS = "agents"
#: The maximum length of an id, in characters of a URL.
ID_LENGTH_MAX = 1000
#: The header that names the running controller, which knows the nonces of requests.
INSTANCE = "X-Pollwise-Instance"


class HttpQueue(FlowCalls, HttpNotes):
    """Jobs in a queue of a controller's store.

    controller: the address of the controller.
    token_file: the file that holds the token; by default POLLWISE_TOKEN or POLLWISE_TOKEN_FILE.
    ca_file: certificates to trust in addition to the usual ones, in PEM.
    timeout: how long an answer may take, in addition to the time that a claim is held.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        shows_claims=False, long_poll=True, hints="network"
    )
    _hints_of_puts: ClassVar[bool] = True

    def __init__(
        self,
        controller: str,
        name: str = "default",
        *,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        timeout: Duration = "30s",
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        transport: httpx.AsyncBaseTransport | None = None,
        dial: Any = None,
    ) -> None:
        if name == AGENTS:
            raise ConfigError(
                f"queue = {AGENTS!r} holds the controller's own jobs: put them with POST /api/jobs "
                "and run them with `pollwise agent`; or name another queue"
            )
        self._clock = clock or Clock()
        limit = seconds(timeout, "timeout", positive=True)
        self._http = ControllerClient(
            controller,
            self._clock,
            timeout=limit,
            ca_file=ca_file,
            answer_max=ANSWER_BYTES_MAX,
            transport=transport,
            dial=dial,
        )
        self._guard = PollGuard(self._clock)
        self._tokens = TokenSource(token_file)
        self._files = {"token_file": token_file, "ca_file": ca_file}
        self._token: str | None = None
        self._instance: str | None = None
        self._in_doubt = InDoubt(claim_of)
        self._path = f"/api/queue/{quote(name, safe='')}"
        super().__init__(name, clock=self._clock, keep=keep, max_payload_bytes=max_payload_bytes)
        self._params = {} if self.keep is None else {"keep": repr(self.keep)}

    @property
    def url(self) -> str:
        options = {"queue": self.name}
        options |= {name: str(file) for name, file in self._files.items() if file is not None}
        return f"{self._http.base}?{urlencode(options, quote_via=quote)}"

    # Putting

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        kinds = {job.kind for job in jobs}
        hint = self._channel.ride(len(jobs), kinds)
        nonce = secrets.token_hex(12)
        said = json.dumps({"nonce": nonce, "hint": hint, "sends_hints": True})
        answer = await self._post(
            "put", f'{said[:-1]},"jobs":{wire.encoded_jobs(jobs)}}}', repeatable=True
        )
        ids, fresh = answer["ids"], int(answer["fresh"])
        if fresh and hint is None:
            self._channel.send_to_others(fresh, kinds)
        return ids, fresh

    # Claiming

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        until = self.clock.now() + asked.hold
        while True:
            began = self.clock.now()
            held = min(max(until - began, 0.0), HOLD_AT_ONCE)
            claims = await self._claim_once(replace(asked, hold=held))
            left = until - self.clock.now()
            if claims or left <= 0:
                return claims
            if self.clock.now() - began < held / 2:  # not held: too many are, or it stops
                await self.clock.sleep(min(NOT_HELD, left))

    async def _claim_once(self, asked: ClaimRequest) -> list[Claim]:
        nonce, hold = secrets.token_hex(12), asked.hold
        said: dict[str, Any] = {"worker": asked.worker, "limit": asked.limit, "lease": asked.lease}
        said |= {"nonce": nonce, "sends_hints": True}
        if hold:
            said["hold"] = hold
        if asked.ahead:
            said["ahead"] = True
        if asked.kinds is not None:
            said["kinds"] = list(asked.kinds)
        if check := self._channel.check():
            said["check"] = check
        await self._guard.wait()
        try:
            within, self._poll_within = self._poll_within, None
            answer = await self._post("claim", said, repeatable=True, longer=hold, within=within)
        except asyncio.CancelledError:
            if hold:  # the controller must give back at once what it claims from now on
                with suppress(StoreError):
                    await self._post("abandon", {"nonce": nonce})
            raise
        claims = [wire.claim_from(each, self.name, asked.worker) for each in answer["claims"]]
        if not claims:
            self._guard.found_nothing()
            self._poll_within = IDLE_WITHIN
        self._limited = frozenset(answer.get("limited", ()))
        due_in = answer.get("due_in")
        if due_in is not None:
            self._hints.send_at(self.clock.now() + float(due_in))
        return claims

    # Settling

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        lost: list[str] = []
        if self.keep is not None:  # the controller does not know which jobs are in flows
            settlements = kept_at_least(settlements, self.keep)
        with self._in_doubt.unless_answered(settlements):
            for part, text in wire.encoded_settlements(settlements):
                said = f'{{"sends_hints":true,"settlements":{text}}}'
                try:
                    answer = await self._post("settle", said)
                except NoAnswer as error:
                    if not error.sent:
                        raise
                    self._in_doubt.note(part)
                    answer = await self._post("settle", said)
                lost += answer["lost"]
        # While our lease is valid nobody else can have had the job. So if the first answer was
        # lost and the job is refused now, it was settled by our first request.
        now = self.clock.epoch()
        ours = {s.claim.job.id for s in settlements if s in self._in_doubt and now < s.claim.until}
        self._in_doubt.answered(settlements)
        return [job_id for job_id in lost if job_id not in ours]

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        said = {"claims": wire.renewals_to(claims, progress), "lease": lease}
        answer = await self._again(lambda: self._post("renew", said))
        return Renewal(tuple(answer["lost"]), tuple(answer["cancel"]))

    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]:
        said = {"ids": ids, "nonce": secrets.token_hex(12)}
        answer = await self._post("cancel", said, repeatable=True)
        return {job_id: wire.state_from(state) for job_id, state in answer["states"].items()}

    # Views

    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        asked = {} if most == COUNTED_MAX else {"most": str(most)}
        return wire.stats_from(await self._get("/stats", asked))

    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        asked = {} if most == COUNTED_MAX else {"most": str(most)}
        kinds = (await self._get("/stats", {"by": "kind", **asked}))["kinds"]
        return {kind: wire.stats_from(counts) for kind, counts in kinds.items()}

    async def _find(self, job_id: str) -> JobInfo | None:
        try:
            place = quote(job_id, safe="")
        except UnicodeEncodeError:  # no id contains a lone surrogate
            return None
        if not place or len(place) > ID_LENGTH_MAX:
            return None
        info = (await self._get(f"/jobs/{place}"))["job"]
        return None if info is None else wire.info_from(info, self.name)

    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        answer = await self._get("/arrivals", wire.filter_to(chosen))
        return [wire.info_from(info, self.name) for info in answer["jobs"]]

    async def _retry(self, ids: Sequence[str] | None) -> int:
        return int((await self._post("retry", {"ids": ids, "sends_hints": True}))["count"])

    async def _retry_asked(self, ids: Sequence[str] | None, anyway: bool) -> int:
        said = {"ids": ids, "sends_hints": True, "anyway": anyway}
        return int((await self._post("retry", said))["count"])

    async def _page(self, chosen: JobFilter) -> JobPage:
        answer = await self._get("/jobs", wire.filter_to(chosen))
        jobs = [wire.info_from(info, self.name) for info in answer["jobs"]]
        return JobPage(jobs, answer["next"], int(answer["examined"]))

    async def _bulk(
        self, action: BulkAction, chosen: JobFilter, act: object, *, anyway: bool = False
    ) -> BulkDone:
        said: dict[str, Any] = {"filter": wire.filter_to(chosen), "sends_hints": True}
        if anyway:
            said["anyway"] = True
        answer = await self._post(action, said)
        return BulkDone(int(answer["count"]), answer["next"])

    async def _names(self) -> list[str]:
        names: list[str] = (await self._get("/names"))["names"]
        return names

    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        return int((await self._post("drop", {"ids": ids}))["count"])

    async def _prune(self, keep: float | None) -> int:
        return int((await self._post("prune", {}))["count"])

    async def _endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        found: dict[str, JobEnding | None] = {}
        rest: Sequence[str] = ids
        while rest:
            said = {"ids": [*rest]}
            answer = await self._again(partial(self._post, "endings", said))
            found |= wire.endings_from(answer["endings"])
            left = answer.get("rest", [])  # a controller of an earlier version sends none
            if len(left) >= len(rest):
                raise StoreError(f"{self.url} leaves out all endings that it was asked for")
            rest = left
        return found

    async def close(self) -> None:
        if self._http.closed:
            return
        try:
            await super().close()
        finally:
            await self._http.close()

    def _make_hints(self) -> Hints:
        self._channel = HttpChannel(HttpTransport(self), self._clock)
        return self._channel

    # Requests

    async def _post(
        self,
        what: str,
        said: dict[str, Any] | str,
        *,
        repeatable: bool = False,
        longer: float = 0.0,
        within: float | None = None,
    ) -> dict[str, Any]:
        content = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        path = f"{self._path}/{what}"
        headers = {"Content-Type": "application/json"}

        async def once(extra: dict[str, str]) -> dict[str, Any]:
            return await self._call(
                "POST", path, content.encode(), {**headers, **extra}, longer=longer, within=within
            )

        try:
            return await once({})
        except NoAnswer as error:
            if not repeatable or not error.sent or self._instance is None:
                raise
            first = error
        try:
            return await once({INSTANCE: self._instance})
        except RequestRefused as refused:
            if refused.code != "another_controller":
                raise
            raise first from None  # whether it was carried out is unknown

    async def _get(self, what: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._again(lambda: self._call("GET", self._path + what, None, {}, asked))

    @staticmethod
    async def _again(call: Callable[[], Any]) -> dict[str, Any]:
        """Make a call that may be repeated; an idle connection may have died."""
        try:
            answer: dict[str, Any] = await call()
        except NoAnswer as error:
            if not error.sent:
                raise
            answer = await call()
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: dict[str, str],
        asked: Mapping[str, Any] | None = None,
        *,
        longer: float = 0.0,
        within: float | None = None,
    ) -> dict[str, Any]:
        token = self.token()
        params = {**self._params, **(asked or {})}
        for again in (True, False):
            try:
                response = await self._http.call(
                    method, path, token, content=content, params=params, headers=headers,
                    longer=longer, within=within,
                )  # fmt: skip
                break
            except RequestRefused as refused:
                if again and refused.status == 401 and (renewed := self._tokens.read()) != token:
                    self._token = token = renewed  # it was rotated
                    continue
                self._raise(refused)
        self._instance = response.headers.get(INSTANCE, self._instance)
        return decoded(response, self._http.base)

    def token(self) -> str:
        if self._token is None:
            self._token = self._tokens.read()
        return self._token

    def _raise(self, refused: RequestRefused) -> NoReturn:
        """Raise what the controller refused as any other queue would raise it."""
        kind = _KINDS.get(refused.code)
        if kind is None and refused.status == 413:
            kind = PayloadError
        if kind is None and (advice := self.advice_on(refused)):
            raise StoreError(f"{str(refused).rstrip('. ')}. {advice}") from None
        if kind is not None:
            raise kind(str(refused)) from None
        raise refused

    def advice_on(self, refused: RequestRefused) -> str | None:
        """Advice for a token that was not accepted or lacks a scope; None for other errors."""
        if refused.status == 401:
            return (
                f"The token of the queue {self.name!r} is not valid (any more): have an "
                "admin make one (`pollwise serve token create`), put it where the old one is "
                "(token_file, POLLWISE_TOKEN_FILE or POLLWISE_TOKEN), and start again."
            )
        if refused.status == 403:
            return (
                f"The token does not allow this on the queue {self.name!r}: use one with another "
                "scope, or have the queue added to the setting controller.queues."
            )
        return None

    async def dial(self) -> Socket:
        """A WebSocket for the messages of this queue."""
        query = f"?{urlencode(self._params)}" if self._params else ""
        return await self._http.dial(f"{self._path}/ws{query}", self.token())

    async def say(self, message: str) -> None:
        """Send a message to all listeners of this queue."""
        await self._post("hint", {"message": message})


_KINDS: dict[str, type[Exception]] = {
    "unique_conflict": UniqueConflict,
    "compensated": Compensated,
    "unsupported": Unsupported,
    "payload": PayloadError,
    "too_large": PayloadError,
    "job": JobError,
    "config": ConfigError,
}
