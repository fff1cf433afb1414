"""The routes of a queue that show jobs and count them, and that retry or drop them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from pollwise.controller.http.answers import encoded
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.flows.view import FLOW_SHOWN_MAX
from pollwise.queues.http import wire
from pollwise.queues.http.flows import flow_to, predecessors_to
from pollwise.queues.views import COUNTED_MAX, MEASURED_MAX, BulkDone
from pollwise.queues.waiting import ENDINGS
from pollwise.runtime.store import MAX_BATCH, checked_batch

#: The maximum size of a page of jobs, in bytes: their errors can be long.
PAGE_BYTES_MAX = 4 * 1024 * 1024
#: An answer about endings has no further results after this many bytes; the client asks again.
ENDINGS_BYTES_MAX = 16 * 1024 * 1024
#: How many endings are read at first, and while results are large: up to 1 MiB each.
ENDINGS_FIRST = 10
#: The parameters of the query for arrivals.
ARRIVALS = ("limit", "after")


async def stats(queue: Queue, request: Request, *_: object) -> Any:
    by = request.query_params.get("by")
    most = _most(request.query_params.get("most"))
    if by is None:
        return (await queue.stats(most)).to_value()
    if by != "kind":
        raise ConfigError(f"by = {by[:40]!r} must be 'kind', or left out")
    kinds = await queue.stats_by_kind(most)
    return {"kinds": {kind: counts.to_value() for kind, counts in kinds.items()}}


def _most(text: str | None) -> int:
    if text is None:
        return COUNTED_MAX
    if not (text.isdecimal() and text.isascii() and len(text) < 10 and int(text) >= 1):
        raise ConfigError(f"most = {text[:40]!r} must be a number from 1 to 999999999")
    return min(int(text), MEASURED_MAX)


async def arrivals(queue: Queue, request: Request, *_: object) -> Any:
    asked = wire.filter_from(_query(request.query_params))
    found = [wire.info_to(each) for each in await queue.arrivals(asked.after, asked.limit)]
    return {"jobs": found[: _fitting(found)]}


async def jobs(queue: Queue, request: Request, *_: object) -> Any:
    chosen = wire.filter_from(_query(request.query_params))
    found = await queue.page(chosen)
    jobs = [wire.info_to(each) for each in found.jobs]
    if (fitting := _fitting(jobs)) < len(jobs):  # read again, so that `next` is the right place
        found = await queue.page(replace(chosen, limit=fitting))
        jobs = [wire.info_to(each) for each in found.jobs]
    return {"jobs": jobs, "next": found.next, "examined": found.examined}


def _fitting(jobs: list[wire.Wire]) -> int:
    """How many of these jobs fit into PAGE_BYTES_MAX; at least one."""
    size = 0
    for n, each in enumerate(jobs):
        size += len(encoded(each))
        if size > PAGE_BYTES_MAX:
            return max(n, 1)
    return len(jobs)


async def job(queue: Queue, request: Request, *_: object) -> Any:
    info = await queue.get(request.path_params["job_id"])
    return {"job": None if info is None else wire.info_to(info)}


async def endings(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    ids = wire.names_from(body.get("ids"), "ids")
    if ids is None:
        raise ConfigError("ids must be a list of job ids")
    checked_batch(ids, "endings")
    queue.hints().announce(ENDINGS)  # for the client, who gets it through a WebSocket
    found: dict[str, Any] = {}
    size, at, step = 0, 0, ENDINGS_FIRST
    while at < len(ids) and size < ENDINGS_BYTES_MAX:
        part = wire.endings_to(await queue.endings(ids[at : at + step]))
        found |= part
        size += len(encoded(part))
        at, step = at + step, step * 2 if size < ENDINGS_BYTES_MAX // 16 else ENDINGS_FIRST
    return {"endings": found, "rest": ids[at:]}


async def predecessors(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    return {"predecessors": predecessors_to(await queue._predecessors(_id_in(body)))}


async def flow(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    most = body.get("most", FLOW_SHOWN_MAX + 1)
    if type(most) is not int or not 1 <= most <= MAX_BATCH:
        raise ConfigError(f"most = {most!r} must be a whole number from 1 to {MAX_BATCH}")
    return {"jobs": flow_to(await queue._flow(_id_in(body), most))}


def _id_in(body: Mapping[str, Any]) -> str:
    job_id = body.get("id")
    if not isinstance(job_id, str):
        raise ConfigError("id must be text: the id of a job")
    return job_id


async def retry(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    anyway = body.get("anyway", False)
    if not isinstance(anyway, bool):
        raise ConfigError(f"anyway = {anyway!r} must be true or false")
    if body.get("filter") is not None:
        chosen = wire.filter_from(chosen_in(body))
        return bulk_to(await queue.retry(chosen, anyway=anyway))
    return {"count": await queue.retry(wire.names_from(body.get("ids"), "ids"), anyway=anyway)}


async def drop(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    if body.get("filter") is not None:
        return bulk_to(await queue.drop(wire.filter_from(chosen_in(body))))
    return {"count": await queue.drop(wire.names_from(body.get("ids"), "ids"))}


async def cancel(queue: Queue, body: dict[str, Any]) -> Any:
    if body.get("filter") is not None:
        return bulk_to(await queue.cancel(wire.filter_from(chosen_in(body))))
    ids = wire.names_from(body.get("ids"), "ids")
    if ids is None:
        raise ConfigError("ids must be a list of job ids to cancel")
    return {"states": await queue.cancel(ids)}


def bulk_to(done: BulkDone) -> dict[str, Any]:
    return {"count": done.count, "next": done.next}


def chosen_in(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The filter in the body of a bulk action."""
    if body.get("ids") is not None:
        raise ConfigError("give ids or a filter, not both")
    chosen = body["filter"]
    if not isinstance(chosen, dict):
        raise ConfigError('filter must be an object, such as {"state": "dead", "kind": ["mail"]}')
    return chosen


def _query(given: QueryParams) -> dict[str, Any]:
    asked: dict[str, Any] = {name: given[name] for name in wire.FILTER if name in given}
    if "kind" in asked:
        asked["kind"] = given.getlist("kind")
    return asked
