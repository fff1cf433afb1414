"""Who sent a request, and whether they may: what every route asks first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from pollwise.controller.http.answers import HttpError, error_for, lease_lost, no_such
from pollwise.controller.http.requests import is_id, is_job_id
from pollwise.controller.security.auth import Caller
from pollwise.controller.workers.registry import HeldRun, KnownWorker
from pollwise.runtime.http import address_of
from pollwise.runtime.jobs import JobInfo

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

#: The scopes that may see jobs and workers, and those that may cancel and retry jobs.
SEE = ("read", "put", "operate")
STEER = ("put", "operate")


class Access:
    """Checks the tokens of requests to a controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def caller(
        self,
        connection: HTTPConnection,
        *scopes: str,
        worker: str | None = None,
        token: str | None = None,
    ) -> Caller:
        """Who sent a request; `HttpError` if the token is invalid or lacks the scope.

        scopes: one of them is needed (an admin has them all); `own` is the token that a worker
            got when it registered. Without scopes, any valid token will do.
        worker: the own token of this worker is accepted as well.
        token: the token, if it came in no header.
        """
        await self._controller.start()
        header = connection.headers.get("authorization") if token is None else f"Bearer {token}"
        who = await self._controller.auth.caller(header)
        self._controller.began()
        if who.role == "own" and worker is not None:
            who.must_be_worker(worker)
        elif scopes:
            who.must_have(*scopes)
        return who

    async def authorise(self, connection: HTTPConnection, scopes: Sequence[str]) -> str:
        """Who sent a request to a queue of the store; `HttpError` without one of these scopes."""
        who = await self.caller(connection)
        name = connection.path_params.get("name", "")
        if who.role != "admin" and name not in (self._controller.options.queues or ()):
            raise HttpError(
                403,
                "queue_not_open",
                f"the queue {str(name)[:80]!r} is open to admins only; your token has the scope "
                f"{who.role}",
                "Ask an admin to add it to the setting controller.queues.",
            )
        who.must_have(*scopes)
        return who.who

    async def readable(self, connection: HTTPConnection, names: list[str]) -> list[str]:
        """The queues, of these names, that the sender of a request may use."""
        who = await self.caller(connection)
        open_to_all = self._controller.options.queues or ()
        return [name for name in names if who.role == "admin" or name in open_to_all]

    async def note(
        self, request: HTTPConnection, who: Caller, action: str, what: str = "", detail: str = ""
    ) -> None:
        """Write into the audit log what a caller did."""
        await self._controller.storage.note(
            who.label, action, what, detail, address_of(request.scope)
        )

    def explained(self, error: Exception) -> HttpError:
        """The error to answer; what it hides from the client is logged."""
        answer = error_for(error)
        if answer is not error and answer.status >= 500:
            self._controller.log_failure(error)
        return answer

    async def worker_of(self, who: Caller, worker_id: str) -> KnownWorker:
        """The worker of this id, for its own token or an admin's."""
        who.must_be_worker(worker_id)
        known = await self._controller.registry.get(worker_id) if is_id(worker_id) else None
        if known is None:
            raise no_such("worker", worker_id)
        return known

    async def job_for(self, request: HTTPConnection, job_id: str) -> JobInfo:
        """A job, if the caller may see it; else `HttpError`."""
        who = await self.caller(request, *SEE, "own")
        return who.must_see(await self._job(job_id), job_id)

    async def steered(self, request: HTTPConnection, job_id: str) -> Caller:
        """The sender of a request to cancel or retry a job; `HttpError` if that is not allowed."""
        who = await self.caller(request, *STEER)
        if not is_job_id(job_id) or who.owns_only:
            who.must_see(await self._job(job_id), job_id)
        return who

    async def _job(self, job_id: str) -> JobInfo | None:
        return await self._controller.queue.get(job_id) if is_job_id(job_id) else None

    async def run_for(self, request: HTTPConnection, job_id: str) -> tuple[KnownWorker, HeldRun]:
        """The run of a job, for the worker that has it; 409 if it lost the job."""
        who = await self.caller(request, "admin", "own")
        registry, runs = self._controller.registry, self._controller.runs
        worker_id = who.worker_id
        if worker_id is None:
            worker_id = (await self.job_for(request, job_id)).worker
        known = None if worker_id is None else await registry.get(worker_id)
        if known is not None and is_job_id(job_id):
            await runs.adopt(known, [job_id])
            if job_id in known.runs:
                if who.role == "own":
                    registry.seen(known, address_of(request.scope))
                return known, known.runs[job_id]
        if who.role != "own":
            await self.job_for(request, job_id)  # 404 if it does not exist
        # A worker gets the same answer for a job that it lost, that never was its own, or that
        # does not exist: it learns nothing about the jobs of others.
        raise lease_lost((job_id,))
