"""A job as bytes, and what is sent to the scripts and returned by them.

A job is one string, so that a batch is one HMGET and one HSET:

    head   state, flags, attempt, token, run_at, created_at
    run    since, claimed_at, worker; only of a job that has been claimed or has ended
    tail   priority, kind, key, unique; packed by the client and never changed
    body   the headers, if there are any, and the payload; no script decodes them. One larger than
           INLINE_MAX is stored separately, so that settling a job does not move it

Its errors, progress and result are not in the string. A flag says that one of them exists, so a job
without them costs nothing more, and a claim never reads them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import WAITING_MAX, GroupUse, LimitUse, fullest
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.decoding import CutText, cut_text, decode_job, decode_result, is_cut
from pollwise.runtime.jobs import (
    ACTIONS,
    STATES,
    Claim,
    Job,
    JobFailure,
    JobInfo,
    NewJob,
    Progress,
    Settlement,
    worker_of_lapse,
)
from pollwise.storage.ids import number_of

#: The maximum size of a body inside the job, in bytes.
INLINE_MAX = 1024

_ENTRY = struct.Struct(">QI")
_HEAD = struct.Struct(">BBIQdd")
_RUN = struct.Struct(">ddH")
_CLAIMED = struct.Struct(">QIBBIQddddH")  # an entry, a head and a run
_TAIL = struct.Struct(">BhHHH")
_PUT = struct.Struct(">BdBhHHH")  # when it is due, and a tail
_SIZE_OF_HEADERS = struct.Struct(">H")
_SIZE_OF_PART = struct.Struct(">I")
_ERROR = struct.Struct(">dIH")
_TIME = struct.Struct(">d")
_SETTLEMENT = struct.Struct(">QQBBBdH")
_RENEWAL = struct.Struct(">QQHH")
#: Tokens are below this: scripts calculate with floating-point numbers. No claim has the token 0.
_TOKENS_END = 2**53
_FLAG_RUN, _FLAG_ERRORS, _FLAG_PROGRESS, _FLAG_CANCEL, _FLAG_RESULT = 1, 2, 4, 8, 16
_SEPARATE, _WITH_HEADERS, _WITH_GROUP, _FLOW = 1, 2, 4, 8
_REPLACES = 4
_WITH_RESULT, _WITH_KEEP = 1, 2
#: No lease of the claimed jobs ran out, as nearly always.
NO_LAPSES: Mapping[int, str] = {}
_CODES = {action: code for code, action in enumerate(ACTIONS)}


def packed_job(job: NewJob, encoded: str, places: Mapping[int, int] | None = None) -> list[bytes]:
    """A job as put.lua takes it; its body if that is stored separately; its limit group; its place
    in a flow.

    places: of jobs in the batch, as put.lua counts them.
    """
    how, due = (1 if job.delay else 0, job.delay) if job.run_at is None else (2, job.run_at)
    kind = job.kind.encode()
    key = job.key.encode() if job.key is not None else b""
    unique = job.unique.encode() if job.unique is not None else b""
    body, form = encoded.encode(), 0
    if job.headers:
        headers = (job.encoded_headers or "").encode()
        body, form = _SIZE_OF_HEADERS.pack(len(headers)) + headers + body, _WITH_HEADERS
    if job.place is not None:  # such a job has no unique
        unique, form = job.place.flow.encode(), form + _FLOW
    separate = len(body) > INLINE_MAX
    if separate:
        form += _SEPARATE
    group = [] if job.limit_group is None else [job.limit_group.encode()]
    if group:
        form += _WITH_GROUP
    how += job.replace * _REPLACES
    head = _PUT.pack(how, due, form, job.priority, len(kind), len(key), len(unique))
    parts = [head, kind, key, unique] if separate else [head, kind, key, unique, body]
    packed = [b"".join(parts)]
    if separate:
        packed.append(body)
    packed += group
    if job.place is not None:
        after = [(places or {})[place] for place in job.place.after]
        packed.append(struct.pack(f">B{len(after)}I", job.place.on_failure, *after))
    return packed


def packed_settlement(settlement: Settlement, with_result: bool, keep: float | None) -> bytes:
    """A settlement as settle.lua takes it. keep: how long its record outlasts its queue's."""
    claim, failure = settlement.claim, settlement.failure
    error = b"" if failure is None else failure.encode()
    token = claim.token if 0 <= claim.token < _TOKENS_END else 0
    more = with_result * _WITH_RESULT + (keep is not None) * _WITH_KEEP
    head = _SETTLEMENT.pack(
        number_of(claim.job.id), token, _CODES[settlement.action],
        failure is not None, more, settlement.delay if keep is None else keep, len(error),
    )  # fmt: skip
    return head + error


