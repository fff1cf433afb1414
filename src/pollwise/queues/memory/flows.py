"""The flows of a queue in memory: which jobs wait for which, and how long their members are kept.

The links of a job count until it is done for the first time; later ends of it change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pollwise.queues.flows.view import FLOW_KEPT, FLOW_SHOWN
from pollwise.queues.memory.job import MemoryJob
from pollwise.runtime.jobs import NewJob, State


class MemoryFlows:
    """The links between the jobs of one queue.

    records: its jobs. keep: how long the queue keeps finished jobs.
    """

    def __init__(self, records: Mapping[int, MemoryJob], keep: float | None) -> None:
        self._records = records
        self._keep = keep
        self._members: dict[str, dict[int, None]] = {}  # by the name of the flow, in put order
        self._open: dict[str, set[int]] = {}  # those that are live or dead
        #: Jobs that are kept less long than when they ended, until the queue takes note.
        self.relaxed: list[MemoryJob] = []

    def link(self, record: MemoryJob, job: NewJob, ids: Sequence[str]) -> None:
        """Give a new job its place; `ids` are those of the jobs before it in the batch."""
        if job.place is None:
            return
        record.flow, record.on_failure = job.place.flow, job.place.on_failure
        record.after = tuple(int(ids[place]) for place in job.place.after)
        record.waits = len(record.after)
        record.held_delay = None if job.run_at is not None else job.delay

    def enter(self, record: MemoryJob) -> None:
        """A new job is stored."""
        if record.flow is not None:
            self._members.setdefault(record.flow, {})[record.seq] = None
            for each in record.after:
                self._records[each].successors.append(record.seq)

    def follow(self, record: MemoryJob, state: State) -> tuple[list[MemoryJob], list[MemoryJob]]:
        """The jobs that a job which ended releases, and those that it cancels."""
        released: list[MemoryJob] = []
        cancelled: list[MemoryJob] = []
        if record.passed:
            return released, cancelled
        record.passed = state == "done"
        for each in record.successors:
            successor = self._records.get(each)
            if successor is None or not successor.waits:
                continue
            if state == "done":
                successor.waits -= 1
                if not successor.waits:
                    (cancelled if successor.on_failure else released).append(successor)
            elif state == "cancelled":
                successor.waits = 0
                cancelled.append(successor)
            elif successor.on_failure:
                successor.waits = 0
                released.append(successor)
        return released, cancelled

    def compensates(self, record: MemoryJob) -> bool:
        """True if the failure of this job has started a job of `on_failure`."""
        after = (self._records.get(each) for each in record.successors)
        return any(
            each.on_failure and not each.waits and each.state != "cancelled"
            for each in after
            if each is not None
        )

    def count(self, record: MemoryJob, state: State, now: float) -> None:
        """Note the new state of a member; when all have ended, limit how long they are kept."""
        if record.flow is None:
            return
        still_open = self._open.setdefault(record.flow, set())
        if state not in ("done", "cancelled"):
            still_open.add(record.seq)
        elif record.seq in still_open:
            still_open.remove(record.seq)
            if not still_open:
                self._let_go(record.flow, now)

    def kept(self, record: MemoryJob, now: float) -> float | None:
        """Until when a job that is done or cancelled is kept for its flow."""
        own = record.expires_at
        if record.flow is None or (self._keep is not None and self._keep >= FLOW_KEPT):
            return own
        until = now + FLOW_KEPT
        return until if own is None else own if own >= until else own + FLOW_KEPT

    def _let_go(self, flow: str, now: float) -> None:
        """Keep the ended jobs no longer than other jobs, but for at least FLOW_SHOWN seconds."""
        for seq in self._members[flow]:
            record = self._records[seq]
            if record.expires_at is not None and record.expires_at >= record.since + FLOW_KEPT:
                own = max(record.expires_at - FLOW_KEPT, record.since + (self._keep or 0.0))
                record.expires_at = max(own, now + FLOW_SHOWN)
                self.relaxed.append(record)

    def delete(self, record: MemoryJob, now: float) -> None:
        """A member is deleted."""
        if record.flow is None:
            return
        self.count(record, "done", now)
        del self._members[record.flow][record.seq]
        if not self._members[record.flow]:
            del self._members[record.flow], self._open[record.flow]

    def members(self, record: MemoryJob) -> Iterable[int]:
        return () if record.flow is None else self._members[record.flow]
