"""Handlers in a process that note and set a context variable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

from pollwise import Job, Worker, from_context

worker = Worker("memory://")
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
region: ContextVar[str] = ContextVar("region", default="nowhere")


@worker.context
async def shared() -> AsyncIterator[str]:
    token = region.set("north")
    yield "shared"
    region.reset(token)


def note(job: Job) -> list[str]:
    found = [tenant.get(), region.get()]
    tenant.set(job.id)
    return found


@worker.handle("plain", process=True, result_ttl="1h")
def plain(job: Job, shared: str = from_context) -> list[str]:
    return note(job)


@worker.handle("async", process=True, result_ttl="1h")
async def waiting(job: Job, shared: str = from_context) -> list[str]:
    return note(job)
