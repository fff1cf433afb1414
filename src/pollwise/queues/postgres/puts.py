"""How a batch is put: the statement, and its parameters.

A batch with flows is put by `put_flow`, one in which jobs replace others by `put_replacing`, and
any other by `put`. Each takes the parameters of `put`, and more.
"""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.runtime.jobs import NewJob
from pollwise.storage.postgres.params import (
    PUT_TYPES,
    Param,
    flag,
    flags,
    number,
    numbers,
    text,
    texts,
    unless_all,
)

#: The types of the parameters of each statement.
TYPES: dict[str, tuple[str, ...]] = {
    "put": PUT_TYPES,
    "put_replacing": (*PUT_TYPES, "boolean[]"),
    "put_flow": (
        *PUT_TYPES, "boolean[]", "text[]", "integer[]", "boolean[]", "integer[]", "integer[]",
        "double precision",
    ),
}  # fmt: skip


def is_plain(jobs: Sequence[NewJob]) -> bool:
    """True for one job that is ready at once and has no key, no `unique` and no limit group."""
    if len(jobs) != 1:
        return False
    job = jobs[0]
    if job.key is not None or job.unique is not None or job.limit_group is not None:
        return False
    return not job.delay and job.run_at is None


def statement_of(jobs: Sequence[NewJob]) -> str:
    """The name of the statement that puts a batch."""
    if any(job.place is not None for job in jobs):
        return "put_flow"
    return "put_replacing" if any(job.replace for job in jobs) else "put"


def one_params(queue: str, job: NewJob, now: Param) -> list[Param]:
    """The parameters of `put_one`."""
    return [
        text(queue),
        text(job.kind),
        text(job.encoded),
        number(job.priority),
        text(job.encoded_headers),
        now,
    ]


def put_params(
    queue: str,
    jobs: Sequence[NewJob],
    encoded: Sequence[str],
    hint: tuple[str | None, str | None],
    now: Param,
    *,
    alone: bool,
) -> list[Param]:
    """The parameters of `put`. hint: the channel and the message that is sent with the jobs."""
    channel, message = hint
    headers = [job.headers for job in jobs]
    return [
        text(queue),
        texts([job.kind for job in jobs]),
        texts(encoded),
        unless_all(0, [job.priority for job in jobs], numbers),
        unless_all(0.0, [job.delay for job in jobs], numbers),
        unless_all(None, [job.run_at for job in jobs], numbers),
        unless_all(None, [job.key for job in jobs], texts),
        unless_all(None, [job.unique for job in jobs], texts),
        texts([job.encoded_headers for job in jobs]) if any(headers) else None,
        flag(alone),
        text(channel),
        text(message),
        now,
    ]


def more_params(statement: str, jobs: Sequence[NewJob], keep: float | None) -> list[Param]:
    """The parameters that a statement takes beyond those of `put`. keep: that of the queue."""
    if statement == "put":
        return []
    replaces = [job.replace for job in jobs]
    if statement == "put_replacing":
        return [flags(replaces)]
    places = [job.place for job in jobs]
    after = [() if place is None else place.after for place in places]
    return [
        flags(replaces) if any(replaces) else None,
        texts([None if place is None else place.flow for place in places]),
        numbers([len(each) for each in after]),
        flags([place is not None and place.on_failure for place in places]),
        numbers([before + 1 for each in after for before in each]),
        numbers([at for at, each in enumerate(after, 1) for _ in each]),
        None if keep is None else number(keep),
    ]
