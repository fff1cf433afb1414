"""The Redis side of `RedisQueue`: the layout of a job, and the calls of the scripts.

Every key of a queue begins with `{prefix:queue}`, whose braces are a hash tag: in a cluster all
keys of a queue are in one slot, so a script reaches them all. (`%`, `:`, `{` and `}` in a queue's
name are written as %25, %3A, %7B and %7D, so that no two queues share a key.)

    …:meta       hash    last: the number of the newest job; layout: the version of this layout
    …:jobs       hash    number -> the job as bytes (below)
    …:payloads   hash    number -> the payload, if it is larger than INLINE_MAX
    …:kinds      set     the kinds that may have ready jobs
    …:ready:KIND zset    jobs that may run: score -priority, member run_at and number as bytes that
                         sort as the numbers do, so that ties are in put order
    …:delayed    zset    number by the time it is due
    …:leased     zset    number by the end of its lease
    …:heads      hash    key -> the one job of the key that is ready, delayed or leased
    …:blocked    zset    key, NUL, number as bytes; all scores 0, so that a key's jobs are a range
    …:unique     hash    unique -> number
    …:dead       zset    number by number
    …:done       zset    number by the time it was done, for jobs that are kept
    …:pages      hash    number // 1024 -> how many jobs exist, so that lists find them
    …:answer:ID  string  the last answer to a put or settle, for a while: if it is lost, the call is
                         repeated and answered from here
    …:hints:DB   channel hints for workers

A job is one string, so that a batch is one HMGET and one HSET. First the fields that change (state,
has an error, attempt, token, run_at, since, created_at, worker, error), then those that never do,
packed by the client: priority, kind, key, unique and the payload, which no script decodes.

One claim is one script, which is one transaction, in memory and in the append-only file: at any
moment a job is ready or leased, never both and never neither.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from pollwise.errors import ConfigError, SchemaError, StoreError
from pollwise.queues.base import Stats, claim_of
from pollwise.queues.unique import check_twin, first_places
from pollwise.runtime.jobs import STATES, Claim, Job, JobInfo, NewJob, Settlement, State
from pollwise.storage.ids import number_of, place_after
from pollwise.storage.in_doubt import InDoubt
from pollwise.storage.redis.connections import ConnectionLost, Connections
from pollwise.storage.redis.scripts import script

#: The oldest Redis that has all commands of the scripts.
OLDEST_REDIS = (6, 2)
#: The version of the layout above.
LAYOUT = 1
#: The maximum size of a payload inside the job, in bytes; larger ones are stored separately, so
#: that settling a job does not move them.
INLINE_MAX = 1024
#: The maximum number of jobs that one script claims, retries, drops or prunes; the server is
#: blocked meanwhile.
MOST_AT_ONCE = 1000
#: The maximum number of jobs that one claim makes ready.
MOST_DUE = 1000
#: The approximate maximum of bytes of jobs that one script returns.
MOST_BYTES = 16 * 1024 * 1024
#: The maximum bytes of payloads in one put of several jobs.
MOST_PUT_BYTES = 64 * 1024 * 1024
#: The maximum number of pages of 1,024 numbers that one script reads.
MOST_PAGES = 8
#: How often a put compares its jobs with those that have their uniques, if these keep changing.
TWIN_LOOKS_MAX = 10

_HEAD = struct.Struct(">BBIIdddHH")
_TAIL = struct.Struct(">BhHHH")
_ENTRY = struct.Struct(">QI")
_DUE = struct.Struct(">Bd")
_SETTLEMENT = struct.Struct(">QIBBBdH")
_ACTIONS = {"done": 0, "retry": 1, "dead": 2}
_CODES = {state: code for code, state in enumerate(STATES)}


def tag_of(prefix: str, queue: str) -> str:
    """The beginning of every key of a queue."""
    for character in "%:{}":
        queue = queue.replace(character, f"%{ord(character):02X}")
    return f"{{{prefix}:{queue}}}"


class RedisStore:
    """The calls of one queue handle.

    keep_answers: for how many seconds the server keeps an answer for a repeated call.
    """

    def __init__(
        self,
        connections: Connections,
        queue: str,
        *,
        prefix: str,
        keep_answers: float,
    ) -> None:
        self.tag = tag_of(prefix, queue)
        self.channel = f"{self.tag}:hints:{connections.address.db}"
        self._connections = connections
        self._queue = queue
        self._keep_answers = f"{keep_answers * 1000:.0f}"
        self._id = secrets.token_hex(8)
        self._slots: list[int] = []  # free ones; the server keeps one answer per slot
        self._slots_made = 0
        self._calls = 0
        self._in_doubt = InDoubt(claim_of)

    async def put(
        self, jobs: Sequence[NewJob], now: float | None, message: str | None
    ) -> tuple[list[str], int]:
        size = sum(job.size for job in jobs)
        if size > MOST_PUT_BYTES and len(jobs) > 1:
            raise ConfigError(
                f"put got a batch with {size} bytes of payloads; at most {MOST_PUT_BYTES} at once, "
                "because it blocks the server, so split it"
            )
        firsts = first_places(jobs)
        for job, first in zip(jobs, firsts, strict=True):
            if job is not (other := jobs[first]):
                check_twin(job, "of this batch", other.kind, other.encoded)
        batch = [n for n, first in enumerate(firsts) if first == n]
        packed = {n: _packed(jobs[n], jobs[n].encoded) for n in batch}
        for _ in range(TWIN_LOOKS_MAX):
            args = [part for n in batch for part in packed[n]]
            answer = await self._kept(
                "put", [_time(now)], [self.channel, message or "", LAYOUT, *args]
            )
            if isinstance(answer, bytes):
                ids, fresh = _ids(answer, len(batch))
                by_place = dict(zip(batch, ids, strict=True))
                return [by_place[first] for first in firsts], fresh
            for place, job_id, kind, payload in _in_fours(answer):
                n = batch[int(place)]
                theirs = payload.decode()
                check_twin(jobs[n], job_id.decode(), kind.decode(), theirs)
                # The same JSON, written differently: send the stored text, which compares equal.
                packed[n] = _packed(jobs[n], theirs)
        raise StoreError(
            "the jobs that have the uniques of this batch change faster than they can be compared; "
            "nothing was put"
        )

    async def claim(
        self,
        worker: str,
        limit: int,
        lease: float,
        kinds: Sequence[str] | None,
        now: float | None,
        message: str | None,
    ) -> tuple[list[Claim], float | None]:
        """The claims; and, if no more are ready, in how many seconds the next job is due."""
        claims: list[Claim] = []
        while True:
            most = min(limit - len(claims), MOST_AT_ONCE)
            blob, until, due = await self._run(
                "claim", _time(now), worker, most, repr(lease), MOST_BYTES, MOST_DUE,
                self.channel, message or "", "0" if kinds is None else "1", *(kinds or ()),
            )  # fmt: skip
            message = None
            end = float(until)
            found = [Claim(info.job, token, worker, end) for info, token in self._entries(blob)]
            claims += found
            left = float(due) if due else None
            if len(claims) == limit:
                return claims, None
            # More jobs may be due than one script makes ready: claim again.
            if len(found) < most and (left or left is None or claims):
                return claims, left

    async def settle(
        self, settlements: Sequence[Settlement], now: float | None, keep: bool
    ) -> list[str]:
        """Settle the claims that are still valid and return the ids of the others.

        The answer that the server keeps makes one call count once. A caller that settles again
        after a failed call makes another call, perhaps much later and in another batch; those
        settlements are in doubt.
        """
        with self._in_doubt.unless_answered(settlements):
            answer = await self._kept(
                "settle",
                [_time(now), "1" if keep else "0"],
                [b"".join(map(_packed_settlement, settlements))],
            )
            refused = [settlements[n] for n in _places(answer)]
            refused = [s for s in refused if not await self._settled_before(s, now)]
        self._in_doubt.answered(settlements)
        return [s.claim.job.id for s in refused]

    async def _settled_before(self, settlement: Settlement, now: float | None) -> bool:
        """True if a call whose answer was lost had settled this claim.

        Then its token is one higher, as after a claim by another worker, but with no new attempt.
        """
        claim = settlement.claim
        if settlement not in self._in_doubt:
            return False
        number = number_of(claim.job.id)
        blob, *_ = await self._run(
            "page", _time(now), number - 1, number, 1, "", "", MOST_PAGES, MOST_BYTES
        )
        for info, token in self._entries(blob):
            return token == claim.token + 1 and info.job.attempt <= claim.job.attempt
        return settlement.action == "done"

    async def renew(self, claims: Sequence[Claim], lease: float, now: float | None) -> list[str]:
        args: list[str | int] = []
        for claim in claims:
            args += [number_of(claim.job.id), claim.token, claim.worker]
        answer = await self._run("renew", _time(now), repr(lease), *args)
        return [claims[n].job.id for n in _places(answer)]

    async def stats(self, now: float | None) -> Stats:
        *counts, age = await self._run("stats", _time(now))
        by_state: dict[str, int] = dict(zip(STATES, counts, strict=True))
        return Stats(**by_state, oldest_age=float(age) if age else None)

    async def page(
        self,
        now: float | None,
        *,
        job_id: str | None = None,
        state: State | None = None,
        kind: str | None = None,
        limit: int = 1,
        after: str | None = None,
    ) -> list[JobInfo]:
        if job_id is not None and not number_of(job_id):
            return []
        if kind == "":
            return []
        begin = place_after(after) if job_id is None else number_of(job_id) - 1
        last = str(number_of(job_id)) if job_id is not None else "9007199254740992"
        found: list[JobInfo] = []
        go_on = str(begin)
        while go_on and len(found) < limit:
            blob, time, cursor = await self._run(
                "page", _time(now), go_on, last, limit - len(found),
                "" if state is None else _CODES[state], kind or "", MOST_PAGES, MOST_BYTES,
            )  # fmt: skip
            found += [_at(info, float(time)) for info, _ in self._entries(blob)]
            go_on = cursor.decode()
        return found

    async def dead(self, what: str, ids: Sequence[str] | None, now: float | None) -> int:
        """Retry or drop dead jobs, a bounded number at a time."""
        count = 0
        if ids is not None:
            numbers = sorted({number_of(job_id) for job_id in ids} - {0})
            for n in range(0, len(numbers), MOST_AT_ONCE):
                part = numbers[n : n + MOST_AT_ONCE]
                found, _ = await self._run("dead", _time(now), what, "0", len(part), *part)
                count += int(found)
            return count
        go_on = "0"
        while go_on:
            found, cursor = await self._run("dead", _time(now), what, go_on, MOST_AT_ONCE)
            count += int(found)
            go_on = cursor.decode()
        return count

    async def prune(self, keep: float, now: float | None) -> int:
        return int(await self._run("prune", _time(now), repr(keep), MOST_AT_ONCE))

    async def _run(self, name: str, *args: bytes | str | int) -> Any:
        return await self._connections.run(script(__package__, name), self.tag, *args)

    async def _kept(
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

    def _entries(self, blob: bytes) -> Iterator[tuple[JobInfo, int]]:
        """The jobs of an answer, each with its token."""
        at, end, queue = 0, len(blob), self._queue
        while at < end:
            number, size = _ENTRY.unpack_from(blob, at)
            at += _ENTRY.size
            (
                state, failed, attempt, token, run_at, since, created_at, worker_size, error_size,
            ) = _HEAD.unpack_from(blob, at)  # fmt: skip
            place = at + _HEAD.size
            at += size
            worker = blob[place : place + worker_size].decode() if worker_size else None
            place += worker_size
            error = blob[place : place + error_size].decode() if failed else None
            place += error_size
            _, priority, kind_size, key_size, unique_size = _TAIL.unpack_from(blob, place)
            place += _TAIL.size
            kind = blob[place : place + kind_size].decode()
            place += kind_size
            key = blob[place : place + key_size].decode() if key_size else None
            place += key_size
            unique = blob[place : place + unique_size].decode() if unique_size else None
            payload = json.loads(blob[place + unique_size : at])
            job = Job(
                str(number), queue, kind, payload, key, priority, attempt, created_at, run_at,
                unique,
            )  # fmt: skip
            yield JobInfo(job, STATES[state], since, worker, error), token


async def check_server(connections: Connections, tag: str, *, allow_eviction: bool) -> None:
    """Refuse a server that is too old, that may evict jobs, or whose keys belong to others."""
    facts = await _facts(connections)
    version = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    oldest = ".".join(map(str, OLDEST_REDIS))
    if numbers and numbers < OLDEST_REDIS:
        raise StoreError(
            f"{connections.address} is Redis {version}; Pollwise needs Redis {oldest} or newer, "
            "or Valkey"
        )
    policy = facts.get("maxmemory_policy", "")
    # volatile-* evicts only keys with a time to live, which jobs do not have.
    if policy.startswith("allkeys") and facts.get("maxmemory") != "0" and not allow_eviction:
        raise StoreError(
            f"{connections.address} evicts keys when its memory is full (maxmemory-policy "
            f"{policy}), and jobs with them. Set maxmemory-policy to noeviction, use another "
            "server, or accept the loss with allow_eviction=true."
        )
    found = await connections.run_script(script(__package__, "check"), tag)
    if isinstance(found, list):
        key, kind = (part.decode() for part in found)
        raise SchemaError(
            f"{connections.address}: the key {key!r} is a {kind} of another program; choose "
            "another `prefix` or queue name"
        )
    if found and int(found) > LAYOUT:
        raise SchemaError(
            f"{connections.address}: the queue has layout {found.decode()}; this code knows up to "
            f"{LAYOUT}. Upgrade pollwise, or use another queue."
        )


async def _facts(connections: Connections) -> dict[str, str]:
    """The server's INFO; empty if this user may not read it."""
    facts = {}
    for section in ("server", "memory"):
        try:
            text = await connections.command("INFO", section)
        except StoreError as error:
            if error.permanent and "permission" in str(error):
                continue
            raise
        lines = (line.partition(":") for line in text.decode().splitlines())
        facts.update({name: value for name, _, value in lines})
    return facts


