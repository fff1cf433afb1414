"""`/api/jobs`: submit, look, cancel, retry, keep alive."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from pollwise.controller.controller import Controller, address_of
from pollwise.controller.files.uploads import Files, receive_multipart
from pollwise.controller.http import schema
from pollwise.controller.http.answers import Refused, lease_lost, no_such
from pollwise.controller.http.poll import progress_of, text_of
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
from pollwise.controller.http.schema import body_of, errors
from pollwise.controller.http.views import job_view
from pollwise.controller.jobs import spec_from
from pollwise.controller.security.auth import Caller
from pollwise.controller.state.values import STATUSES, JobRow
from pollwise.controller.workers.matching import checked_kind
from pollwise.controller.workers.reports import Progress

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
    options, registry, state = controller.options, controller.registry, controller.state

    async def view(row: JobRow) -> dict[str, Any]:
        waiting = await registry.waiting_for(row) if row.status == "queued" else None
        return job_view(row, waiting)

    @router.post(
        "/api/jobs",
        status_code=201,
        summary="Submit a job",
        description="JSON; or multipart, with the JSON in the part `job` and files as inputs. "
        "One whose `unique` is known already is answered with 200.",
        responses={
            201: {"model": schema.JobView},
            200: {"model": schema.JobView, "description": "It was submitted before."},
            **errors(400, 409, 413, 422, 507),
        },
        openapi_extra=body_of(schema.NewJob, also={"multipart/form-data": _MULTIPART}),
    )
    async def submit(request: Request) -> Response:
        who = await controller.caller(request, "submit")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            async with receive_multipart(request, controller, who.who) as (given, files):
                return await submitted(request, who, parsed(given), files)
        body = await read_body(request, options.body_limit)
        return await submitted(request, who, parsed(body or b"null"), None)

    async def submitted(request: Request, who: Caller, given: Any, files: Files | None) -> Response:
        spec = spec_from(given, options, () if files is None else files.names)
        await controller.can_keep()
        store = None if files is None else files.store
        row, fresh = await controller.jobs.submit(spec, who.who, store, address_of(request))
        return answer(await view(row), 201 if fresh else 200, {"Location": f"/api/jobs/{row.id}"})

    @router.get(
        "/api/jobs",
        summary="List jobs, newest first",
        responses={200: {"model": schema.JobPage}, **errors(422)},
    )
    async def list_jobs(
        request: Request,
        status: str | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: Limit = None,
        after: After = None,
    ) -> Response:
        who = await controller.caller(request, "submit", "own")
        if status is not None and status not in STATUSES:
            raise invalid(f"status = {status[:40]!r} is none of {', '.join(STATUSES)}")
        if kind is not None:
            kind = checked_kind(kind)
        if who.worker_id is not None:
            worker = who.worker_id  # a worker sees its own jobs, and no others
        elif worker is not None and not is_id(worker):
            raise invalid("worker must be the id of a worker")
        most = page_limit(limit)
        rows = await state.list_jobs(
            status=status,
            kind=kind,
            worker=worker,
            limit=most,
            after=page_after(after),
        )
        views = [await view(row) for row in rows]
        return answer({"jobs": views, "next": rows[-1].id if len(rows) == most else None})

    @router.get(
        "/api/jobs/{job_id}",
        summary="Look at a job",
        responses={200: {"model": schema.JobView}, **errors(404)},
    )
    async def get_job(request: Request, job_id: str) -> Response:
        return answer(await view(await controller.job_for(request, job_id)))

    @router.get(
        "/api/jobs/{job_id}/result",
        summary="The result of a job",
        responses={200: {"description": "The result, as JSON."}, **errors(404, 409)},
    )
    async def result(request: Request, job_id: str) -> Response:
        row = await controller.job_for(request, job_id)
        if row.status != "done":
            raise Refused(
                409,
                "not_done",
                f"the job is {row.status}, and has no result",
                "Ask again when it is done; GET /api/jobs/{id} says how it is.",
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
        who = await controller.caller(request, "submit")
        row = await controller.jobs.cancel(checked_id(job_id, "job"))
        if row is None:
            raise no_such("job", job_id)
        if row.status in ("done", "dead"):
            raise Refused(
                409, "ended", f"the job is {row.status}; there is nothing to cancel", "Leave it."
            )
        if row.status == "running":
            controller.pushes.cancel(row.worker_id, row.id)
        await controller.note(request, who, "job.cancel", row.id)
        return answer(await view(row))

    @router.post(
        "/api/jobs/{job_id}/retry",
        summary="Run a job again that is done, dead or cancelled",
        responses={200: {"model": schema.JobView}, **errors(404, 409)},
    )
    async def retry(request: Request, job_id: str) -> Response:
        who = await controller.caller(request, "submit")
        await controller.can_keep()
        row = await controller.jobs.retry(checked_id(job_id, "job"))
        if row is None:
            now = await state.job(job_id)
            if now is None:
                raise no_such("job", job_id)
            raise Refused(
                409, "not_ended", f"the job is {now.status}, and not at its end",
                "Cancel it first, or wait.",
            )  # fmt: skip
        await controller.note(request, who, "job.retry", row.id)
        return answer(await view(row))

    @router.post(
        "/api/jobs/{job_id}/heartbeat",
        summary="Still at it",
        responses={200: {"model": schema.HeartbeatAnswer}, **errors(400, 404, 409, 413, 422)},
        openapi_extra=body_of(schema.Heartbeat, required=False),
    )
    async def heartbeat(request: Request, job_id: str) -> Response:
        known, _ = await controller.run_for(request, job_id)
        given = await read_object(request, options.body_limit, ("progress", "message"))
        said = Progress(job_id, progress_of(given), text_of(given, "message"))
        await controller.runs.read(known, afresh=True)
        heard = await controller.runs.keep(known, [said], complete=False)
        if job_id in heard.lost:
            raise lease_lost((job_id,))
        left = round(controller.runs.left(known, job_id), 3)
        return answer({"cancel": job_id in heard.cancel, "lease_s": left})

    return router
