"""`/api/jobs`: put, list, cancel, retry, heartbeat."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.files.uploads import UploadedFiles, receive_multipart
from pollwise.controller.http import schema
from pollwise.controller.http.access import SEE, STEER, address_of
from pollwise.controller.http.answers import HttpError, lease_lost, no_such
from pollwise.controller.http.requests import (
    HEADERS,
    After,
    Limit,
    answer,
    checked_id,
    invalid,
    is_id,
    page_after,
    page_limit,
    parsed,
    read_body,
    read_object,
)
from pollwise.controller.http.routes.poll import progress_of, text_of
from pollwise.controller.http.schema import body_of, errors
from pollwise.controller.http.views import job_view
from pollwise.controller.jobs import job_spec
from pollwise.controller.security.auth import Caller
from pollwise.controller.state.values import SHOWN_STATES, JobRow
from pollwise.controller.workers.base import RunProgress
from pollwise.controller.workers.matching import checked_kind

_MULTIPART: dict[str, Any] = {
    "schema": {
        "type": "object",
        "required": ["job"],
        "properties": {
            "job": {"type": "string", "description": "The job, as JSON."},
        },
        "additionalProperties": {"type": "string", "format": "binary"},
    }
}


def routes(controller: Controller) -> APIRouter:
    router = APIRouter(tags=["jobs"])
    options, registry, storage = controller.options, controller.registry, controller.storage

    async def view(row: JobRow) -> dict[str, Any]:
        waiting = await registry.waiting_for(row) if row.state == "ready" else None
        return job_view(row, waiting)

    @router.post(
        "/api/jobs",
        status_code=201,
        summary="Put a job",
        description="JSON; or multipart, with the JSON in the part `job` and files as inputs. "
        "A job whose `unique` exists already is answered with 200.",
        responses={
            201: {"model": schema.JobView},
            200: {"model": schema.JobView, "description": "It was put before."},
            **errors(400, 409, 413, 422, 507),
        },
        openapi_extra=body_of(schema.NewJobBody, also={"multipart/form-data": _MULTIPART}),
    )
    async def put(request: Request) -> Response:
        who = await controller.access.caller(request, "put")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            async with receive_multipart(request, controller, who.who) as (given, files):
                return await put_job(request, who, parsed(given), files)
        body = await read_body(request, options.body_limit)
        return await put_job(request, who, parsed(body or b"null"), None)

    async def put_job(
        request: Request, who: Caller, given: Any, files: UploadedFiles | None
    ) -> Response:
        spec = job_spec(given, options, () if files is None else files.names)
        await controller.check_files()
        store = None if files is None else files.store
        row, fresh = await controller.jobs.put(spec, who.who, store, address_of(request))
        return answer(await view(row), 201 if fresh else 200, {"Location": f"/api/jobs/{row.id}"})

    @router.get(
        "/api/jobs",
        summary="List jobs, newest first",
        responses={200: {"model": schema.JobPage}, **errors(422)},
    )
    async def list_jobs(
        request: Request,
        state: str | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: Limit = None,
        after: After = None,
    ) -> Response:
        who = await controller.access.caller(request, *SEE, "own")
        if state is not None and state not in SHOWN_STATES:
            raise invalid(f"state = {state[:40]!r} is none of {', '.join(SHOWN_STATES)}")
        if kind is not None:
            kind = checked_kind(kind)
        if who.worker_id is not None:
            worker = who.worker_id  # a worker sees only its own jobs
        elif worker is not None and not is_id(worker):
            raise invalid("worker must be the id of a worker")
        size = page_limit(limit)
        rows = await storage.list_jobs(
            state=state,
            kind=kind,
            worker=worker,
            limit=size,
            after=page_after(after),
        )
        views = [await view(row) for row in rows]
        return answer({"jobs": views, "next": rows[-1].id if len(rows) == size else None})

    @router.get(
        "/api/jobs/{job_id}",
        summary="Show a job",
        responses={200: {"model": schema.JobView}, **errors(404)},
    )
    async def get_job(request: Request, job_id: str) -> Response:
        return answer(await view(await controller.access.job_for(request, job_id)))

    @router.get(
        "/api/jobs/{job_id}/result",
        summary="The result of a job",
        responses={200: {"description": "The result, as JSON."}, **errors(404, 409)},
    )
    async def result(request: Request, job_id: str) -> Response:
        row = await controller.access.job_for(request, job_id)
        if row.state != "done":
            raise HttpError(
                409,
                "not_done",
                f"the job is {row.state}, and has no result",
                "Ask again when it is done; GET /api/jobs/{id} shows its state.",
            )
        body = row.result if row.result is not None else "null"
        return Response(body.encode(), 200, HEADERS, media_type="application/json")

    @router.post(
        "/api/jobs/{job_id}/cancel",
        summary="Cancel a job",
        description="At once if it waits; by its worker if it runs (`cancel` is true until then).",
        responses={200: {"model": schema.JobView}, **errors(404, 409)},
    )
    async def cancel(request: Request, job_id: str) -> Response:
        who = await controller.access.caller(request, *STEER)
        row = await controller.jobs.cancel(checked_id(job_id, "job"))
        if row is None:
            raise no_such("job", job_id)
        if row.state in ("done", "dead"):
            raise HttpError(
                409, "ended", f"the job is {row.state}; there is nothing to cancel", "Leave it."
            )
        if row.state == "leased":
            controller.sockets.cancel(row.worker_id, row.id)
        await controller.access.note(request, who, "job.cancel", row.id)
        return answer(await view(row))

    @router.post(
        "/api/jobs/{job_id}/retry",
        summary="Run a job again that is done, dead or cancelled",
        responses={200: {"model": schema.JobView}, **errors(404, 409)},
    )
    async def retry(request: Request, job_id: str) -> Response:
        who = await controller.access.caller(request, *STEER)
        await controller.check_files()
        row = await controller.jobs.retry(checked_id(job_id, "job"))
        if row is None:
            now = await storage.job(job_id)
            if now is None:
                raise no_such("job", job_id)
            raise HttpError(
                409, "not_ended", f"the job is {now.state}, and has not ended",
                "Cancel it first, or wait.",
            )  # fmt: skip
        await controller.access.note(request, who, "job.retry", row.id)
        return answer(await view(row))

    @router.post(
        "/api/jobs/{job_id}/heartbeat",
        summary="Keep a job that one runs, and report progress",
        responses={200: {"model": schema.HeartbeatAnswer}, **errors(400, 404, 409, 413, 422)},
        openapi_extra=body_of(schema.Heartbeat, required=False),
    )
    async def heartbeat(request: Request, job_id: str) -> Response:
        known, _ = await controller.access.run_for(request, job_id)
        given = await read_object(request, options.body_limit, ("progress", "message"))
        said = RunProgress(job_id, progress_of(given), text_of(given, "message"))
        await controller.runs.read(known, afresh=True)
        heard = await controller.runs.keep(known, [said], complete=False)
        if job_id in heard.lost:
            raise lease_lost((job_id,))
        left = round(controller.runs.left(known, job_id), 3)
        return answer({"cancel": job_id in heard.cancel, "lease_s": left})

    return router
