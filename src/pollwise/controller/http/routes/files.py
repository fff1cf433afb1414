"""`/api/jobs/{id}/artefacts` and `/inputs`: upload and download of files."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.answers import no_such
from pollwise.controller.http.requests import (
    HEADERS,
    answer,
    declared_length,
    pieces,
    plain_only,
    range_answer,
)
from pollwise.controller.http.schema import described, errors
from pollwise.controller.http.views import row_view
from pollwise.controller.state.values import ArtefactRow
from pollwise.controller.terms import JobTerms
from pollwise.runtime.jobs import JobInfo

_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def routes(controller: Controller) -> APIRouter:
    router = APIRouter(tags=["files"])
    artefacts = controller.artefacts

    def folder(info: JobInfo, *, input: bool) -> str:
        inputs = JobTerms.of(info.job).inputs or ""
        return inputs if input else controller.jobs.folder_of(info.job.id)

    async def listed(request: Request, job_id: str, *, input: bool) -> Response:
        info = await controller.access.job_for(request, job_id)
        found = await artefacts.list(folder(info, input=input), input=input)
        return answer({"artefacts": [row_view(each, schema.ArtefactView) for each in found]})

    @router.get(
        "/api/jobs/{job_id}/artefacts",
        **described("List the artefacts of a job", schema.ArtefactList, 404),
    )
    async def list_artefacts(request: Request, job_id: str) -> Response:
        return await listed(request, job_id, input=False)

    @router.get(
        "/api/jobs/{job_id}/inputs",
        **described("List the inputs of a job", schema.ArtefactList, 404),
    )
    async def list_inputs(request: Request, job_id: str) -> Response:
        return await listed(request, job_id, input=True)

    sent: dict[int | str, dict[str, Any]] = {
        200: {"content": _BYTES},
        206: {"content": _BYTES, "description": "A range of it (Range)."},
        304: {"description": "Unchanged (If-None-Match)."},
        **errors(404, 410, 416),
    }

    @router.head(
        "/api/jobs/{job_id}/artefacts/{name:path}",
        summary="Size and checksum of an artefact",
        operation_id="head_artefact",
        responses={200: {"description": "Its size and checksum."}, **errors(404)},
    )
    @router.get(
        "/api/jobs/{job_id}/artefacts/{name:path}",
        summary="Download an artefact",
        operation_id="get_artefact",
        responses=sent,
    )
    async def get_artefact(request: Request, job_id: str, name: str) -> Response:
        return await fetched(request, job_id, name, input=False)

    @router.head(
        "/api/jobs/{job_id}/inputs/{name:path}",
        summary="Size and checksum of an input",
        operation_id="head_input",
        responses={200: {"description": "Its size and checksum."}, **errors(404)},
    )
    @router.get(
        "/api/jobs/{job_id}/inputs/{name:path}",
        summary="Download an input",
        operation_id="get_input",
        responses=sent,
    )
    async def get_input(request: Request, job_id: str, name: str) -> Response:
        return await fetched(request, job_id, name, input=True)

    async def fetched(request: Request, job_id: str, name: str, *, input: bool) -> Response:
        info = await controller.access.job_for(request, job_id)
        found = await artefacts.find(folder(info, input=input), name, input=input)
        if found is None:
            raise no_such("input" if input else "artefact", name)
        etag = f'"{found.sha256}"'
        headers = {**HEADERS, **_headers(found), "ETag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(b"", 304, headers)
        if request.method == "HEAD":
            headers["Content-Length"] = str(found.size)
            return Response(None, 200, headers, media_type=found.content_type)
        return await range_answer(
            request, found.size, partial(artefacts.read, found), found.content_type, headers
        )

    @router.put(
        "/api/jobs/{job_id}/artefacts/{name:path}",
        **described("Upload an artefact", schema.ArtefactView, 404, 409, 413, 422, 507, status=201),
        description="By the worker that has the job. `X-Checksum-SHA256` is checked if it is sent.",
        openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
    )
    async def put_artefact(request: Request, job_id: str, name: str) -> Response:
        known, run = await controller.access.run_for(request, job_id)
        plain_only(request.headers.get("content-encoding"))
        await controller.runs.keep(known, {job_id: None}, complete=False)
        kept = await artefacts.save(
            controller.jobs.folder_of(run.job_id),
            name,
            pieces(request, artefacts.limit),
            sha256=request.headers.get("x-checksum-sha256"),
            content_type=request.headers.get("content-type"),
            length=declared_length(request),
            by=f"worker:{known.id}",
        )
        return answer(row_view(kept, schema.ArtefactView), 201)

    return router


def _headers(row: ArtefactRow) -> dict[str, str]:
    """Headers that make a browser save the file, and never run it."""
    name = quote(row.name.rpartition("/")[2], safe="")
    return {
        "X-Checksum-SHA256": row.sha256,
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": "sandbox",
    }