def packed_renewal(claim: Claim, progress: Progress | None) -> bytes:
    """A claim as renew.lua takes it, with the progress of its run."""
    worker, text = claim.worker.encode(), b""
    if progress is not None:
        text = json.dumps([progress.fraction, progress.note], ensure_ascii=False).encode()
    token = claim.token if 0 <= claim.token < _TOKENS_END else 0
    head = _RENEWAL.pack(number_of(claim.job.id), token, len(worker), len(text))
    return b"".join((head, worker, text))


def lapses_in(parts: Sequence[bytes]) -> dict[int, str]:
    """By number of the job, the worker whose lease ran out just before, as claim.lua returns it."""
    return {
        int(number): worker_of_lapse(error.decode())
        for number, error in zip(*[iter(parts)] * 2, strict=True)
    }


def claims_in(
    blob: bytes,
    queue: str,
    worker: str,
    until: float,
    *,
    suspect: bool,
    lapses: Mapping[int, str],
) -> Iterator[Claim]:
    """The claims in the answer of claim.lua. lapses: as `lapses_in` returns them."""
    at, end = 0, len(blob)
    while at < end:
        number, size, _, _, attempt, token, run_at, created_at, _, _, worker_size = (
            _CLAIMED.unpack_from(blob, at)
        )
        place = at + _CLAIMED.size + worker_size
        at += _ENTRY.size + size
        job, _ = _job(blob, place, at, queue, number, attempt, created_at, run_at)
        lapsed_from = lapses.get(number, "") if lapses else ""
        yield Claim(job, token, worker, until, "", suspect, size, lapsed_from)


def views_in(
    blob: bytes, queue: str, now: float, *, listed: bool = True
) -> Iterator[tuple[JobInfo, int]]:
    """The jobs in the answer of page.lua as they are at this time, each with its token.

    listed: not one job, but a list, which shows the beginning of long payloads and results.

    An overdue job is ready, even before a claim made it so.
    """
    at, end = 0, len(blob)
    while at < end:
        number, size = _ENTRY.unpack_from(blob, at)
        place = at + _ENTRY.size
        at = place + size
        code, flags, attempt, token, run_at, created_at = _HEAD.unpack_from(blob, place)
        place += _HEAD.size
        since, claimed_at, worker = run_at, 0.0, None
        if flags & _FLAG_RUN:
            since, claimed_at, worker_size = _RUN.unpack_from(blob, place)
            place += _RUN.size
            worker = blob[place : place + worker_size].decode() if worker_size else None
            place += worker_size
        job, cut = _job(blob, place, at, queue, number, attempt, created_at, run_at, listed=listed)
        parts: list[bytes] = []
        for flag in (_FLAG_ERRORS, _FLAG_PROGRESS, _FLAG_RESULT):
            part_size = 0
            if flags & flag:
                (part_size,) = _SIZE_OF_PART.unpack_from(blob, at)
                at += _SIZE_OF_PART.size
            parts.append(blob[at : at + part_size])
            at += part_size
        errors, progress, result = parts
        cut_result = cut_text(result) if listed and is_cut(result) else None
        state = STATES[code]
        if state in ("delayed", "leased") and since <= now:
            state = "ready"
        info = JobInfo(
            job,
            state,
            claimed_at if state == "leased" else since,
            worker,
            tuple(_errors(errors)),
            claimed_at or None,
            _progress(progress) if progress else None,
            bool(flags & _FLAG_CANCEL),
            None if cut_result is not None else decode_result(result),
            Claim(job, token, worker, since) if state == "leased" and worker else None,
        )
        yield info if cut is cut_result is None else info.cut(cut, cut_result), token


