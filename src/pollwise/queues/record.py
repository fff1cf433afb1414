"""A job's record as a row of columns, and the order of pages: the same for SQLite and Postgres.

A page walks through *sources*, one after the other: parts of an index, each in the order of that
index, so that nothing is sorted and a page begins where the one before ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pollwise.errors import ConfigError
from pollwise.queues.views import CURSOR_REFUSED, JobFilter, Stats, from_cursor
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.decoding import cut_text, decode_job, decode_result, is_cut
from pollwise.runtime.jobs import ENDED, STATES, Claim, Job, JobFailure, JobInfo, Progress
from pollwise.storage.ids import number_of

#: A prune examines jobs again that ended up to this many seconds before the last one's limit: they
#: may have been locked, or committed late.
PRUNE_LOOK_BACK = 600.0

#: How often it does so, in seconds; in between, it begins EXAMINED_OVERLAP before the last limit.
PRUNE_LOOK_BACK_EVERY = 60.0
EXAMINED_OVERLAP = 1.0

#: The sources of a page in their order, each with the types of a place in it. A place ends with
#: the number of the job. Leased and delayed jobs are ordered by the end of the lease or delay,
#: ready ones by kind and in the order of claims. Blocked ones are ordered by key, ended ones with
#: the newest first.
#: `overdue`: their delay or lease is over, so they count as ready. `waiting`: blocked jobs that
#: wait for others of their flow, in put order. `key`: live jobs of one key.
SOURCES: dict[str, tuple[type, ...]] = {
    "leased": (float, int, int),
    "ready": (str, int, float, int),
    "overdue": (float, int, int),
    "delayed": (float, int, int),
    "blocked": (str, int),
    "waiting": (int,),
    "key": (str, int),
    "dead": (float, int),
    "done": (float, int),
    "cancelled": (float, int),
}
_NUMBERS = frozenset((int, float))
_SHAPES = {(str, *types) for types in SOURCES.values()}


class Examined:
    """Up to which end of theirs jobs were examined by prunes, so that each is read about once.

    next: where the next slice begins.
    """

    def __init__(self) -> None:
        self.next = 0.0
        self._look_back_at = 0.0

    def pause(self, ended: Iterable[float]) -> None:
        """A slice deleted jobs that ended at these times, and more may be due."""
        self.next = max(ended, default=self.next)

    def end(self, now: float, before: float) -> None:
        """All jobs that ended before were examined."""
        back = EXAMINED_OVERLAP
        if now >= self._look_back_at:
            self._look_back_at, back = now + PRUNE_LOOK_BACK_EVERY, PRUNE_LOOK_BACK
        self.next = before - back


def sources_of(chosen: JobFilter, *, waiting: bool = False) -> list[tuple[str, list[Any] | None]]:
    """The sources of a page, each with the place to go on after, or None to begin.

    waiting: the store has the source of this name.
    """
    wanted: set[str] = set(SOURCES) if chosen.state is None else {chosen.state}
    if "ready" in wanted:
        wanted.add("overdue")
    if "blocked" in wanted:
        wanted.add("waiting")
    if chosen.key is not None and wanted - set(ENDED):
        wanted = (wanted & {*ENDED, "waiting"}) | {"key"}
    elif chosen.key is None:
        wanted.discard("key")
    if chosen.live:
        wanted -= set(ENDED)
    if chosen.worker is not None:  # nobody holds, or has ended, the others
        wanted -= {"ready", "delayed", "blocked", "waiting"}
    if not waiting:
        wanted.discard("waiting")
    names = [name for name in SOURCES if name in wanted]
    if chosen.after is None:
        return [(name, None) for name in names]
    source, *place = from_cursor(chosen.after, _SHAPES)
    if source not in names or tuple(map(type, place)) != SOURCES[source]:
        raise ConfigError(CURSOR_REFUSED.format(chosen.after[:40]))
    after = names.index(source) + 1
    return [(source, place), *((name, None) for name in names[after:])]


def shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many of each to examine, so that all together are at most `most`: small ones wholly."""
    found = dict.fromkeys(range(len(sizes)), 0)
    for left, at in enumerate(sorted(found, key=lambda at: -sizes[at])[::-1]):
        found[at] = min(sizes[at], most // (len(sizes) - left))
        most -= found[at]
    return [found[at] for at in range(len(sizes))]


def job_from(row: Sequence[Any], queue: str) -> Job:
    """Make a job from the first ten columns of a claim or a page."""
    seq, kind, payload, key, priority, attempt, created_at, run_at, unique, headers = row[:10]
    decoded = decode_job(payload, headers)
    unreadable = decoded.unreadable
    if not (
        type(priority) is type(attempt) is int and type(created_at) in _NUMBERS
        and type(run_at) in _NUMBERS
    ):  # fmt: skip
        # SQLite keeps any text in any column, and a row may come from elsewhere.
        names = ("priority", "attempt", "created_at", "run_at")
        values = zip(names, (priority, attempt, created_at, run_at), strict=True)
        wrong = [name for name, value in values if type(value) not in _NUMBERS]
        unreadable = f"its row has no number in {' and '.join(wrong)}"
        priority, attempt = int(number_in(priority)), int(number_in(attempt))
        created_at, run_at = number_in(created_at), number_in(run_at)
    # SQLite's RETURNING returns whole REALs as int.
    return Job(
        str(seq), queue, kind, decoded.payload, key, priority, attempt, float(created_at),
        float(run_at), unique, decoded.headers, unreadable,
    )  # fmt: skip


def sort_claims(rows: list[tuple[Any, ...]]) -> None:
    """Sort claimed rows by priority, then by time, then by number."""
    try:
        rows.sort(key=lambda row: (-row[4], row[7], row[0]))
    except TypeError:  # a row that came from elsewhere
        rows.sort(key=lambda row: (-number_in(row[4]), number_in(row[7]), row[0]))


def number_in(value: Any) -> Any:
    """The value of a numeric column, or 0 for something else in it."""
    return value if type(value) in _NUMBERS else 0


def info_from(row: Sequence[Any], queue: str) -> JobInfo:
    """Make a record from a row of a page: a job, its token, and the rest of the record."""
    job, token = job_from(row, queue), row[10]
    code, since, worker, errors, claimed_at, progress, cancel, result = row[11:]
    if type(code) is not int or type(since) not in _NUMBERS:
        # Nobody can claim it, so it is shown with the jobs that will not run.
        job = replace(job, unreadable="its row has no number in state or since")
        code, since = code if type(code) is int else STATES.index("dead"), number_in(since)
    state = STATES[code]
    return JobInfo(
        job,
        state,
        number_in(claimed_at) if state == "leased" else since,
        worker,
        errors_from(errors),
        claimed_at if claimed_at is None else number_in(claimed_at),
        progress_from(progress),
        bool(cancel),
        decode_result(result),
        Claim(job, token, worker, since) if state == "leased" else None,
    )


def listed_from(row: Sequence[Any], queue: str) -> JobInfo:
    """As `info_from`, for a list: of long payloads and results, the row has the beginning."""
    payload, result = row[2], row[18]
    if not is_cut(payload) and not is_cut(result):
        return info_from(row, queue)
    whole = list(row)
    whole[2] = "null" if is_cut(payload) else payload
    whole[18] = None if is_cut(result) else result
    return info_from(whole, queue).cut(
        cut_text(payload) if is_cut(payload) else None,
        cut_text(result) if is_cut(result) else None,
    )


def endings_from(rows: Iterable[Sequence[Any]], ids: Iterable[str]) -> dict[str, JobEnding | None]:
    """Read rows of a number, kind, state, errors and result. A job that is gone has no state."""
    found: dict[int, JobEnding | None] = {}
    for number, kind, code, errors, result in rows:
        found[number] = None
        if code is not None:
            failures = errors_from(errors)
            found[number] = JobEnding(
                kind, STATES[code], decode_result(result), failures[-1] if failures else None
            )
    numbers = {job_id: number_of(job_id) for job_id in ids}
    return {job_id: found[number] for job_id, number in numbers.items() if number in found}


def stats_from(rows: Iterable[Sequence[Any]], oldest_age: float | None, most: int) -> Stats:
    """Read rows of a state, a number of jobs (up to one above `most`), and whether there may be
    more of them."""
    counts = dict.fromkeys(STATES, 0)
    capped = set()
    for code, count, more in rows:
        state = STATES[code]
        counts[state] += count or 0
        if more or counts[state] > most:
            capped.add(state)
            counts[state] = min(counts[state], most)
    return Stats.of(counts, oldest_age, capped)


def encoded_progress(progress: Progress | None, now: float) -> str | None:
    """`[fraction, note, at]`; None if there is none."""
    if progress is None:
        return None
    return json.dumps([progress.fraction, progress.note, now], ensure_ascii=False)


def progress_from(text: str | None) -> Progress | None:
    if text is None:
        return None
    try:
        return Progress(*json.loads(text))
    except (ValueError, TypeError):
        return None


def errors_from(text: str | None) -> tuple[JobFailure, ...]:
    """Read `[[at, attempt, error], …]`, the newest last."""
    if text is None:
        return ()
    try:
        return tuple(JobFailure.stored(*each) for each in json.loads(text))
    except (ValueError, TypeError):
        return (JobFailure(0.0, 0, f"its errors cannot be decoded: {str(text)[:200]!r}"),)
