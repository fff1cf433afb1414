"""What a worker holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from pollwise.runtime.executor.handlers import Handler
from pollwise.runtime.jobs import Claim


@dataclass(slots=True, eq=False)
class Held:
    """A claimed job, until it is settled.

    due: when it was due, in the event loop's time.
    trial: it is the one job that a half-open breaker lets through.
    ended: why its handler was cancelled, or is no longer listened to.
    """

    claim: Claim
    handler: Handler
    due: float
    trial: bool = False
    task: asyncio.Task[None] | None = None
    began: bool = False
    ended: Literal["", "stop", "lost"] = ""
