"""Each store against memory: the same random program, the same answers, step by step.

The queue in memory is short enough to be believed, so it serves as the model. Each program runs on
both under one virtual clock; after every step all results and all views have to agree, and the
promises have to hold: nothing lost, no two live leases on a job, one job of a key at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pollwise.errors import LeaseLost, PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import STATES, Claim, JobInfo, NewJob, Progress, Settlement
from pollwise.testing import VirtualClock
from tests.queues.benches import migrated

Step = tuple[str, dict[str, Any]]

KINDS = ("a", "b")
delays = st.sampled_from([0, 0, 0, 1, 2, 5])
picks = st.lists(st.integers(0, 40), min_size=1, max_size=4)

jobs = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "payload": st.sampled_from([0, 0, True, {"x": 1, "y": 2}, {"y": 2, "x": 1}]),
        "key": st.sampled_from([None, "k", "k", "l"]),
        "priority": st.sampled_from([0, 0, -1, 1]),
        "delay": delays,
        "unique": st.sampled_from([None, None, "u", "v"]),
        "headers": st.sampled_from([None, None, {"a": "☃"}]),
    }
)
#: Replaces the job that has the `unique`, of the same kind and key or not.
replacing = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["a", "a", "a", "b"]),
        "payload": st.sampled_from([0, {"x": 1}, "x" * 2000]),
        "key": st.sampled_from([None, None, "k"]),
        "priority": st.sampled_from([0, 0, -1, 1]),
        "delay": delays,
        "unique": st.sampled_from(["u", "v", "w"]),
        "headers": st.sampled_from([None, {"a": "☃"}]),
        "replace": st.just(True),
    }
)
actions = st.sampled_from(
    ["done", "done", "result", "kept", "kept", "retry", "dead", "cancelled", "give_back"]
)


def step(name: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(parts))


claims = step(
    "claim",
    limit=st.integers(1, 4),
    lease=st.sampled_from([1, 2, 5, 50]),
    kinds=st.sampled_from([None, None, ["a"], ["b"], ["b", "a", "b"], ["c"]]),
    ahead=st.booleans(),
)
puts = step("put", jobs=st.lists(jobs, min_size=1, max_size=4))
replaces = step("put", jobs=st.lists(st.one_of(replacing, replacing, jobs), min_size=1, max_size=3))
#: A claim whose leases run out; so some jobs become suspects.
lapses = step("lapse", limit=st.integers(1, 4), ahead=st.booleans())


def plain(steps: list[Step]) -> list[Step]:
    """Each lapse as the two steps that it is."""
    made: list[Step] = []
    for name, what in steps:
        if name == "lapse":
            made += [("claim", {"lease": 1, "kinds": None, **what}), ("elapse", {"units": 1})]
        else:
            made.append((name, what))
    return made


programs = st.lists(
    st.one_of(
        lapses,
        lapses,
        puts,
        puts,
        replaces,
        replaces,
        claims,
        claims,
        claims,
        step("settle", picks=st.lists(st.tuples(st.integers(0, 40), actions, delays), max_size=4)),
        step("settle", picks=st.lists(st.tuples(st.integers(0, 3), actions, delays), max_size=3)),
        step(
            "renew",
            picks=picks,
            lease=st.sampled_from([1, 5]),
            progress=st.none() | st.tuples(st.integers(0, 40), st.sampled_from([0.5, 1])),
        ),
        step("cancel", picks=picks),
        step("cancel", picks=st.lists(st.integers(0, 5), min_size=1, max_size=2)),
        step("elapse", units=st.sampled_from([0.5, 1, 1, 2, 5])),
        step("retry", picks=st.none() | picks),
        step("drop", picks=st.none() | picks),
        step("prune"),
        step("pause", kind=st.sampled_from([None, "a", "b"])),
        step("resume", kind=st.sampled_from([None, "a", "b"])),
        step("endings", picks=picks),
    ),
    min_size=10,
    max_size=50,
).map(plain)


class Side:
    """One of the two queues, with its ids and tokens told as plain numbers."""

    def __init__(self, *handles: Queue) -> None:
        self.handles = itertools.cycle(handles)  # each call by another handle
        self.numbers: dict[str, int] = {}  # of a job's id, in the order they were put
        self.ids: list[str] = []
        self.claims: list[Claim] = []

    async def take(self, name: str, what: dict[str, Any]) -> Any:
        """Take one step; its outcome is comparable with that of the other side."""
        try:
            return await getattr(self, f"_{name}")(next(self.handles), **what)
        except LeaseLost as error:
            return "lost", [self.numbers[job_id] for job_id in error.lost]
        except PollwiseError as error:
            return type(error).__name__

    async def _put(self, queue: Queue, jobs: list[dict[str, Any]]) -> Any:
        put = await queue.put([NewJob(**job) for job in jobs])
        for job_id in put:
            if job_id not in self.numbers:
                self.numbers[job_id] = len(self.ids)
                self.ids.append(job_id)
        return [self.numbers[job_id] for job_id in put]

    async def _claim(self, queue: Queue, limit: int, lease: float, kinds: Any, ahead: bool) -> Any:
        found = await queue.claim("w", limit, lease, 0, kinds, ahead=ahead)
        self.claims += found
        return [
            self._plain(claim.job) | {"until": claim.until, "suspect": claim.suspect}
            for claim in found
        ]

    async def _settle(self, queue: Queue, picks: list[tuple[int, str, float]]) -> Any:
        batch = []
        for pick, action, delay in picks:
            if self.claims:
                claim = self._pick(pick)
                match action:
                    case "done":
                        batch.append(Settlement.done(claim))
                    case "result":
                        batch.append(Settlement.done(claim, {"n": delay}))
                    case "kept":
                        batch.append(Settlement.done(claim, {"n": delay}, keep=delay or 3))
                    case "cancelled":
                        batch.append(Settlement.cancelled(claim, "stopped", keep=delay))
                    case "dead":
                        batch.append(Settlement.dead(claim, "broken", "where" if delay else None))
                    case "retry":
                        batch.append(Settlement.retry(claim, delay, "again"))
                    case _:
                        batch.append(Settlement.give_back(claim, delay))
        await queue.settle(batch)

    async def _renew(self, queue: Queue, picks: list[int], lease: float, progress: Any) -> Any:
        if not self.claims:
            return None
        chosen = [self._pick(pick) for pick in picks]
        said = {}
        if progress is not None:
            said = {self._pick(progress[0]).job.id: Progress(progress[1], "note")}
        renewal = await queue.renew(chosen, lease, said)
        return [sorted(self.numbers[i] for i in ids) for ids in (renewal.lost, renewal.cancel)]

    def _pick(self, pick: int) -> Claim:
        return self.claims[-1 - pick % len(self.claims)]  # 0 is the newest

    async def _cancel(self, queue: Queue, picks: list[int]) -> Any:
        states = await queue.cancel(self._some_ids(picks) or [])
        return {self.numbers[job_id]: state for job_id, state in states.items()}

    async def _retry(self, queue: Queue, picks: list[int] | None) -> Any:
        return await queue.retry(self._some_ids(picks))

    async def _drop(self, queue: Queue, picks: list[int] | None) -> Any:
        return await queue.drop(self._some_ids(picks))

    async def _prune(self, queue: Queue) -> Any:
        return await queue.prune()

    async def _pause(self, queue: Queue, kind: str | None) -> Any:
        return await queue.pause(kind, by="ann")

    async def _resume(self, queue: Queue, kind: str | None) -> Any:
        return await queue.resume(kind)

    async def _endings(self, queue: Queue, picks: list[int]) -> Any:
        found = await queue.endings([*(self._some_ids(picks) or []), "no-such-job"])
        return {self.numbers.get(job_id): ending for job_id, ending in found.items()}

    def _some_ids(self, picks: list[int] | None) -> list[str] | None:
        return None if picks is None else [i for p in picks for i in self.ids[p : p + 1]]

    async def view(self) -> tuple[Any, dict[int, dict[str, Any]]]:
        """The stats, and every job."""
        queue = next(self.handles)
        shown = {self.numbers[v.job.id]: self._info(v) for v in await queue.jobs(limit=1000)}
        stats, pauses = await queue.stats(), await queue.paused()
        kinds = await queue.stats_by_kind()
        for state in STATES:
            assert sum(getattr(each, state) for each in kinds.values()) == getattr(stats, state)
        return (stats, kinds, pauses), shown

    def _info(self, view: JobInfo) -> dict[str, Any]:
        return self._plain(view.job) | {
            "state": view.state, "since": view.since, "worker": view.worker,
            "errors": view.errors, "claimed_at": view.claimed_at, "progress": view.progress,
            "cancel": view.cancel, "result": view.result,
        }  # fmt: skip

    def _plain(self, job: Any) -> dict[str, Any]:
        plain = replace(job, id=str(self.numbers[job.id]), queue="")
        return {name: getattr(plain, name) for name in plain.__slots__}


class Promises:
    """What must hold whatever the program does."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[int, float]] = {}  # token and end of the newest, by job
        self._before: dict[int, dict[str, Any]] = {}

    def after_claim(self, found: list[Claim], now: float) -> None:
        assert len(found) == 1 or not any(claim.suspect for claim in found)
        for claim in found:
            token, until = self._leases.get(claim.job.id, (0, 0.0))
            assert until <= now, f"job {claim.job.id} was claimed under a live lease until {until}"
            assert claim.token > token, f"job {claim.job.id} got the token {claim.token} again"
            self._leases[claim.job.id] = (claim.token, claim.until)

    def after_view(self, name: str, side: Side, shown: dict[int, dict[str, Any]]) -> None:
        for job_id, number in side.numbers.items():
            state = shown.get(number, {}).get("state")
            if state == "leased":
                self._leases[job_id] = (self._leases[job_id][0], shown[number]["since"])
            elif job_id in self._leases:
                self._leases[job_id] = (self._leases[job_id][0], 0.0)
            if state is None:
                was = self._before.get(number, {}).get("state")
                cancelled = self._before.get(number, {}).get("cancel")
                rightly = {
                    "settle": was in ("leased", "ready"),
                    "drop": was == "dead",
                    "prune": was in ("done", "cancelled"),
                    "cancel": was in ("ready", "delayed", "blocked"),
                    "claim": cancelled,  # its lease ran out
                }
                # A result may have ended by itself; then it was a finished job.
                gone = was in (None, "done", "cancelled") or rightly.get(name)
                assert gone, f"job {number} was {was}, and {name} lost it"
        live: Counter[str] = Counter()
        for job in shown.values():
            if job["key"] is not None and job["state"] in ("ready", "delayed", "leased"):
                live[job["key"]] += 1
        assert set(live.values()) <= {1}, f"several jobs of a key are not blocked: {live}"
        keys = {job["key"] for job in shown.values() if job["state"] == "blocked"}
        assert keys <= set(live), f"blocked behind nothing: {keys - set(live)}"
        self._before = shown


