"""The flows of a queue in Postgres: what is read of them, and how long their jobs are kept."""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.queues.flows.view import FLOW_KEPT, FlowJob
from pollwise.queues.record import endings_from, listed_from
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.jobs import DELAY_MAX, Settlement
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.storage.ids import number_of
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import number, numbers, text


class PostgresFlows:
    """The flows of one queue."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = queue

    async def predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        params = [text(self._queue), number(number_of(job_id)), self._database.now()]
        rows = await self._database.rows("predecessors", params, safe=True)
        ids = [str(row[0]) for row in rows]
        endings = endings_from(rows, ids)
        return [(each, endings[each]) for each in ids]

    async def compensated(self, ids: Sequence[str] | None) -> list[str]:
        params, name = [text(self._queue)], "all_compensated"
        if ids is not None:
            params, name = [*params, numbers([number_of(each) for each in ids])], "compensated"
        rows = await self._database.rows(name, params, safe=True)
        return [str(seq) for (seq,) in rows]

    async def flow(self, job_id: str, most: int) -> list[FlowJob]:
        job = number(number_of(job_id))
        params = [text(self._queue), job, number(most), self._database.now()]
        rows = await self._database.rows("flow", params, safe=True)
        return [
            FlowJob(listed_from(info, self._queue), tuple(map(str, after or ())), bool(on_failure))
            for *info, after, on_failure in rows
        ]


def keeps_of(settlements: Sequence[Settlement], keep: float | None) -> list[float | None]:
    """How many seconds to keep each ended job, if that is longer than `keep` of the queue.

    The server subtracts FLOW_KEPT when a flow has ended. It does not know the queue's `keep`, so
    the rest must include that.
    """
    kept = [each.outlasting(keep) for each in settlements]
    if keep is None:
        return kept
    return [
        min(max(own, FLOW_KEPT + keep), DELAY_MAX)
        if own is not None and FLOW_HEADER in each.claim.job.headers
        else own
        for own, each in zip(kept, settlements, strict=True)
    ]