def ending_in(
    code: int, kind: bytes = b"", errors: bytes = b"", result: bytes = b""
) -> JobEnding | None:
    """How a job ended, as ended.lua returns it; None for a job that does not exist."""
    if code < 0:
        return None
    failures = tuple(_errors(errors))
    newest = failures[-1] if failures else None
    return JobEnding(kind.decode(), STATES[code], decode_result(result), newest)


def use_in(answer: list[Any], limits: KindLimits, most: int) -> LimitUse:
    """The answer of limits/use.lua, with at most this many groups."""
    running, waiting = answer[1:3]
    now, full_at = float(answer[0]), float(answer[3])
    groups = []
    for name, runs, waits, full in zip(*[iter(answer[4:])] * 4, strict=True):
        at = limits.rate_each.next_start(float(full), now) if limits.rate_each else None
        groups.append(GroupUse(name.decode(), runs, min(waits, WAITING_MAX), at))
    next_at = limits.rate.next_start(full_at, now) if limits.rate else None
    total = min(waiting, WAITING_MAX)
    return LimitUse(limits, running, total, next_at, fullest(groups, most))


def links_in(parts: Sequence[bytes]) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The predecessors of each job of a flow, and whether it runs on failure; see page.lua."""
    found = {}
    for job_id, links in zip(*[iter(parts)] * 2, strict=True):
        on_failure, *numbers = struct.unpack(f">B{len(links) // 8}Q", links)
        found[job_id.decode()] = tuple(map(str, numbers)), bool(on_failure)
    return found


def ids_in(answer: bytes, count: int) -> tuple[list[str], int]:
    """The ids of a put, in order, and how many of them are new; see put.lua."""
    first, _, already = answer.decode().partition(";")
    number = int(first)
    if not already:
        return [str(n) for n in range(number, number + count)], count
    twins = dict(part.split("=") for part in already.split(","))
    replaced = sum(twin.startswith("r") for twin in twins.values())
    ids = []
    for place in range(count):
        twin = twins.get(str(place))
        ids.append(str(number) if twin is None else twin.removeprefix("r"))
        number += twin is None
    return ids, count - len(twins) + replaced


def _job(
    blob: bytes,
    place: int,
    end: int,
    queue: str,
    number: int,
    attempt: int,
    created_at: float,
    run_at: float,
    *,
    listed: bool = False,
) -> tuple[Job, CutText | None]:
    """The job whose tail begins at `place` and whose body ends at `end`; and its payload, without
    which the job is, if it is too long for a list."""
    form, priority, kind_size, key_size, unique_size = _TAIL.unpack_from(blob, place)
    place += _TAIL.size
    kind = blob[place : place + kind_size].decode()
    place += kind_size
    key = blob[place : place + key_size].decode() if key_size else None
    place += key_size
    unique = None
    if unique_size and not form & _FLOW:
        unique = blob[place : place + unique_size].decode()
    place += unique_size
    headers = b""
    if form & _WITH_HEADERS:
        (size,) = _SIZE_OF_HEADERS.unpack_from(blob, place)
        place += _SIZE_OF_HEADERS.size
        headers = blob[place : place + size]
        place += size
    payload = blob[place:end]
    cut = cut_text(payload) if listed and is_cut(payload) else None
    decoded = decode_job(payload if cut is None else b"null", headers)
    job = Job(
        str(number), queue, kind, decoded.payload, key, priority, attempt, created_at, run_at,
        unique, decoded.headers, decoded.unreadable,
    )  # fmt: skip
    return job, cut


def _errors(part: bytes) -> Iterator[JobFailure]:
    place = 0
    while place < len(part):
        at, attempt, size = _ERROR.unpack_from(part, place)
        place += _ERROR.size
        yield JobFailure.stored(at, attempt, part[place : place + size].decode())
        place += size


def _progress(part: bytes) -> Progress:
    (at,) = _TIME.unpack_from(part)
    fraction, note = json.loads(part[_TIME.size :])
    return Progress(fraction, note, at)