async def agree(clock: VirtualClock, model: Side, store: Side, steps: list[Step]) -> None:
    promises = Promises()
    for number, (name, what) in enumerate(steps):
        here = f"step {number}, {name} {what}"
        if name == "elapse":
            await clock.advance(what["units"])
        else:
            had = len(store.claims)
            wanted, got = await model.take(name, what), await store.take(name, what)
            assert got == wanted, f"{here}: the store (left) and memory (right) differ"
            promises.after_claim(store.claims[had:], clock.epoch())
            event(f"{name}: {'refused' if isinstance(got, (str, tuple)) else 'done'}")
        (got_stats, got_jobs), (stats, shown) = await store.view(), await model.view()
        assert got_stats == stats, f"after {here}: stats of the store (left) and memory (right)"
        assert got_jobs == shown, f"after {here}: jobs of the store (left) and memory (right)"
        promises.after_view(name, store, got_jobs)


#: Opens a handle on a queue of this name.
Opener = Callable[..., Queue]


@pytest.fixture(scope="module", params=["sqlite", "redis", "redis_oldest", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("model") / "jobs.db"
        return partial(SqliteQueue, path, synchronous="off")
    if request.param == "postgres":
        return partial(PostgresQueue, migrated(request.getfixturevalue("postgres").dsn()))
    return partial(RedisQueue, request.getfixturevalue(request.param).url(), prefix="model")


examples = itertools.count()


def compare(opener: Opener, steps: list[Step], keep: float | None) -> None:
    clock = VirtualClock()
    name = f"example {next(examples)}"  # a queue of its own, in one store for all

    async def main() -> None:
        handles = [opener(name, clock=clock, keep=keep) for _ in range(2)]
        try:
            memory = MemoryQueue(name, clock=clock, keep=keep)
            await agree(clock, Side(memory), Side(*handles), steps)
        finally:
            for handle in handles:
                await handle.close()

    clock.run(main())


keeps = st.sampled_from([None, None, 2])


@settings(max_examples=25, deadline=None)
@given(steps=programs, keep=keeps)
def test_store_and_memory_agree(opener: Opener, steps: list[Step], keep: float | None) -> None:
    compare(opener, steps, keep)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(steps=programs, keep=keeps)
def test_store_and_memory_agree_for_long(
    opener: Opener, steps: list[Step], keep: float | None
) -> None:
    compare(opener, steps, keep)
