"""The routes of a queue's breakers: workers share them, and an operator may close one."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import checked_name


async def breakers(queue: Queue, *_: object) -> Any:
    found = await queue.breakers.read()
    return {"breakers": [{"kind": kind, "value": value} for kind, value in found.items()]}


async def swap_breaker(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    kind = checked_name(body.get("kind"), "kind", ConfigError)
    expected, value = body.get("expected"), body.get("value")
    for name, text in (("expected", expected), ("value", value)):
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"{name} = {text!r} must be text as /breakers shows it, or null")
    done, now = await queue.breakers.swap(kind, expected, value)
    return {"done": done, "value": now}


async def close_breaker(queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
    kind = checked_name(body.get("kind"), "kind", ConfigError)
    return {"closed": await queue.breakers.close(kind)}
