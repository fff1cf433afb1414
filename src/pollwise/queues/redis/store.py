"""The Redis side of `RedisQueue`: the keys of a queue, and the calls of the scripts.

Every key of a queue begins with `{prefix:queue}`, whose braces are a hash tag: in a cluster all
keys of a queue are in one slot, so a script reaches them all. (`%`, `:`, `{` and `}` in a queue's
name are written as %25, %3A, %7B and %7D, so that no two queues share a key.)

    …:meta       hash    last: the number of the newest job; layout: the version of this layout
    …:jobs       hash    number -> the job as bytes (see layout.py)
    …:linked     hash    the same of live and dead jobs of flows; for them, jobs has an empty string
    …:payloads   hash    number -> its headers and payload, if they are larger than INLINE_MAX
    …:parts      hash    number:flag -> the errors of its last attempts (2), its progress (4) or its
                         result (16)
    …:kinds      set     the kinds that may have ready jobs
    …:ready:KIND zset    jobs that may run: score -priority, member run_at and number as bytes that
                         sort as the numbers do, so that ties are in put order
    …:delayed    zset    number by the time it is due
    …:leased     zset    number by the end of its lease
    …:heads      hash    key -> the one job of the key that is ready, delayed or leased
    …:blocked    zset    key, NUL, number as bytes; all scores 0, so that a key's jobs are a range
    …:limited    hash    kind -> its limits as claims read them; see `limits` in common.lua
    …:lines:KIND zset    jobs that may run, if limit groups of the kind take turns: group, NUL,
                         priority, run_at and number as bytes; all scores 0
    …:groups     hash    number -> the limit group of the job, if it has one
    …:running:KIND       zset of those jobs of the kind that count as running: number by the end of
                         the lease; and …:running:KIND, NUL, group the same for each limit group
    …:turns      hash    kind -> full_at of its rate, and the last turn: how many jobs are left in
                         it, and its group
    …:full:KIND  zset    group by full_at of its rate
    …:circle:KIND, …:back:KIND, …:entered   which groups claims examine; see limits/claims.lua
    …:waiting    zset    number by number, of jobs that are blocked by others of their flow
    …:flow:NAME  hash    the links of a flow; see flows/links.lua
    …:cuts       list    cancelled jobs whose successors are still to be cancelled
    …:unique     hash    unique -> number
    …:dead       zset    number by number
    …:done       zset    number by the time it was done, for jobs that are kept
    …:cancelled  zset    number by the time it was cancelled, for jobs that are kept
    …:results    zset    number by the time until which a job is kept for its result
    …:pages      hash    number // 1024 -> how many jobs exist, so that lists find them
    …:notes:T    hash    the notes of a topic (pauses, workers, orders): name -> until when, as
                         bytes, and the value
    …:history:L  zset    the history of a level (0, 1 or 2; 3: paces), time and writer by the time
    …:history:L:rows     hash of the values
    …:answer:ID  string  the last answer to a put or settle, for a while: if it is lost, the call is
                         repeated and answered from here
    …:hints:DB   channel hints for workers

Workers of a version without limits can share the queue. They lose no job and run none twice. They
claim from `ready` without limits, and their leases do not count; they find no job in `lines`, until
a claim of a newer worker moves it back after its limits were removed. An entry in `lines` may be
out of date because of them, so a claim compares it with its job.

One claim is one script, which is one transaction, in memory and in the append-only file: at any
moment a job is ready or leased, never both and never neither.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pollwise.errors import ConfigError, StoreError
from pollwise.queues.base import ClaimRequest, claim_of
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.redis.flows import RedisFlows
from pollwise.queues.redis.layout import (
    NO_LAPSES,
    claims_in,
    ending_in,
    ids_in,
    lapses_in,
    packed_job,
    packed_renewal,
    packed_settlement,
    use_in,
    views_in,
)
from pollwise.queues.redis.notes import RedisNotes, time_text
from pollwise.queues.unique import check_replaced, check_twin, first_places
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import (
    COUNTED_MAX,
    LISTED_AT_ONCE,
    JobFilter,
    JobPage,
    Stats,
    stats_of_kinds,
)
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.home import watch_forks
from pollwise.runtime.jobs import (
    STATES,
    UNKNOWN_HEADERS,
    Claim,
    Job,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
)
from pollwise.runtime.store import PRUNE_SLICE
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.in_doubt import InDoubt
from pollwise.storage.redis.connections import ConnectionLost, Connections
from pollwise.storage.redis.scripts import script

#: The package of the scripts.
SCRIPTS = f"{__package__}.lua"
#: The version of the layout, and of one with flows. Older code reads a queue until it has flows.
LAYOUT, LAYOUT_WITH_FLOWS = 3, 4
#: The maximum number of jobs that one script claims, cancels, retries, drops or prunes; the server
#: is blocked meanwhile.
MOST_AT_ONCE = 1000
#: How many slices one prune examines at most, while the jobs in them stay for their results.
PRUNE_LOOKS = 100
#: The maximum number of jobs that one claim makes ready.
MOST_DUE = 1000
#: In how many seconds to claim again if a script found nothing, though more may be ready.
EMPTY_PAUSE = 0.01
#: The approximate maximum of bytes of jobs that one script returns, and of results that it stores.
MOST_BYTES = 16 * 1024 * 1024
#: The maximum bytes of one put of several jobs.
MOST_PUT_BYTES = 64 * 1024 * 1024
#: The maximum number of pages of 1,024 numbers that one script reads.
MOST_PAGES = 8
#: How many scripts a page of jobs runs at most.
SCRIPTS_OF_A_PAGE = 10
#: How often a put compares its jobs with those that have their uniques, if these keep changing.
TWIN_LOOKS_MAX = 10

#: The first and the last of some jobs.
_Numbers = tuple[int, int]
_ALL: _Numbers = (1, 2**53)


def tag_of(prefix: str, queue: str) -> str:
    """The beginning of every key of a queue."""
    for character in "%:{}":
        queue = queue.replace(character, f"%{ord(character):02X}")
    return f"{{{prefix}:{queue}}}"


class RedisStore:
    """The calls of one queue handle.

    keep: for how many seconds jobs that are done or cancelled are kept; None if they are not.
    keep_answers: for how many seconds the server keeps an answer for a repeated call.
    """

    def __init__(
        self,
        connections: Connections,
        queue: str,
        *,
        prefix: str,
        keep: float | None,
        keep_answers: float,
    ) -> None:
        self.tag: str = tag_of(prefix, queue)
        self.channel: str = f"{self.tag}:hints:{connections.address.db}"
        self._connections = connections
        self._queue = queue
        self._keep_for = keep
        self._keep = "0" if keep is None else repr(keep)
        self.notes: RedisNotes = RedisNotes(self._run)
        self.flows: RedisFlows = RedisFlows(queue, self._run, self.endings)
        self._keep_answers = f"{keep_answers * 1000:.0f}"
        self.after_fork()
        self._in_doubt = InDoubt(claim_of)
        watch_forks(self)

    def after_fork(self) -> None:
        """Answers are kept under this id, so a forked child needs its own."""
        self._id = secrets.token_hex(8)
        self._slots: list[int] = []  # free ones; the server keeps one answer per slot
        self._slots_made = 0
        self._calls = 0

    async def put(
        self, jobs: Sequence[NewJob], now: float | None, message: str | None
    ) -> tuple[list[str], int]:
        firsts = first_places(jobs)
        for job, first in zip(jobs, firsts, strict=True):
            if job is not (other := jobs[first]):
                check_twin(job, "of this batch", other.kind, other.encoded)
        batch = [n for n, first in enumerate(firsts) if first == n]
        places = {n: place for place, n in enumerate(batch, 1)}
        packed = {n: packed_job(jobs[n], jobs[n].encoded, places) for n in batch}
        layout = LAYOUT_WITH_FLOWS if any(job.place for job in jobs) else LAYOUT
        size = sum(len(part) for parts in packed.values() for part in parts)
        if size > MOST_PUT_BYTES and len(jobs) > 1:
            raise ConfigError(
                f"put got a batch of {size} bytes; at most {MOST_PUT_BYTES} at once, because it "
                "blocks the server, so split it"
            )
        for _ in range(TWIN_LOOKS_MAX):
            args = [part for n in batch for part in packed[n]]
            answer = await self._run_counted_once(
                "put", [time_text(now)], [self.channel, message or "", layout, *args]
            )
            if isinstance(answer, bytes):
                ids, fresh = ids_in(answer, len(batch))
                by_place = dict(zip(batch, ids, strict=True))
                return [by_place[first] for first in firsts], fresh
            for place, job_id, kind, payload in _in_fours(answer):
                n = batch[int(place)]
                theirs = payload.decode()
                if jobs[n].replace:
                    check_replaced(jobs[n], job_id.decode(), kind.decode(), theirs or None)
                check_twin(jobs[n], job_id.decode(), kind.decode(), theirs)
                # The same JSON, written differently: send the stored text, which compares equal.
                packed[n] = packed_job(jobs[n], theirs)
        raise StoreError(
            "the jobs that have the uniques of this batch change faster than they can be compared; "
            "nothing was put"
        )

    async def claim(
        self, asked: ClaimRequest, now: float | None, message: str | None, within: float | None
    ) -> tuple[list[Claim], float | None, list[bytes]]:
        """Return the claims; in how many seconds the next job is due, if no more are ready; and the
        kinds that limit how many of their jobs run."""
        worker, limit, kinds = asked.worker, asked.limit, asked.kinds
        claims: list[Claim] = []
        while True:
            most = min(limit - len(claims), MOST_AT_ONCE)
            blob, until, due, alone, *more = await self._run(
                "claim", time_text(now), worker, most, repr(asked.lease), MOST_BYTES, MOST_DUE,
                self._keep, int(asked.ahead), int(bool(claims)), self.channel, message or "",
                int(kinds is not None), *(kinds or ()), within=within,
            )  # fmt: skip
            message = None
            limited = more[0] if more else None
            lapses = lapses_in(more[1]) if len(more) > 1 else NO_LAPSES
            found = list(
                claims_in(
                    blob, self._queue, worker, float(until), suspect=bool(alone), lapses=lapses
                )
            )
            if limited is not None:  # limit groups took turns, so they are not in order
                found.sort(key=lambda each: _place_of(each.job))
            claims += found
            left = float(due) if due else None
            counted: list[bytes] = limited or []
            if len(claims) == limit:
                return claims, None, counted
            if alone:  # a suspect was left because of other claims: claim again soon
                return claims, None if found else 0.0, counted
            # More jobs may be due than one script makes ready: claim again, but not at once if it
            # found nothing.
            if len(found) < most and (left or left is None or claims):
                return claims, left, counted
            if not found:
                return claims, EMPTY_PAUSE, counted

    async def settle(self, settlements: Sequence[Settlement], now: float | None) -> list[str]:
        """Settle the claims that are still valid and return the ids of the others.

        The answer that the server keeps makes one call count once. A caller that settles again
        after a failed call makes another call, perhaps much later and in another batch; those
        settlements are in doubt.
        """
        refused: list[Settlement] = []
        with self._in_doubt.unless_answered(settlements):
            for part in _in_parts(settlements):
                stored = {n: s.result for n, s in enumerate(part) if s.result is not None}
                more = [s.outlasting(self._keep_for) for s in part]
                if self._keep_for is None:
                    wanted = [s.action == "dead" or _may_be_wanted(s) for s in part]
                    stored = {n: r for n, r in stored.items() if more[n] or wanted[n]}
                heads = [packed_settlement(s, n in stored, more[n]) for n, s in enumerate(part)]
                results = [result.encode() for result in stored.values()]
                answer = await self._run_counted_once(
                    "settle", [time_text(now), self._keep], [b"".join(heads), *results]
                )
                refused += [part[n] for n in _places(answer)]
            refused = [s for s in refused if not await self._settled_before(s, now)]
        self._in_doubt.answered(settlements)
        return [s.claim.job.id for s in refused]

    async def _settled_before(self, settlement: Settlement, now: float | None) -> bool:
        """True if a call whose answer was lost had settled this claim.

        Then its token is one higher; a claim by another worker adds two.
        """
        claim = settlement.claim
        if settlement not in self._in_doubt:
            return False
        for _, token in await self._views(JobFilter(limit=1), _only(claim.job.id), now):
            return token == claim.token + 1
        return settlement.action in ("done", "cancelled")

    async def renew(
        self,
        claims: Sequence[Claim],
        lease: float,
        progress: Mapping[str, Progress],
        now: float | None,
    ) -> Renewal:
        batch = b"".join([packed_renewal(claim, progress.get(claim.job.id)) for claim in claims])
        answer = await self._run("renew", time_text(now), repr(lease), batch)
        lost, cancel = (_places(part) for part in answer.split(b";"))
        return Renewal(
            tuple(claims[n].job.id for n in lost), tuple(claims[n].job.id for n in cancel)
        )

    async def cancel(self, ids: Sequence[str], now: float | None) -> dict[str, State]:
        states: dict[str, State] = {}
        for n in range(0, len(ids), MOST_AT_ONCE):
            part = ids[n : n + MOST_AT_ONCE]
            numbers = [number_of(job_id) for job_id in part]
            codes = await self._run("cancel", time_text(now), self._keep, *numbers)
            states |= {i: STATES[code] for i, code in zip(part, codes, strict=True) if code >= 0}
        return states

    async def stats(self, now: float | None) -> Stats:
        *counts, age = await self._run("stats", time_text(now))
        return Stats.of(dict(zip(STATES, counts, strict=True)), float(age) if age else None)

    async def stats_by_kind(self, now: float | None, most: int) -> dict[str, Stats]:
        answer = await self._run("stats", time_text(now), min(most, COUNTED_MAX))
        time, incomplete = float(answer[0]), answer[1].decode()
        capped: set[State] = {STATES[int(code)] for code in incomplete}
        rows = [
            (kind.decode(), code, count, max(time - float(run_at), 0.0))
            for kind, code, count, run_at in _in_fours(answer[2:])
        ]
        return stats_of_kinds(rows, capped)

    async def get(self, job_id: str, now: float | None) -> JobInfo | None:
        for info, _ in await self._views(JobFilter(limit=1), _only(job_id), now):
            return info
        return None

    async def endings(self, ids: Sequence[str], now: float | None) -> dict[str, JobEnding | None]:
        found: dict[str, JobEnding | None] = {}
        for n in range(0, len(ids), MOST_AT_ONCE):
            by_number = {number_of(job_id): job_id for job_id in ids[n : n + MOST_AT_ONCE]}
            answer = await self._run("ended", time_text(now), "read", "0", "0", 0, *by_number)
            for number, code, *rest in answer:
                found[by_number[int(number)]] = ending_in(int(code), *rest)
        return found

    async def limit_use(self, limits: KindLimits, groups: int, now: float | None) -> LimitUse:
        answer = await self._run("limits/use", time_text(now), limits.kind, MOST_AT_ONCE)
        return use_in(answer, limits, groups)

    async def arrivals(self, chosen: JobFilter, now: float | None) -> list[JobInfo]:
        numbers = _beyond(place_after(chosen.after), _ALL, False)
        return [info for info, _ in await self._views(chosen, numbers, now)]

    async def page(self, chosen: JobFilter, now: float | None) -> JobPage:
        """The newest put first; the cursor is the number of the last job that was examined."""
        found: list[JobInfo] = []
        examined = 0
        numbers = _ALL
        if chosen.after is not None:
            numbers = _beyond(place_after(chosen.after), _ALL, True)
        for _ in range(SCRIPTS_OF_A_PAGE):
            blob, time, left = await self._page(chosen, numbers, now, LISTED_AT_ONCE, True)
            part = [info for info, _ in views_in(blob, self._queue, time)]
            for info in part:
                examined += 1
                if chosen.matches(info, time):
                    if len(found) == chosen.limit:
                        return JobPage(found, found[-1].job.id, examined)
                    found.append(info)
            if len(part) == LISTED_AT_ONCE:
                left = _beyond(number_of(part[-1].job.id), numbers, True)
            if left is None:
                return JobPage(found, None, examined)
            numbers = left
        full = len(found) == chosen.limit
        return JobPage(found, found[-1].job.id if full else str(numbers[1] + 1), examined)

    async def _views(
        self, chosen: JobFilter, among: _Numbers, now: float | None
    ) -> list[tuple[JobInfo, int]]:
        """The first jobs among these numbers in put order, each with its token."""
        found: list[tuple[JobInfo, int]] = []
        numbers: _Numbers | None = among
        while numbers and len(found) < chosen.limit:
            left = chosen.limit - len(found)
            blob, time, numbers = await self._page(chosen, numbers, now, left, False)
            found += views_in(blob, self._queue, time, listed=among[0] != among[1])
        return found

    async def _page(
        self, chosen: JobFilter, numbers: _Numbers, now: float | None, limit: int, newest: bool
    ) -> tuple[Any, float, _Numbers | None]:
        """The answer of page.lua, the time, and the numbers that it has not read, if any."""
        state = "" if chosen.state is None else STATES.index(chosen.state)
        answer, time, last, _ = await self._run(
            "page", time_text(now), *numbers, int(newest), limit, MOST_PAGES, MOST_BYTES,
            state, chosen.worker or "", *(chosen.kinds or ()),
        )  # fmt: skip
        left = _beyond(int(last), numbers, newest) if last else None
        return answer, float(time), left

    async def retry(self, ids: Sequence[str] | None, now: float | None) -> int:
        return await self._change_ended("retry", ids, now)

    async def compensated(self, ids: Sequence[str] | None, now: float | None) -> list[str]:
        found: list[bytes] = []
        asked = (time_text(now), "compensated", self._keep)
        numbers = sorted({number_of(job_id) for job_id in ids or ()} - {0})
        for n in range(0, len(numbers), MOST_AT_ONCE):
            part = numbers[n : n + MOST_AT_ONCE]
            found += (await self._run("ended", *asked, "0", len(part), *part))[0]
        go_on = "0" if ids is None else ""
        while go_on:
            some, cursor = await self._run("ended", *asked, go_on, MOST_AT_ONCE)
            found += some
            go_on = cursor.decode()
        return [each.decode() for each in found]

    async def drop(
        self, ids: Sequence[str] | None, states: Sequence[State], now: float | None
    ) -> int:
        return await self._change_ended("drop" if states == DEAD else "drop_ended", ids, now)

    async def _change_ended(self, what: str, ids: Sequence[str] | None, now: float | None) -> int:
        """Retry or drop ended jobs, a bounded number at a time."""
        count = 0
        asked = (time_text(now), what, self._keep)
        if ids is not None:
            numbers = sorted({number_of(job_id) for job_id in ids} - {0})
            for n in range(0, len(numbers), MOST_AT_ONCE):
                part = numbers[n : n + MOST_AT_ONCE]
                found, _ = await self._run("ended", *asked, "0", len(part), *part)
                count += int(found)
            return count
        go_on = "0"
        while go_on:
            found, cursor = await self._run("ended", *asked, go_on, MOST_AT_ONCE)
            count += int(found)
            go_on = cursor.decode()
        return count

    async def prune(self, keep: float | None, now: float | None) -> int:
        kept = "" if keep is None else repr(keep)
        asked = (time_text(now), "prune", self._keep)
        count = 0
        for _ in range(PRUNE_LOOKS):
            found, more = await self._run("ended", *asked, kept, PRUNE_SLICE)
            count += int(found)
            if not more or count >= PRUNE_SLICE:
                break
        return count

    async def _run(self, name: str, *args: bytes | str | int, within: float | None = None) -> Any:
        return await self._connections.run(script(SCRIPTS, name), self.tag, *args, within=within)

    async def _run_counted_once(
        self, name: str, before: Sequence[bytes | str | int], after: Sequence[bytes | str | int]
    ) -> Any:
        """Run a script that counts once: if its answer is lost, it is repeated once."""
        slot = self._slots.pop() if self._slots else self._slots_made
        self._slots_made = max(self._slots_made, slot + 1)
        self._calls += 1
        where: list[str | int] = [
            f"{self.tag}:answer:{self._id}-{slot}",
            self._calls,
            self._keep_answers,
        ]
        args = (*before, *where, *after)
        try:
            try:
                return await self._run(name, *args)
            except ConnectionLost:
                return await self._run(name, *args)
        finally:
            self._slots.append(slot)


def _place_of(job: Job) -> tuple[int, float, int]:
    """The place of a job in the order of claims."""
    return -job.priority, job.run_at, number_of(job.id)


def _only(job_id: str) -> _Numbers:
    return number_of(job_id), number_of(job_id)


def _beyond(number: int, numbers: _Numbers, newest: bool) -> _Numbers:
    """The numbers that come after this one."""
    first, last = numbers
    return (first, number - 1) if newest else (number + 1, last)


def _in_fours(parts: list[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(parts)] * 4, strict=True)


def _may_be_wanted(settlement: Settlement) -> bool:
    """True if others of a flow may need the result, although the client does not say so."""
    return settlement.claim.job.headers is UNKNOWN_HEADERS


def _in_parts(settlements: Sequence[Settlement]) -> Iterator[Sequence[Settlement]]:
    """The whole batch, or parts of it if its results are large."""
    first = size = 0
    for n, settlement in enumerate(settlements):
        if settlement.result is not None:
            more = len(settlement.result.encode())
            if n > first and size + more > MOST_BYTES:
                yield settlements[first:n]
                first, size = n, 0
            size += more
    yield settlements[first:]


def _places(answer: bytes) -> list[int]:
    return [int(place) for place in answer.split(b",")] if answer else []
