"""The routes of a queue that are about the queue and its workers: pauses, records, history."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from pollwise.controller.http.queues.bodies import seconds_from
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.http import wire
from pollwise.queues.presence import WorkerInfo
from pollwise.runtime.jobs import NAME_LENGTH_MAX, checked_name
from pollwise.runtime.rollups.rows import HistoryRow

#: The longest time until a worker's record expires, in seconds.
TTL_MAX = 86400.0
#: The longest name of an instance, in characters.
INSTANCE_MAX = 64


async def pause(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    by = body.get("by") or who
    await queue.pause(_kind_from(body), by=by, why=body.get("why", ""))
    return {}


async def resume(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    return {"resumed": await queue.resume(_kind_from(body))}


async def pauses(queue: Queue, *_: object) -> Any:
    found = await queue.paused()
    return {"pauses": [{"kind": kind, **asdict(each)} for kind, each in found.items()]}


async def workers(queue: Queue, *_: object) -> Any:
    return {"workers": [info.to_value() for info in await queue.workers()]}


async def concurrency(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    worker, number = body.get("worker"), body.get("concurrency")
    if not isinstance(worker, str) or not isinstance(number, int):
        raise ConfigError("worker must be the name of a worker, and concurrency a whole number")
    return {"workers": await queue.set_concurrency(worker, number)}


async def record_worker(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    ttl = min(seconds_from(body.get("ttl"), "ttl"), TTL_MAX)
    info = _worker_from(body)
    concurrency = await queue.record_worker(info, ttl, _rows_from(queue, info, body))
    return {"concurrency": concurrency, "schedules": queue.schedules.stamp}


async def forget_worker(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    info = _worker_from(body)
    await queue.forget_worker(info, _rows_from(queue, info, body))
    return {}


async def history(queue: Queue, request: Request, _: dict[str, Any], who: str) -> Any:
    asked = request.query_params
    by: Any = asked.get("by")  # `history` checks it
    points = await queue.history(
        asked.get("since", "24h"), asked.getlist("kind") or None, by, worker=asked.get("worker")
    )
    return {"points": [wire.point_to(each) for each in points]}


async def paces(queue: Queue, *_: object) -> Any:
    return {"paces": [[each.key, json.dumps(each.state)] for each in await queue.paces()]}


async def fold_history(queue: Queue, *_: object) -> Any:
    return {"more": queue.capabilities.history and await queue.fold_history()}


def _kind_from(body: dict[str, Any]) -> str | None:
    kind = body.get("kind")
    if kind is not None and (not isinstance(kind, str) or len(kind) > NAME_LENGTH_MAX):
        raise ConfigError(
            f"kind must be text of at most {NAME_LENGTH_MAX} characters, or null for the queue"
        )
    return kind


def _rows_from(queue: Queue, info: WorkerInfo, body: dict[str, Any]) -> list[HistoryRow]:
    """The rows of history and paces that came with a worker's record; none if the store keeps
    none."""
    rows = wire.rows_from(body.get("history") or [], info.note_name)
    rows += wire.paces_from(body.get("paces") or [])
    return rows if queue.capabilities.history else []


def _worker_from(body: dict[str, Any]) -> WorkerInfo:
    info = WorkerInfo.from_value(body.get("worker"))
    if info is None:
        raise ConfigError("worker must be an object that describes a worker, with its name")
    checked_name(info.name, "worker", ConfigError)
    if not info.instance.isalnum() or len(info.instance) > INSTANCE_MAX:
        raise ConfigError(
            f"instance = {info.instance[:40]!r} must be 1 to {INSTANCE_MAX} letters and digits"
        )
    return info
