"""Finds the flows in a batch of jobs: which jobs wait for which."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import copy

from pollwise.errors import JobError
from pollwise.runtime.jobs.new_job import FLOW_HEADER, FlowPlace, NewJob

#: The maximum number of links between the jobs of a batch.
LINKS_MAX = 50_000


def linked(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Return the jobs of a batch; jobs of a flow are replaced by copies that have their places.

    A flow is a set of jobs that are connected by links; it gets a random name.
    """
    places = {id(job): place for place, job in enumerate(jobs)}
    after: list[tuple[int, ...]] = []
    roots = list(range(len(jobs)))  # a union-find with path halving; a root stands for a flow

    def root(place: int) -> int:
        while roots[place] != place:
            roots[place] = roots[roots[place]]
            place = roots[place]
        return place

    for place, job in enumerate(jobs):
        before = tuple(places.get(id(each), place) for each in job.after)
        if any(each >= place for each in before):
            raise JobError(
                f"the job of kind {job.kind!r} at place {place} of the batch comes after a job "
                "that is not before it in the same batch; put both in one call, in their order"
            )
        after.append(before)
        for each in before:
            roots[root(place)] = root(each)
    if (count := sum(map(len, after))) > LINKS_MAX:
        raise JobError(
            f"the jobs of this batch have {count} links; at most {LINKS_MAX} in one batch. Let one "
            "job put the next part"
        )
    sizes: dict[int, int] = {}
    for place in range(len(jobs)):
        sizes[root(place)] = sizes.get(root(place), 0) + 1
    names = {first: secrets.token_hex(8) for first, size in sizes.items() if size > 1}
    return [
        _placed(job, FlowPlace(name, after[place], job.on_failure))
        if (name := names.get(root(place))) is not None
        else _alone(job)
        for place, job in enumerate(jobs)
    ]


def _alone(job: NewJob) -> NewJob:
    """The job without the name of a flow, which came with headers copied from another job."""
    return job.without_header(FLOW_HEADER) if FLOW_HEADER in job.headers else job


def _placed(job: NewJob, place: FlowPlace) -> NewJob:
    if job.unique is not None:
        raise JobError(
            f"the job of kind {job.kind!r} has unique = {job.unique!r} and is linked to others by "
            "`after`, and these cannot be combined: the job that has this `unique` already is not "
            "part of the flow. Leave `unique` out, or let a job with `unique` put the flow"
        )
    made = copy(job).with_headers({FLOW_HEADER: place.flow})
    made.place = place
    return made


def places_from(given: object, count: int) -> list[int]:
    """Check the places of the predecessors of a job; `count` jobs come before it in the batch."""
    places = [] if given is None else given
    if not isinstance(places, list) or not all(
        type(each) is int and 0 <= each < count for each in places
    ):
        raise JobError(
            f"after must be a list of places in the batch, from 0 and before {count}, the job's own"
        )
    return places
