"""A store with many queues: pages open only those that they show."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob
from pollwise.testing import VirtualClock
from pollwise.web import opening
from pollwise.web.opening import Opened, QueueHandles
from tests.web.visiting import Visitor

QUEUES = 149


async def make_store(path: Path) -> None:
    for n in range(QUEUES):
        async with SqliteQueue(path, f"q{n:03}", synchronous="off") as queue:
            await queue.put(NewJob("mail", n))


def open_files(path: Path) -> int:
    """How often this process has the database open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            count += each.readlink() == path
    return count


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_pages_open_the_queues_that_they_show(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def main() -> None:
        await make_store(path)
        visitor = Visitor(MemoryQueue("other"))
        shown = Opened(visitor.sources.clock, sources=visitor.sources)
        shown.queue(f"sqlite:///{path}")
        text = await visitor.get("/workers?queue=q148")
        assert "more queues were not read" in text
        few = open_files(path)
        assert few <= 2 * (50 + 3), "the first queues and the chosen one"
        seen: set[str] = set()
        for page in (1, 2, 3):
            text = await visitor.get(f"/?page={page}")
            main_part = text[text.index("<main") :]
            seen |= set(re.findall(r'href="[^"]*/queues/(q\d{3})"', main_part))
            assert f"Page {page} of 3 of 150 queues" in text
            assert open_files(path) <= 2 * (opening.OPEN_MAX + 3)
        assert len(seen) == QUEUES
        assert "mail" in await visitor.get("/queues/q077")
        await visitor.sources.close()
        for each in shown.owned:
            await each.close()

    asyncio.run(main())


def test_the_queue_unused_for_longest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OPEN_KEPT", 2)
    monkeypatch.setattr(opening, "OPEN_MAX", 4)
    clock = VirtualClock()
    opened: list[str] = []
    closed: list[str] = []

    class Named(MemoryQueue):
        async def close(self) -> None:
            closed.append(self.name)

    async def main() -> None:
        found = QueueHandles(clock)

        def use(name: str) -> None:
            def open() -> Queue:
                opened.append(name)
                return Named(name, clock=clock)

            found.use(name, open)

        for name in ("a", "b", "a", "c", "d"):
            use(name)
        await asyncio.sleep(0)
        assert (opened, closed) == (["a", "b", "c", "d"], [])
        use("e")  # too many, also if all of them may be in use
        await asyncio.sleep(0)
        assert closed == ["b"]
        await clock.sleep(opening.IN_USE + 1)
        use("a")
        use("f")
        await asyncio.sleep(0)
        assert closed == ["b", "c", "d", "e"]
        assert len(found) == 2
        await found.close()
        assert closed == ["b", "c", "d", "e", "a", "f"]

    clock.run(main())
