"""The routes of a queue's limits. A worker may read them: only an operator sets them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.limits.record import KindLimits, checked_note
from pollwise.queues.limits.use import LimitUse
from pollwise.runtime.jobs import checked_name

#: The fields of a call that sets limits.
LIMIT_FIELDS = ("kind", "value")


async def limits(queue: Queue, *_: object) -> Any:
    found = await queue.limits.list()
    return {"limits": [{"kind": each.kind, "value": each.to_note()} for each in found]}


async def limit_use(queue: Queue, request: Request, _: dict[str, Any], who: str) -> Any:
    asked = request.query_params
    groups = asked.get("groups", "0")
    if not groups.isdecimal() or len(groups) > 9:
        raise ConfigError(f"groups = {groups[:40]!r} must be a whole number")
    kind = checked_name(asked.get("kind"), "kind", ConfigError)
    found = await queue.limits.use(kind, groups=int(groups))
    return {"use": [_use_to(each) for each in found]}


async def set_limits(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    unknown = [name for name in body if name not in LIMIT_FIELDS]
    if unknown:
        raise ConfigError(
            f"set-limits has no field {unknown[0][:40]!r}; the fields are {', '.join(LIMIT_FIELDS)}"
        )
    kind = checked_name(body.get("kind"), "kind", ConfigError)
    if "value" not in body:
        raise ConfigError("set-limits needs a `value`: the value of limits, or null to remove them")
    value = body["value"]
    if value is None:
        return {"done": await queue.limits.remove(kind)}
    await queue.limits.keep(_limits_from(kind, value))
    return {"done": True}


def _use_to(use: LimitUse) -> dict[str, Any]:
    said = asdict(use)
    return {**said, "limits": {"kind": use.limits.kind, "value": use.limits.to_note()}}


def _limits_from(kind: str, value: object) -> KindLimits:
    what = f"value = {shown(value)} of the kind {kind!r} is not the value of limits"
    if not isinstance(value, str):
        raise ConfigError(f"{what}: it is not text")
    try:
        return checked_note(kind, value)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
