"""`/api/jobs`: put, list, cancel, retry, heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.files.uploads import UploadedFiles, receive_multipart
from pollwise.controller.http import schema
from pollwise.controller.http.access import SEE
from pollwise.controller.http.answers import HttpError, error_for, invalid, lease_lost, no_such
from pollwise.controller.http.requests import (
    PAGE,
    AfterJobs,
    Limit,
    answer,
    is_id,
    parsed,
    read_body,
    read_model,
)
from pollwise.controller.http.schema import described
from pollwise.controller.http.views import attempt_view, job_view, whos_in
from pollwise.controller.jobs import PUT_MAX, BadJobs, new_job
from pollwise.controller.security.auth import Caller
from pollwise.controller.state.base import new_id
from pollwise.controller.terms import JobTerms
from pollwise.controller.workers.matching import MARK, checked_kind
from pollwise.queues.base import Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.http import address_of
from pollwise.runtime.jobs import JobInfo

#: How many jobs are read at a time to find those of a token, and at most for one page.
SCAN = 200
SCANNED_MAX = 2000

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
_JOB = {"$ref": "#/components/schemas/NewJobBody"}
_LIST: dict[str, Any] = {
    "type": "array",
    "items": _JOB,
    "minItems": 1,
    "maxItems": PUT_MAX,
}


def routes(controller: Controller) -> APIRouter:
    router = APIRouter(tags=["jobs"])
    options, registry, queue = controller.options, controller.registry, controller.queue

    async def view(
        info: JobInfo, names_of: Mapping[str, str] | None = None, *, brief: bool = False
    ) -> dict[str, Any]:
        if names_of is None:
            names_of = await controller.names.of(whos_in(info))
        terms = JobTerms.of(info.job, options.attempts)
        waiting = None
        if info.state == "ready":
            waiting = await registry.waiting_for(terms.kind, terms.requires)
        names: list[str] = []
        if terms.inputs is not None:
            found = await controller.artefacts.list(terms.inputs, input=True)
            names = [each.name for each in found]
        return job_view(info, terms, names, waiting, names=names_of, brief=brief)

    either: Any = schema.JobView | schema.JobsPut
    about_put = described(
        "Put a job, or a list", either, 409, 507, status=201, body=schema.NewJobBody
    )
    about_put["responses"][200] = {"model": either, "description": "It was put before."}
    about_put["openapi_extra"]["requestBody"]["content"] = {
        "application/json": {"schema": {"anyOf": [_JOB, _LIST]}},
        "multipart/form-data": _MULTIPART,
    }

    @router.post(
        "/api/jobs",
        **about_put,
        description="JSON; or multipart, with the JSON in the part `job` and files as inputs. "
        "A job whose `unique` exists already is answered with 200. A list of up to "
        f"{PUT_MAX:,} jobs is put in one transaction, all or none: the answer has their ids, and "
        "an error has `items`, the index of each bad job.",
    )
    async def put(request: Request) -> Response:
        who = await controller.access.caller(request, "put")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            async with receive_multipart(request, controller, who.who) as (given, files):
                return await put_job(request, who, parsed(given), files)
        given = parsed(await read_body(request, options.body_limit) or b"null")
        if isinstance(given, list):
            return await put_all(request, who, given)
        return await put_job(request, who, given, None)

    async def put_all(request: Request, who: Caller, given: list[Any]) -> Response:
        await controller.check_files()
        try:
            ids, fresh = await controller.jobs.put_all(given, options, who.who, request.headers)
        except BadJobs as error:
            refused = error_for(error.conflict or error)
            advice = "Correct these jobs and send the whole list again."
            raise HttpError(
                refused.status, refused.code, str(error), advice, items=error.items
            ) from None
        if fresh:
            what = ids[0] if len(ids) == 1 else f"{ids[0]}..{ids[-1]}"
            kinds = sorted({str(each["kind"]) for each in given})
            detail = f"{fresh} new of {len(ids)} jobs: {', '.join(kinds)}"
            controller.note_put(who.label, what, detail, address_of(request.scope))
        return answer({"ids": ids, "fresh": fresh}, 201 if fresh else 200)

    async def put_job(
        request: Request, who: Caller, given: Any, files: UploadedFiles | None
    ) -> Response:
        inputs = None if files is None else new_id(controller.clock)
        new = new_job(given, options, who.who, inputs, request.headers)
        await controller.check_files()
        info, fresh = await controller.jobs.put(new, None if files is None else files.store)
        job = info.job
        if not who.may_see(info):  # the view would show the job of another token
            raise HttpError(
                409, "unique_conflict", f"unique = {job.unique!r} is taken by a job that is not "
                "yours; nothing was put", "Choose another `unique`.",
            )  # fmt: skip
        if fresh:
            kind = JobTerms.of(job).kind
            controller.note_put(who.label, job.id, kind, address_of(request.scope))
        return answer(await view(info), 201 if fresh else 200, {"Location": f"/api/jobs/{job.id}"})

    @router.get(
        "/api/jobs",
        **described("List jobs", schema.PutJobs, 422),
        description="One state after the other: leased jobs, ready, delayed and blocked ones, then "
        "ended ones, the newest first; Redis, memory and object stores show the newest put first. "
        "A page examines a limited number of jobs, so it can be shorter than `limit`. A token with "
        "the scope `put` sees the jobs that it put, unless it was made for all jobs. `next` is "
        "null at the end.",
    )
    async def list_jobs(
        request: Request,
        state: schema.JobState | None = None,
        kind: str | None = None,
        worker: str | None = None,
        limit: Limit = PAGE,
        after: AfterJobs = None,
    ) -> Response:
        who = await controller.access.caller(request, *SEE, "own")
        kinds: list[str] | None = None
        if kind is not None:
            checked_kind(kind)
            required = registry.required(kind)
            kinds = [kind, *(f"{kind}{MARK}{each.hash}" for each in required if each.hash)]
        if who.worker_id is not None:
            worker = who.worker_id  # a worker sees only its own jobs
        elif worker is not None and not is_id(worker):
            raise invalid("worker must be the id of a worker")
        chosen = JobFilter(state, None if kinds is None else tuple(kinds), worker)
        page, following = await _page(queue, chosen, who, limit, after)
        names = await controller.names.of(who for info in page for who in whos_in(info))
        views = [await view(info, names, brief=True) for info in page]
        return answer({"jobs": views, "next": following})

    @router.get("/api/jobs/{job_id}", **described("Show a job", schema.JobView, 404))
    async def get_job(request: Request, job_id: str) -> Response:
        return answer(await view(await controller.access.job_for(request, job_id)))

    @router.get(
        "/api/jobs/{job_id}/attempts",
        **described("The attempts of a job, with their parts of the log", schema.AttemptList, 404),
        description="As far as they are kept: the last errors, the last run, and every run that "
        "wrote to the log. `GET /api/jobs/{id}/logs?attempt=2` reads the log of one.",
    )
    async def attempts(request: Request, job_id: str) -> Response:
        info = await controller.access.job_for(request, job_id)
        most = JobTerms.of(info.job, options.attempts).attempts
        found = await controller.logs.attempts(info, most)
        names = await controller.names.of(
            [*whos_in(info), *(f"worker:{each.worker}" for each in found)]
        )
        return answer({"attempts": [attempt_view(each, names) for each in found]})

    @router.get(
        "/api/jobs/{job_id}/result",
        summary="The result of a job",
        responses={200: {"description": "The result, as JSON."}, **schema.errors(404, 409)},
    )
    async def result(request: Request, job_id: str) -> Response:
        info = await controller.access.job_for(request, job_id)
        if info.state != "done":
            raise HttpError(
                409,
                "not_done",
                f"the job is {info.state}, and has no result",
                "Ask again when it is done; GET /api/jobs/{id} shows its state.",
            )
        return answer(info.result)

    @router.post(
        "/api/jobs/{job_id}/cancel",
        **described("Cancel a job", schema.JobView, 404, 409),
        description="At once if it waits; by its worker if it runs (`cancel` is true until then).",
    )
    async def cancel(request: Request, job_id: str) -> Response:
        who = await controller.access.steered(request, job_id)
        info = await controller.jobs.cancel(job_id)
        if info is None:
            raise no_such("job", job_id)
        if info.state in ("done", "dead"):
            raise HttpError(
                409, "ended", f"the job is {info.state}; there is nothing to cancel", "Leave it."
            )
        if info.state == "leased":
            controller.sockets.cancel(info.worker, job_id)
        kind = JobTerms.of(info.job).kind
        await controller.access.note(request, who, "job.cancel", job_id, kind)
        return answer(await view(info))

    @router.post(
        "/api/jobs/{job_id}/retry",
        **described("Run a done, dead or cancelled job again", schema.JobView, 404, 409),
    )
    async def retry(
        request: Request,
        job_id: str,
        anyway: Annotated[
            bool,
            Query(description="Also if its failure has started jobs of `on_failure`."),
        ] = False,
    ) -> Response:
        who = await controller.access.steered(request, job_id)
        await controller.check_files()
        retried = await controller.jobs.retry(job_id, anyway=anyway)
        info = await queue.get(job_id)
        if info is None:
            raise no_such("job", job_id)
        if not retried:
            raise HttpError(
                409, "not_ended", f"the job is {info.state}, and has not ended",
                "Cancel it first, or wait.",
            )  # fmt: skip
        kind = JobTerms.of(info.job).kind
        await controller.access.note(request, who, "job.retry", job_id, kind)
        return answer(await view(info))

    @router.post(
        "/api/jobs/{job_id}/heartbeat",
        **described(
            "Keep a running job, and report progress",
            schema.HeartbeatAnswer,
            404,
            409,
            body=schema.Heartbeat,
        ),
    )
    async def heartbeat(request: Request, job_id: str) -> Response:
        known, run = await controller.access.run_for(request, job_id)
        given = await read_model(request, options.body_limit, schema.Heartbeat)
        running = {job_id: given.as_progress()}
        lost, cancel = await controller.runs.keep(known, running, complete=False)
        if job_id in lost:
            raise lease_lost((job_id,))
        left = round(controller.runs.left(run), 3)
        return answer({"cancel": job_id in cancel, "lease_s": left})

    return router


async def _page(
    queue: Queue, chosen: JobFilter, who: Caller, limit: int, after: str | None
) -> tuple[list[JobInfo], str | None]:
    """A page of the jobs that the caller may see, and where the next one begins.

    The store does not know who put a job. So for a caller that sees only its own, several pages are
    read, and those of their jobs that are its own are shown.
    """
    if not who.owns_only:
        page = await queue.page(replace(chosen, limit=limit, after=after))
        return page.jobs, page.next
    found: list[JobInfo] = []
    for _ in range(SCANNED_MAX // SCAN):
        page = await queue.page(replace(chosen, limit=SCAN, after=after))
        places = [n for n, info in enumerate(page.jobs, 1) if who.may_see(info)]
        left = limit - len(found)
        if len(places) >= left:  # read again up to the last that is shown: so `next` is its place
            page = await queue.page(replace(chosen, limit=places[left - 1], after=after))
        found += [info for info in page.jobs if who.may_see(info)]
        after = page.next
        if after is None or len(found) >= limit:
            break
    return found, after
