"""Flows in a SQLite file: links between jobs, and the effects of a job's end on others.

Triggers release jobs that waited, and mark jobs to cancel; see `0011_flows.sql`. Marked jobs are
cancelled here, in the same transaction. Once a flow has ended, its jobs are kept for less time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pollwise.queues.flows.view import FLOW_KEPT, FLOW_SHOWN, FlowJob
from pollwise.queues.record import endings_from, listed_from
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.jobs import NewJob
from pollwise.storage.ids import number_of

Rows = Callable[..., list[tuple[Any, ...]]]


class SqliteFlows:
    """The flows of one queue in a file.

    rows: runs a statement, by its name. many: runs it once for each of these values.
    keep: how long the queue keeps finished jobs.
    """

    def __init__(
        self,
        rows: Rows,
        many: Callable[[str, list[dict[str, Any]]], None],
        queue: str,
        keep: float | None,
    ) -> None:
        self._rows = rows
        self._many = many
        self._queue = queue
        self._keep = keep
        #: How long its ended jobs are kept for others, in seconds; None if the queue does so.
        self.kept: float | None = FLOW_KEPT if keep is None or keep < FLOW_KEPT else None

    # Inside a transaction

    def link(self, jobs: Sequence[NewJob], ids: Sequence[str]) -> None:
        """Give the new jobs of a batch their places in flows."""
        members: list[dict[str, Any]] = []
        links: list[dict[str, Any]] = []
        for job, job_id in zip(jobs, ids, strict=True):
            if (place := job.place) is None:
                continue
            count, seq = len(place.after), int(job_id)
            key = job.key if count else None
            delay = job.delay if count and job.run_at is None else None
            members.append(
                {"seq": seq, "flow": place.flow, "waits": count, "key": key, "delay": delay}
            )
            links += [
                {"before": int(ids[each]), "after": seq, "place": at, "failure": place.on_failure}
                for at, each in enumerate(place.after)
            ]
        if members:
            self._many("join_flow", members)
            self._many("link", links)

    def ended(self, now: float, flows: Iterable[object]) -> None:
        """Jobs of these flows have ended: cancel the jobs that must not run because of that. If a
        flow has ended, keep its jobs no longer than other jobs. Names that are not text are of
        rows that came from elsewhere, and in no flow."""
        names = {flow for flow in flows if isinstance(flow, str)}
        if not names:
            return
        names |= self._cancel_doomed(now)
        over = self._rows("flows_over", flows=json.dumps(sorted(names)))
        if over:
            batch = json.dumps([flow for (flow,) in over])
            values = {"flow_kept": FLOW_KEPT, "own": self._keep or 0.0, "shown": now + FLOW_SHOWN}
            self._rows("let_go", flows=batch, **values)

    def sweep(self, now: float) -> None:
        """Cancel marked jobs that workers of older versions did not cancel."""
        self.ended(now, self._cancel_doomed(now))

    def _cancel_doomed(self, now: float) -> set[str]:
        """Cancel marked jobs, and jobs that wait for them; return the names of the flows."""
        names: set[str] = set()
        while doomed := self._rows("cancel_doomed", now=now, expires_at=self._kept_until(now)):
            names |= {flow for (flow,) in doomed if isinstance(flow, str)}
        return names

    def cancelled(self, now: float, batch: str) -> None:
        """Keep cancelled jobs of flows. batch: a JSON list of their numbers."""
        values = {"batch": batch, "expires_at": self._kept_until(now)}
        self.ended(now, {flow for (flow,) in self._rows("keep_cancelled", **values)})

    def _kept_until(self, now: float) -> float | None:
        """Until when a job of a flow is kept that is cancelled now; None if its queue does so."""
        return None if self.kept is None else now + self.kept

    # Reads

    def predecessors(self, now: float, job_id: str) -> list[tuple[str, JobEnding | None]]:
        before = [str(seq) for (seq,) in self._rows("predecessors", seq=number_of(job_id))]
        batch = json.dumps([number_of(each) for each in before])
        endings = endings_from(self._rows("endings", batch=batch, now=now), before)
        return [(each, endings.get(each)) for each in before]

    def compensated(self, ids: Sequence[str] | None) -> list[str]:
        if ids is None:
            return [str(seq) for (seq,) in self._rows("all_compensated")]
        batch = json.dumps([number_of(each) for each in ids])
        return [str(seq) for (seq,) in self._rows("compensated", batch=batch)]

    def flow(self, now: float, job_id: str, most: int) -> list[FlowJob]:
        seqs = [seq for (seq,) in self._rows("members", seq=number_of(job_id), now=now, most=most)]
        batch = json.dumps(seqs)
        after: dict[int, list[str]] = {}
        for_failure = set()
        for seq, before, on_failure in self._rows("links", batch=batch):
            after.setdefault(seq, []).append(str(before))
            if on_failure:
                for_failure.add(seq)
        found = []
        for row in self._rows("show", batch=batch, now=now):
            info, seq = listed_from(row, self._queue), row[0]
            found.append(FlowJob(info, tuple(after.get(seq, ())), seq in for_failure))
        return found
