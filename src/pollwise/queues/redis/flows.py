"""The flows of a queue in Redis, as arguments and answers of the scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pollwise.queues.flows.view import FlowJob
from pollwise.queues.redis.layout import links_in, views_in
from pollwise.queues.redis.notes import Run, time_text
from pollwise.queues.waiting import JobEnding
from pollwise.storage.ids import number_of

#: The maximum number of predecessors whose results are read by one script.
RESULTS_AT_ONCE = 100
#: The largest number of a job.
_LAST = 2**53
#: The approximate maximum of bytes of jobs that one script returns.
_MOST_BYTES = 16 * 1024 * 1024

#: Reads how these jobs ended, at this time.
Endings = Callable[[Sequence[str], float | None], Awaitable[dict[str, JobEnding | None]]]


class RedisFlows:
    """The flows of one queue; `run` runs a script of this queue.

    now: the imposed time; None for the server's own.
    """

    def __init__(self, queue: str, run: Run, endings: Endings) -> None:
        self._queue = queue
        self._run = run
        self._endings = endings

    async def predecessors(
        self, job_id: str, now: float | None
    ) -> list[tuple[str, JobEnding | None]]:
        number = number_of(job_id)
        answer = await self._page(number, number, number, 1, now)
        after, _ = links_in(answer[3]).get(str(number), ((), False))
        found: dict[str, JobEnding | None] = {}
        for first in range(0, len(after), RESULTS_AT_ONCE):
            found |= await self._endings(after[first : first + RESULTS_AT_ONCE], now)
        return [(each, found.get(each)) for each in after]

    async def flow(self, job_id: str, most: int, now: float | None) -> list[FlowJob]:
        number, first = number_of(job_id), 1
        found: list[FlowJob] = []
        while len(found) < most:
            blob, time, last, linked = await self._page(
                number, first, _LAST, most - len(found), now
            )
            links = links_in(linked)
            found += [
                FlowJob(info, *links[info.job.id])
                for info, _ in views_in(blob, self._queue, float(time))
            ]
            if not last:
                break
            first = int(last) + 1
        return found

    async def _page(
        self, number: int, first: int, last: int, most: int, now: float | None
    ) -> tuple[bytes, bytes, bytes, list[bytes]]:
        """The answer of page.lua about the jobs with these numbers in the flow of this job."""
        answer: tuple[bytes, bytes, bytes, list[bytes]] = await self._run(
            "page", time_text(now), first, last, 0, most, 0, _MOST_BYTES, f"of:{number}", ""
        )
        return answer
