"""The routes of a queue's schedules. A worker may only put ticks, whose jobs the store defines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.notes import NOTE_VALUE_MAX
from pollwise.runtime.jobs import checked_name


async def schedules(queue: Queue, *_: object) -> Any:
    kept = await queue.schedules.read()
    listed = [{"name": name, "value": value} for name, value in kept.notes.items()]
    return {"schedules": listed, "stamp": kept.stamp}


async def set_schedule(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    values = _value_from(body, "expected"), _value_from(body, "value")
    done = await queue.schedules.swap_given(_name_from(body), *values)
    return {"done": done.done, "value": done.value}


async def run_schedule(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    expected = _value_from(body, "expected")
    if expected is None:
        raise ConfigError("expected must be the value of the schedule")
    done = await queue.schedules.run_given(_name_from(body), expected)
    return {"done": done.done, "value": done.value, "job": done.job}


async def tick(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    value = _value_from(body, "value")
    if value is None:
        raise ConfigError("value must be the value of the schedule")
    undeclared = body.get("undeclared") is True
    return asdict(await queue.schedules.put_tick(_name_from(body), value, undeclared=undeclared))


def _name_from(body: dict[str, Any]) -> str:
    return checked_name(body.get("name"), "name", ConfigError)


def _value_from(body: dict[str, Any], field: str) -> str | None:
    value = body.get(field)
    if value is not None and (not isinstance(value, str) or len(value) > NOTE_VALUE_MAX):
        raise ConfigError(f"{field} must be null or text of at most {NOTE_VALUE_MAX} characters")
    return value
