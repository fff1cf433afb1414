"""The requests of an agent to its controller."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from pollwise.errors import ConfigError, StoreError, StoreUnavailable
from pollwise.queues.http.client import (
    ControllerClient,
    PollGuard,
    RequestRefused,
    Socket,
    TokenSource,
    decoded,
)
from pollwise.runtime.clock import Clock

#: How much of a file is sent or read at once, in bytes.
PIECE = 256 * 1024
#: An idle agent registers again after this fraction of its token's lifetime.
RENEW_AT = 0.8
#: And not before this many seconds; a token that expires sooner is renewed when it is refused.
RENEW_REST = 30.0

_JSON = {"Content-Type": "application/json"}


class NotRegistered(StoreUnavailable):
    """The controller does not know this worker, or its token expired: register again."""


class JobNotOurs(StoreError):
    """The worker has lost a job."""


@dataclass(frozen=True)
class RegisteredWorker:
    """The registration of an agent. The token is in memory only.

    artefact_limit: the largest artefact that the controller accepts, in bytes; None if it does not
        say.
    """

    worker_id: str
    token: str = field(repr=False)
    min_interval: float
    heartbeat_timeout: float
    renew_at: float
    artefact_limit: int | None = None


class ControllerLink:
    """Makes requests as one worker."""

    def __init__(self, client: ControllerClient, tokens: TokenSource, clock: Clock) -> None:
        self._client = client
        self._tokens = tokens
        self._clock = clock
        self._guard = PollGuard(clock)
        self.worker: RegisteredWorker | None = None

    @property
    def base(self) -> str:
        return self._client.base

    async def register(
        self, name: str, capabilities: Mapping[str, Any], slots: int
    ) -> RegisteredWorker:
        said = {"name": name, "capabilities": dict(capabilities), "slots": slots}
        token = self._tokens.read()
        response = await self._client.call(
            "POST", "/api/workers/register", token, content=json.dumps(said), headers=_JSON
        )
        told = decoded(response, self.base)
        try:
            now = self._clock.now()
            limit = told.get("artefact_limit")
            self.worker = RegisteredWorker(
                worker_id=str(told["worker_id"]),
                token=str(told["token"]),
                min_interval=_seconds(told["min_interval_s"]),
                heartbeat_timeout=_seconds(told["heartbeat_timeout_s"]),
                renew_at=now + max(RENEW_AT * self._left(told), RENEW_REST),
                artefact_limit=None if limit is None else int(limit),
            )
        except (LookupError, TypeError, ValueError):
            raise StoreError(
                f"{self.base} gave no valid answer to a registration; is it a controller?"
            ) from None
        return self.worker

    def _left(self, told: Mapping[str, Any]) -> float:
        """Seconds until the token expires. Our clock may differ from the controller's."""
        if told.get("expires_in_s") is not None:
            return float(told["expires_in_s"])
        moment = told.get("expires_at")
        if not isinstance(moment, str):
            return float("inf")
        return datetime.fromisoformat(moment).timestamp() - self._clock.epoch()

    def forget(self) -> None:
        self.worker = None

    async def unregister(self) -> None:
        if self.worker is not None:
            await self._call("POST", f"/api/workers/{self.worker.worker_id}/unregister")
            self.worker = None

    async def poll(self, said: Mapping[str, Any]) -> dict[str, Any]:
        await self._guard.wait()
        worker = self._registered()
        self._guard.found_nothing()  # unless it did: a poll that fails counts, too
        response = await self._call(
            "POST",
            "/api/workers/poll",
            content=json.dumps({"worker_id": worker.worker_id, **said}),
            headers=_JSON,
        )
        return decoded(response, self.base)

    async def log(self, job_id: str, offset: int, data: bytes) -> tuple[int, bool]:
        """Append to a job's log; how many bytes the controller has, and whether it takes more."""
        try:
            response = await self._call(
                "POST",
                f"/api/jobs/{job_id}/logs",
                params={"offset": str(offset)},
                content=data,
                headers={"Content-Type": "text/plain; charset=utf-8"},
            )
        except RequestRefused as refused:
            place = refused.headers.get("x-log-offset", "")
            if refused.code == "log_gap" and place.isdigit():
                return int(place), True
            raise
        told = decoded(response, self.base)
        return int(told.get("received", offset + len(data))), not told.get("cut")

    async def fetch_input(self, job_id: str, name: str, to: Path, most: int) -> int:
        """Fetch a file that came with a job, of at most this many bytes; its size."""
        worker = self._registered()
        path = f"/api/jobs/{job_id}/inputs/{quote(name, safe='/')}"
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            async with self._client.stream(path, worker.token, most) as pieces:
                with to.open("wb") as file:
                    async for piece in pieces:
                        file.write(piece)
                    return file.tell()
        except RequestRefused as refused:
            raise self._known(refused) from None

    async def send_artefact(self, job_id: str, name: str, file: IO[bytes]) -> None:
        """Send an open file that a job made, with its checksum: the bytes that it has now."""
        limit = self._registered().artefact_limit
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            # A refusal during the upload is often lost with the connection.
            raise RequestRefused(
                f"the file has more than {limit} bytes and was not sent. Split it, or ask an admin "
                "to raise artefact_limit",
                413,
                "too_large",
            )
        digest = await asyncio.to_thread(_digest, file.fileno(), size)
        await self._call(
            "PUT",
            f"/api/jobs/{job_id}/artefacts/{quote(name, safe='/')}",
            content=_pieces(file.fileno(), size, name),
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(size),
                "X-Checksum-SHA256": digest,
            },
        )

    async def dial(self) -> Socket:
        worker = self._registered()
        return await self._client.dial(
            f"/api/workers/ws?worker_id={quote(worker.worker_id)}", worker.token
        )

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, method: str, path: str, **given: Any) -> Any:
        worker = self._registered()
        try:
            return await self._client.call(method, path, worker.token, **given)
        except RequestRefused as refused:
            raise self._known(refused) from None

    def _known(self, refused: RequestRefused) -> StoreError:
        """The error that a refusal means for a worker."""
        if refused.status == 401 or refused.code == "no_such_worker":
            return NotRegistered(str(refused))
        if refused.code in ("lease_lost", "no_such_job"):
            return JobNotOurs(str(refused))
        return refused

    def _registered(self) -> RegisteredWorker:
        if self.worker is None:
            raise NotRegistered(f"this agent is not registered with {self.base} now")
        return self.worker


def _seconds(told: Any) -> float:
    """A number of seconds. Raises ValueError if it is negative or not finite."""
    if not 0 <= (number := float(told)) < float("inf"):
        raise ValueError(told)
    return number


def _digest(file: int, size: int) -> str:
    digest = hashlib.sha256()
    for offset in range(0, size, PIECE):
        digest.update(os.pread(file, min(PIECE, size - offset), offset))
    return digest.hexdigest()


async def _pieces(file: int, size: int, name: str) -> AsyncIterator[bytes]:
    """The bytes of a file, up to the size that it had for its checksum."""
    offset = 0
    while offset < size:
        piece = await asyncio.to_thread(os.pread, file, min(PIECE, size - offset), offset)
        if not piece:
            raise ConfigError(f"the artefact {name!r} became shorter while it was sent")
        offset += len(piece)
        yield piece
