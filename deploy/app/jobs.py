"""The application of the deploy kit: replace it with yours."""

from __future__ import annotations

import asyncio
import os

from pollwise import Worker

# Read where it runs: the same image works against any database.
worker = Worker(os.environ.get("DATABASE_URL", "sqlite:///jobs.db"))


@worker.task
async def resize(image: int, width: int = 800) -> str:
    await asyncio.sleep(0.1)  # your work
    return f"image-{image}-{width}.png"
