from __future__ import annotations

import asyncio
import shutil

from pollwise.errors import ProbeError
from pollwise.fleet import ProbeContext, ProbeOptions, Reading, Target


class DiskProbe:
    """Whether a disk has free space. Options: path, and low, the size below which it is low."""

    #: For conditions of alerts, such as "free_mb < 500", and for the pages of a fleet.
    FACTS = {
        "value": "`ok`, or `low` when less than `low` is free",
        "free_mb": "free space in megabytes",
    }

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._path = options.text("path", needed=True)
        self._low = options.size("low", 1024**3)
        options.finish()  # raises everything that is wrong, unknown options included

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        try:
            free = (await asyncio.to_thread(shutil.disk_usage, self._path)).free
        except OSError as error:
            raise ProbeError(f"{self._path}: {error.strerror}") from error
        megabytes = free // 1_000_000
        value = "low" if free < self._low else "ok"
        return Reading(value, facts={"free_mb": megabytes}, summary=f"{megabytes} MB free")
