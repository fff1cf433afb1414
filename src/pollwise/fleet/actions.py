"""Actions for a change, apart from your own functions: send a webhook, or put a job into a queue.

A fleet calls its actions once for a change, right after the poll; a failed action is an event and
is not repeated. If no change may be lost, put a job: the queue keeps it until a worker has done it.
After a crash between the action and the saving, the change is found again and sent with the same
`id`: receivers must be idempotent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, MissingExtra, PollwiseError, UniqueConflict
from pollwise.fleet.probes.http.connections import Tls, transport
from pollwise.fleet.targets import Changed, Reading
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NAME_LENGTH_MAX, NewJob, checked_name

#: The headers of a webhook: the id of the change, and the signature.
ID_HEADER = "x-pollwise-id"
SIGNATURE_HEADER = "x-pollwise-signature"
#: A signature that is older, or further in the future, is refused, in seconds.
TOLERANCE = 300.0

_SIGNATURE = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


class ActionError(PollwiseError):
    """An action failed. The message names only the host: a path may be secret."""


class Webhook:
    """Posts each change as JSON.

        fleet.on_change(Webhook("https://hooks.example/fleet", secret=os.environ["HOOK_SECRET"]))

    secret: signs the request (HMAC-SHA256), so that the receiver knows who sent it, and when;
        `is_signed` checks it.
    timeout: time limit of the request, connecting included.
    headers: additional headers, such as an Authorization.
    verify, ca: as for a probe of type http.

    An answer other than 2xx is an error. Redirects are not followed: the content was meant for
    this host.
    """

    __slots__ = ("_headers", "_host", "_secret", "_tls", "_url", "timeout")

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        timeout: Duration = "10s",
        headers: Mapping[str, str] | None = None,
        verify: bool = True,
        ca: str | None = None,
    ) -> None:
        self._url = url
        self._host = _checked_url(url)
        if secret is not None and not (isinstance(secret, (str, bytes)) and secret):
            raise ConfigError("the secret of a webhook must be text and not empty")
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self.timeout = seconds(timeout, "timeout of a webhook", positive=True)
        self._headers = _checked_headers({} if headers is None else headers)
        self._tls = Tls(verify, ca)
        try:
            import httpx  # noqa: F401 (a missing extra is reported now, not at the first change)
        except ImportError as error:
            raise MissingExtra("a webhook", "fleet") from error

    async def __call__(self, change: Changed) -> None:
        """Send a change; ActionError if it was not accepted."""
        import httpx

        body = json.dumps(payload_of(change), separators=(",", ":")).encode()
        headers = {
            "user-agent": "pollwise",
            "content-type": "application/json",
            **self._headers,
            ID_HEADER: id_of(change),
        }
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, body, change.at)
        parts = urlsplit(self._url)
        try:
            async with asyncio.timeout(self.timeout):
                request = httpx.Request("POST", self._url, headers=headers, content=body)
                carrier = transport(self._tls, parts.scheme, parts.hostname or "")
                response = await carrier.handle_async_request(request)
                await response.aclose()
        except TimeoutError:
            raise ActionError(f"{self!r}: no answer within {self.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            # Their messages may contain the URL and header values.
            raise ActionError(f"{self!r} could not be reached: {type(error).__name__}") from None
        status = response.status_code
        if 300 <= status < 400:
            raise ActionError(f"{self!r} answered {status}; redirects are not followed")
        if not 200 <= status < 300:
            raise ActionError(f"{self!r} answered {status}")

    def __repr__(self) -> str:
        return f"Webhook({self._host!r})"


class PutJob:
    """Puts a job for each change, with the payload of a webhook.

        fleet.on_change(PutJob("sqlite:///jobs.db", "page-changed"))

    queue: a queue or its URL. `close()` closes a queue that was opened here.
    kind, priority: as for `NewJob`.
    keyed: use the target's name as the job's key, so that changes of one target are handled in
        order; None does so if the queue has keys.
    """

    __slots__ = ("_keyed", "_kind", "_opened", "_priority", "queue")

    def __init__(
        self,
        queue: Queue | str,
        kind: str = "target-changed",
        *,
        priority: int = 0,
        keyed: bool | None = None,
    ) -> None:
        self._kind = checked_name(kind, "kind")
        self._priority = priority
        self._opened = isinstance(queue, str)
        self.queue: Queue = open_queue(queue) if isinstance(queue, str) else queue
        self._keyed = self.queue.capabilities.keys if keyed is None else keyed

    async def __call__(self, change: Changed) -> None:
        name = change.target.name
        if len(name) > NAME_LENGTH_MAX:
            name = hashlib.sha256(name.encode()).hexdigest()
        job = NewJob(
            self._kind,
            payload_of(change),
            key=name if self._keyed else None,
            priority=self._priority,
            unique=id_of(change) if self.queue.capabilities.unique else None,
        )
        with suppress(UniqueConflict):  # the change was put before a crash
            await self.queue.put(job)

    async def close(self) -> None:
        """Close the queue, if it was opened here."""
        if self._opened:
            await self.queue.close()

    def __repr__(self) -> str:
        return f"PutJob({self._kind!r})"


def payload_of(change: Changed) -> dict[str, Any]:
    """A change as plain values, without the target's options, which may contain secrets."""
    target = change.target
    return {
        "id": id_of(change),
        "target": target.name,
        "type": target.type,
        "group": target.group,
        "labels": dict(target.labels),
        "at": change.at,
        "before": _plain(change.before),
        "after": _plain(change.after),
    }


def id_of(change: Changed) -> str:
    """The id of a change, the same if it is sent again after a crash.

    It uses the time of the previous change: the time of the poll is different after a crash.
    """
    # A saved time passes through the clock of another process and is not exactly equal.
    since = None if change.since is None else round(change.since, 3)
    seen = repr((change.target.name, since, change.before.value, change.after.value))
    return hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def signature(secret: bytes, body: bytes, at: float) -> str:
    """The signature of a webhook: the time, and the HMAC of that time and the body."""
    moment = int(at)
    code = hmac.new(secret, f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={code}"


def is_signed(secret: str | bytes, header: str, body: bytes, now: float) -> bool:
    """For the receiver: True if a webhook was signed with this secret, recently.

    header: X-Pollwise-Signature. body: the raw body, before parsing. now: the time in seconds since
    1970; an old request that is sent again is refused.
    """
    found = _SIGNATURE.fullmatch(header.strip())
    if found is None or abs(now - int(found[1])) > TOLERANCE:
        return False
    key = secret.encode() if isinstance(secret, str) else secret
    return hmac.compare_digest(signature(key, body, int(found[1])), found[0])


def _plain(reading: Reading) -> dict[str, Any]:
    kept = reading.kept()
    return {key: kept.get(key) for key in ("value", "changed_at", "facts", "summary")}


def _checked_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping) or not all(
        isinstance(each, str) and each.isascii() and each.isprintable()
        for pair in headers.items()
        for each in pair
    ):
        raise ConfigError("the headers of a webhook must be a table of printable ASCII texts")
    return {name.lower(): each for name, each in headers.items()}


def _checked_url(url: object) -> str:
    """The scheme and host of a webhook's URL; nothing else of it is ever shown."""
    with suppress(ValueError):
        parts = urlsplit(url if isinstance(url, str) else "")
        if parts.hostname and parts.scheme in ("http", "https"):
            return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    raise ConfigError("the URL of a webhook must start with https:// (or http://) and a host")