def _time(now: float | None) -> str:
    return "" if now is None else repr(now)


def _packed(job: NewJob, encoded: str) -> list[bytes]:
    """A job as put.lua takes it, and its payload if that is stored separately."""
    if job.run_at is not None:
        due = _DUE.pack(2, job.run_at)
    else:
        due = _DUE.pack(1, job.delay) if job.delay else _NOW
    kind = job.kind.encode()
    key = job.key.encode() if job.key is not None else b""
    unique = job.unique.encode() if job.unique is not None else b""
    payload = encoded.encode()
    apart = len(payload) > INLINE_MAX
    tail = _TAIL.pack(apart, job.priority, len(kind), len(key), len(unique))
    if apart:
        return [b"".join((due, tail, kind, key, unique)), payload]
    return [b"".join((due, tail, kind, key, unique, payload))]


_NOW = _DUE.pack(0, 0.0)


def _packed_settlement(settlement: Settlement) -> bytes:
    claim = settlement.claim
    error = b"" if settlement.error is None else settlement.error.encode()
    token = claim.token if 0 <= claim.token < 2**32 else 0
    head = _SETTLEMENT.pack(
        number_of(claim.job.id), token, _ACTIONS[settlement.action], settlement.counted,
        settlement.error is not None, settlement.delay, len(error),
    )  # fmt: skip
    return head + error


def _ids(answer: bytes, count: int) -> tuple[list[str], int]:
    """The ids of a put, in order, and how many of them are new; see put.lua."""
    first, _, already = answer.decode().partition(";")
    number = int(first)
    if not already:
        return [str(n) for n in range(number, number + count)], count
    twins = dict(part.split("=") for part in already.split(","))
    ids = []
    for place in range(count):
        twin = twins.get(str(place))
        ids.append(str(number) if twin is None else twin)
        number += twin is None
    return ids, count - len(twins)


def _in_fours(parts: list[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(parts)] * 4, strict=True)


def _places(answer: bytes) -> list[int]:
    return [int(place) for place in answer.split(b",")] if answer else []


def _at(info: JobInfo, now: float) -> JobInfo:
    """The job at this time: an overdue one is ready, even before a claim made it so."""
    if info.state in ("delayed", "leased") and info.since <= now:
        return JobInfo(info.job, "ready", info.since, info.worker, info.error)
    return info
