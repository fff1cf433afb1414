"""A flow as a tree, for commands and pages.

fetch            a job, and below it its successors
├─ resize        several jobs with the same predecessors are branches
│  store         the only successor of a job is right below it
└─ classify
report           a job that joins branches is below all of them
└─ alert         a job that runs on a failure is a branch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pollwise.queues.flows.view import FlowJob, FlowView

#: How many predecessors the text of a job names.
NAMED_MAX = 5
#: Deeper branches are drawn at this depth.
DEPTH_MAX = 20


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A row of the tree. lines: the line characters before the job. depth: the number of branches
    that contain the job."""

    job: FlowJob
    lines: str
    depth: int

    @property
    def note(self) -> str:
        """The predecessors of the job as text; "" if the tree shows them."""
        after = self.job.after
        if len(after) < 2 and not self.job.on_failure:
            return ""
        named = ", ".join(after[:NAMED_MAX])
        more = f" and {len(after) - NAMED_MAX} more" if len(after) > NAMED_MAX else ""
        return f"{'if one is dead:' if self.job.on_failure else 'after'} {named}{more}"


def rows_of(view: FlowView) -> list[FlowRow]:
    """The rows of a flow, from its first job to its last."""
    below = _below(view.jobs)
    waiting = [*_in_reverse(below.get(None, []), "", 0)]
    rows: list[FlowRow] = []
    while waiting:
        job, lines, rest, depth = waiting.pop()
        rows.append(FlowRow(job, lines, depth))
        waiting += _in_reverse(below.get(job.info.job.id, []), rest, depth)
    return rows


def _in_reverse(
    blocks: list[list[FlowJob]], lines: str, depth: int
) -> Iterator[tuple[FlowJob, str, str, int]]:
    """Jobs of blocks in reverse: job, its lines, the lines of the jobs below it, its depth."""
    for block in reversed(blocks):
        alone = len(block) == 1 and not block[0].on_failure
        for job in reversed(block):
            if alone or depth >= DEPTH_MAX:
                yield job, lines, lines, depth
            elif job is block[-1]:
                yield job, f"{lines}└─ ", f"{lines}   ", depth + 1
            else:
                yield job, f"{lines}├─ ", f"{lines}│  ", depth + 1


def _below(jobs: Sequence[FlowJob]) -> dict[str | None, list[list[FlowJob]]]:
    """The jobs right below each job, in blocks of equal predecessors; None: the top of the tree.

    A job is below the last job that all of its predecessors come after.
    """
    above: dict[str, str | None] = {}
    depths: dict[str | None, int] = {None: 0}

    def common(one: str | None, other: str | None) -> str | None:
        while one != other:
            if depths[one] < depths[other]:
                one, other = other, one
            one = above[one] if one is not None else None
        return one

    below: dict[str | None, dict[tuple[tuple[str, ...], bool], list[FlowJob]]] = {}
    for job in jobs:
        job_id = job.info.job.id
        known = [each for each in job.after if each in above]  # some jobs are not in the view
        parent: str | None = known[0] if known else None
        for each in known[1:]:
            if parent is None:
                break
            parent = common(parent, each)
        above[job_id], depths[job_id] = parent, depths[parent] + 1
        blocks = below.setdefault(parent, {})
        blocks.setdefault((job.after, job.on_failure), []).append(job)
    return {parent: list(blocks.values()) for parent, blocks in below.items()}
