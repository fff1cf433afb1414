"""What every state of the controller does: one suite for all stores, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pollwise.controller.state.base import BRIEF, new_id
from pollwise.controller.state.values import (
    ArtefactRow,
    Contact,
    JobRow,
    LogPlace,
    RunEnding,
    Token,
    WorkerSeen,
)
from pollwise.errors import ConfigError, JobError
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import VirtualClock
from tests.controller.state.states import Main, Stand

On = Callable[[Main], None]


# Submitting


def test_a_job_is_kept_as_it_was_given(on_state: On) -> None:
    async def main(s: Stand) -> None:
        given = JobRow(
            new_id(s.clock),
            "build",
            payload='{"x":"ä\\u0000"}',
            requires={"memory_gb": ">=8"},
            requires_hash="abc",
            priority=3,
            key="k",
            unique="u",
            delay_s=1.5,
            timeout_s=60.0,
            attempts=5,
            inputs=("a.txt", "b.txt"),
            created_by="token-1",
        )
        [kept] = await s.state.add_jobs([given])
        now = s.clock.epoch()
        size = len(given.payload.encode()) if given.payload else 0
        assert kept == replace(given, payload_bytes=size, created_at=now, changed_at=now)
        assert await s.state.job(given.id) == kept

    on_state(main)


def test_a_put_that_is_repeated_keeps_one_job(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.job()
        assert await s.state.add_jobs([replace(job, kind="other")]) == [job]

    on_state(main)


def test_a_second_unique_is_answered_by_the_first(on_state: On) -> None:
    async def main(s: Stand) -> None:
        first = await s.job(unique="nightly")
        rows = [JobRow(new_id(s.clock), "build", unique=u) for u in ("nightly", "other", "other")]
        rows.append(JobRow(new_id(s.clock), "build"))
        kept = await s.state.add_jobs(rows)
        assert [row.id for row in kept] == [first.id, rows[1].id, rows[1].id, rows[3].id]

    on_state(main)


def test_two_controllers_put_one_unique_at_once(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other = s.make()
        rows = [JobRow(new_id(s.clock), "build", unique="once") for _ in range(20)]
        kept = await asyncio.gather(
            *((s.state, other)[n % 2].add_jobs([row]) for n, row in enumerate(rows))
        )
        assert len({row.id for [row] in kept}) == 1

    on_state(main)


def test_a_job_is_marked_queued_once_it_was_put(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.job()
        wrong = (job.id, 1, "q1")
        assert await s.state.mark_ready([wrong, ("missing", 0, "q")]) == [False, False]
        assert await s.state.mark_ready([(job.id, 0, "q1")]) == [True]
        again = await s.now(job)
        assert (again.state, again.queue_id) == ("ready", "q1")
        assert await s.state.mark_ready([(job.id, 0, "q1")]) == [True], "a repeat is no error"
        await s.state.cancel(job.id)
        assert await s.state.mark_ready([(job.id, 0, "q1")]) == [False]
        assert (await s.now(job)).state == "cancelled"

    on_state(main)


def test_what_got_stuck_between_the_two_steps_is_found(on_state: On) -> None:
    async def main(s: Stand) -> None:
        old = await s.job()
        await s.clock.advance(30)
        await s.job()
        await s.ready()
        assert [row.id for row in await s.state.stuck(20, 10)] == [old.id]
        assert len(await s.state.stuck(0, 1)) == 1

    on_state(main)


# Views


def test_pages_of_jobs(on_state: On) -> None:
    async def main(s: Stand) -> None:
        made = []
        for n in range(5):
            made.append(await s.ready(kind="build" if n % 2 else "test"))
            await s.clock.advance(1)
        newest = [row.id for row in reversed(made)]
        assert [row.id for row in await s.state.list_jobs()] == newest
        assert [row.id for row in await s.state.list_jobs(limit=2)] == newest[:2]
        after = newest[1]
        assert [row.id for row in await s.state.list_jobs(limit=2, after=after)] == newest[2:4]
        await s.state.deliver([s.run(made[1], "w9")])
        assert [row.id for row in await s.state.list_jobs(state="leased")] == [made[1].id]
        assert [row.id for row in await s.state.list_jobs(worker="w9")] == [made[1].id]
        found = await s.state.list_jobs(kind="build", state="ready")
        assert [row.id for row in found] == [made[3].id]
        assert await s.state.list_jobs(kind="a\0b", worker="\ud800") == []
        for limit in (0, 1001, True, "3"):
            with pytest.raises(ConfigError, match="limit"):
                await s.state.list_jobs(limit=limit)  # type: ignore[arg-type]

    on_state(main)


def test_pages_leave_long_json_out(on_state: On) -> None:
    async def main(s: Stand) -> None:
        payload = '"' + "x" * BRIEF + '"'
        long = await s.ready(payload=payload)
        [row] = await s.state.list_jobs()
        assert (row.payload, row.payload_bytes) == (None, BRIEF + 2)
        assert (await s.now(long)).payload == payload
        assert await s.state.jobs(["nobody", long.id]) == {long.id: await s.now(long)}

    on_state(main)


# Delivering


def test_a_delivered_job_runs(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.ready()
        await s.clock.advance(5)
        run = s.run(job, attempt=2, key="k", receipt="r", token=2**62)
        [started] = await s.state.deliver([run])
        now = s.clock.epoch()
        assert started is not None
        assert (started.state, started.worker_id, started.attempt) == ("leased", "w1", 2)
        assert (started.started_at, started.queue_id) == (now, run.queue_id)
        assert await s.state.runs_of("w1") == [replace(run, delivered_at=now)]
        assert await s.state.run(job.id) == replace(run, delivered_at=now)
        assert await s.state.runs_of("w2") == []

    on_state(main)


def test_a_job_claimed_before_it_was_marked_runs(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.job()
        [started] = await s.state.deliver([s.run(job)])
        assert started is not None
        assert await s.state.mark_ready([(job.id, 0, f"q-{job.id}")]) == [False]
        assert (await s.now(job)).state == "leased"

    on_state(main)


def test_the_same_claim_delivered_again_changes_little(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.ready()
        run = s.run(job)
        await s.state.deliver([run])
        await s.state.contact([Contact(job.id, "w1", progress=0.5)])
        before = await s.now(job)
        await s.clock.advance(7)
        assert await s.state.deliver([run]) == [before]
        again = await s.state.run(job.id)
        assert again is not None
        assert again.delivered_at == s.clock.epoch()
        assert again.heard_of_at == s.clock.epoch() - 7

    on_state(main)


def test_what_is_void_is_not_handed_out(on_state: On) -> None:
    async def main(s: Stand) -> None:
        cancelled = await s.ready()
        await s.state.cancel(cancelled.id)
        done = await s.leased()
        await s.state.end_runs([RunEnding(done.id, "w1", "done")])
        fine = await s.ready()
        unknown = replace(fine, id="0" * 32)
        other_round = await s.ready()
        given = [
            s.run(cancelled),
            s.run(done, token=2),
            s.run(unknown),
            s.run(other_round, round=1),
            s.run(fine),
        ]
        told = await s.state.deliver(given)
        assert [None if row is None else row.id for row in told] == [None] * 4 + [fine.id]
        assert [run.job_id for run in await s.state.runs_of("w1")] == [fine.id]

    on_state(main)


def test_a_newer_claim_takes_a_job_over_and_an_older_does_not(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.ready()
        first = s.run(job, "w1")
        await s.clock.advance(130)
        second = s.run(job, "w2", token=2, attempt=2)
        assert None not in await s.state.deliver([first])
        assert None not in await s.state.deliver([second])
        assert await s.state.deliver([first]) == [None], "a controller that stood still for long"
        now = await s.now(job)
        assert (now.worker_id, now.attempt, now.state) == ("w2", 2, "leased")
        assert await s.state.runs_of("w1") == []

    on_state(main)


def test_one_job_claimed_twice_in_a_batch(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job, other = await s.ready(), await s.ready()
        older, newer = s.run(job), s.run(job, "w2", token=2, until=s.clock.epoch() + 130)
        told = await s.state.deliver([older, s.run(other), newer])
        assert [row.worker_id for row in told if row] == ["w1", "w1", "w2"]
        assert (await s.now(job)).worker_id == "w2"

    on_state(main)


def test_two_controllers_deliver_the_claims_of_one_job(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other = s.make()
        for _ in range(10):
            job = await s.ready()
            old, new = s.run(job), s.run(job, "w2", token=2, until=s.clock.epoch() + 121)
            await asyncio.gather(s.state.deliver([old]), other.deliver([new]))
            run = await s.state.run(job.id)
            assert run is not None
            assert run.worker_id == "w2"
            assert (await s.now(job)).worker_id == "w2"

    on_state(main)


# Contacts


def test_a_contact_is_noted(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        silent = await s.leased("w1")
        await s.clock.advance(10)
        until = s.clock.epoch() + 120
        [run, other, lost, unknown] = await s.state.contact(
            [
                Contact(job.id, "w1", until, 0.25, "compiling"),
                Contact(silent.id, "w1", until, heard=False),
                Contact(silent.id, "w2", until),
                Contact("gone\0", "w1", until, 1.0),
            ]
        )
        assert run is not None
        assert other is not None
        assert lost is None
        assert unknown is None
        assert (run.until, run.heard_of_at, run.cancel) == (until, s.clock.epoch(), False)
        assert (other.until, other.heard_of_at) == (until, None)
        now = await s.now(job)
        assert (now.progress, now.message, now.changed_at) == (0.25, "compiling", s.clock.epoch())
        await s.state.contact([Contact(job.id, "w1", until - 50, message="linking")])
        now, again = await s.now(job), await s.state.run(job.id)
        assert again is not None
        assert (now.progress, now.message, again.until) == (0.25, "linking", until)

    on_state(main)


def test_a_contact_hears_of_a_cancel(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        await s.state.cancel(job.id)
        [run] = await s.state.contact([Contact(job.id, "w1")])
        assert run is not None
        assert run.cancel
        [run] = await s.state.runs_of("w1")
        assert run.cancel

    on_state(main)


def test_nothing_is_a_batch_too(on_state: On) -> None:
    async def main(s: Stand) -> None:
        assert await s.state.contact([]) == []
        assert await s.state.end_runs([]) == []
        assert await s.state.deliver([]) == []
        assert await s.state.add_jobs([]) == []
        assert await s.state.mark_ready([]) == []
        assert await s.state.seen([]) == []
        assert await s.state.jobs([]) == {}
        assert await s.state.forget([]) == 0
        await s.state.audit([])
        await s.state.tokens_used({})

    on_state(main)


# RunEnding


def test_a_run_ends_once(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        await s.clock.advance(3)
        done = RunEnding(job.id, "w1", "done", result='{"ok":true}', exit_code=0)
        assert await s.state.end_runs([done]) == ["ended"]
        now = await s.now(job)
        assert (now.state, now.result, now.result_bytes) == ("done", '{"ok":true}', 11)
        assert (now.exit_code, now.finished_at, now.ended_by) == (0, s.clock.epoch(), "w1")
        assert await s.state.runs_of("w1") == []
        late = RunEnding(job.id, "w1", "dead", error="no")
        assert await s.state.end_runs([late]) == ["repeated"]
        assert await s.state.end_runs([replace(late, worker_id="w2")]) == ["lost"]
        assert await s.now(job) == now

    on_state(main)


def test_a_run_that_is_lost_changes_nothing(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.ready()
        await s.state.deliver([s.run(job)])
        until = s.clock.epoch() + 300
        await s.state.deliver([s.run(job, "w2", token=2, attempt=2, until=until)])
        before = await s.now(job)
        endings = [
            RunEnding(job.id, "w1", "done"),
            RunEnding("gone", "w1", "done"),
            RunEnding("a\0", "w", "done"),
        ]
        assert await s.state.end_runs(endings) == ["lost", "lost", "lost"]
        assert await s.state.end_runs([RunEnding(job.id, "w2", "done", token=1)]) == ["lost"]
        assert await s.now(job) == before
        assert await s.state.end_runs([RunEnding(job.id, "w2", "done", token=2)]) == ["ended"]

    on_state(main)


def test_one_job_ended_twice_in_a_batch(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        endings = [
            RunEnding(job.id, "w1", "done"),
            RunEnding(job.id, "w1", "dead"),
            RunEnding(job.id, "w2", "dead"),
        ]
        assert await s.state.end_runs(endings) == ["ended", "repeated", "lost"]
        assert (await s.now(job)).state == "done"

    on_state(main)


def test_a_failed_run_is_queued_again(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        failed = RunEnding(job.id, "w1", "ready", error="exit 1\0" + "x" * 5000, exit_code=1)
        assert await s.state.end_runs([failed]) == ["ended"]
        now = await s.now(job)
        assert (now.state, now.finished_at, now.attempt) == ("ready", None, 1)
        assert now.error is not None
        assert len(now.error) == 2000
        assert now.error.startswith("exit 1\\0x")
        assert await s.state.end_runs([failed]) == ["repeated"]
        until = s.clock.epoch() + 130
        [again] = await s.state.deliver([s.run(job, "w2", token=2, attempt=2, until=until)])
        assert again is not None
        assert again.error == now.error, "why it failed before stays to be seen"
        assert await s.state.end_runs([failed]) == ["lost"], "another runs it now"
        await s.state.end_runs([RunEnding(job.id, "w2", "done")])
        assert (await s.now(job)).error is None

    on_state(main)


def test_many_reports_of_one_run_at_once_end_it_once(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other = s.make()
        jobs = [await s.leased() for _ in range(10)]
        endings = [RunEnding(job.id, "w1", "done") for job in jobs]
        told = await asyncio.gather(
            s.state.end_runs(endings),
            other.end_runs(list(reversed(endings))),
            other.end_runs(endings),
        )
        told[1].reverse()
        for each in zip(*told, strict=True):
            assert sorted(each) == ["ended", "repeated", "repeated"]

    on_state(main)


def test_a_job_is_ended_if_it_is_as_expected(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        end = s.state.end_job
        assert await end(job.id, 0, ["ready"], "dead") is None
        assert await end(job.id, 1, ["leased"], "dead") is None
        assert await end("gone", 0, ["leased"], "dead") is None
        dead = await end(job.id, 0, ["ready", "leased"], "dead", error="3 attempts")
        assert dead is not None
        assert (dead.state, dead.error, dead.finished_at) == (
            "dead",
            "3 attempts",
            s.clock.epoch(),
        )
        assert await s.state.run(job.id) is None
        assert await s.state.end_runs([RunEnding(job.id, "w1", "done")]) == ["lost"]

    on_state(main)


def test_lapsed_runs_are_released(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job, asked, fresh = await s.leased(), await s.leased(), await s.leased("w2")
        await s.state.cancel(asked.id)
        await s.clock.advance(119)
        await s.state.contact([Contact(fresh.id, "w2", s.clock.epoch() + 120)])
        assert await s.state.release_lapsed(0, 10) == []
        await s.clock.advance(10)
        assert await s.state.release_lapsed(10, 10) == []
        assert len(await s.state.release_lapsed(0, 1)) == 1
        assert len(await s.state.release_lapsed(0, 10)) == 1
        now = await s.now(job)
        assert (now.state, now.error) == ("ready", "the lease of w1 ran out")
        assert (await s.now(asked)).state == "cancelled"
        assert (await s.now(fresh)).state == "leased"
        assert await s.state.end_runs([RunEnding(job.id, "w1", "done")]) == ["lost"]

    on_state(main)


# What people do


def test_cancel(on_state: On) -> None:
    async def main(s: Stand) -> None:
        putting, ready, leased = await s.job(), await s.ready(), await s.leased()
        for job in (putting, ready):
            row = await s.state.cancel(job.id)
            assert row is not None
            assert (row.state, row.finished_at) == ("cancelled", s.clock.epoch())
        row = await s.state.cancel(leased.id)
        assert row is not None
        assert (row.state, row.cancel, row.finished_at) == ("leased", True, None)
        assert await s.state.cancel("gone\0") is None
        await s.state.end_runs([RunEnding(leased.id, "w1", "done")])
        row = await s.state.cancel(leased.id)
        assert row is not None
        assert row.state == "done", "too late"

    on_state(main)


def test_what_shall_be_cancelled_never_runs_again(on_state: On) -> None:
    async def main(s: Stand) -> None:
        failed, lapsed = await s.leased(), await s.leased()
        for job in (failed, lapsed):
            await s.state.cancel(job.id)
        assert await s.state.end_runs([RunEnding(failed.id, "w1", "ready", error="x")]) == ["ended"]
        now = await s.now(failed)
        assert (now.state, now.finished_at) == ("cancelled", s.clock.epoch())
        await s.clock.advance(200)
        assert await s.state.deliver([s.run(lapsed, "w2", token=2)]) == [None]
        assert (await s.now(lapsed)).state == "cancelled"
        assert await s.state.run(lapsed.id) is None

    on_state(main)


def test_an_ended_job_is_made_anew(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        assert await s.state.renew_job(job.id, 0) is None, "it runs"
        await s.state.end_runs([RunEnding(job.id, "w1", "dead", error="x", exit_code=2)])
        await s.clock.advance(9)
        assert await s.state.renew_job(job.id, 1) is None
        anew = await s.state.renew_job(job.id, 0)
        assert anew == replace(
            job,
            state="putting",
            round=1,
            attempt=0,
            queue_id=None,
            worker_id=None,
            started_at=None,
            changed_at=s.clock.epoch(),
        )
        assert await s.state.renew_job(job.id, 0) is None, "two people at once"
        assert await s.state.deliver([s.run(job, token=9)]) == [None], "the old round's job"
        assert await s.state.mark_ready([(job.id, 1, "q2")]) == [True]
        assert None not in await s.state.deliver([s.run(job, round=1, queue_id="q2")])

    on_state(main)


def test_old_jobs_are_forgotten_with_all_they_have(on_state: On) -> None:
    async def main(s: Stand) -> None:
        old, live = await s.leased(), await s.ready()
        await s.state.append_log(old.id, 1, 0, b"hello", 100, b"")
        await s.state.put_artefact(ArtefactRow(old.id, "a", "b1", 1, "00"), 10)
        await s.state.end_runs([RunEnding(old.id, "w1", "done")])
        await s.clock.advance(50)
        recent = await s.leased()
        await s.state.end_runs([RunEnding(recent.id, "w1", "done")])
        assert await s.state.finished_before(49, 10) == [old.id]
        assert await s.state.renew_job(old.id, 0) is None, "its artefacts may be gone"
        assert await s.state.finished_before(0, 10) == [old.id, recent.id]
        assert await s.state.finished_before(0, 1) == [old.id]
        assert await s.state.forget([old.id, live.id, "gone"]) == 1
        assert await s.state.job(old.id) is None
        assert await s.state.log_place(old.id) is None
        assert await s.state.read_log(old.id, 0, 10) == b""
        assert await s.state.artefacts(old.id) == []
        assert await s.state.job(live.id) is not None

    on_state(main)


# Requirements and stats


def test_requirements_are_known_while_they_are_needed(on_state: On) -> None:
    async def main(s: Stand) -> None:
        asks = {"requires": {"platform": "ios"}, "requires_hash": "h1"}
        job = await s.ready(**asks)
        await s.ready(kind="test")
        await s.leased(kind="done", requires_hash="h2")
        found = [(r.kind, r.hash, r.requires) for r in await s.state.requirements()]
        assert found == [
            ("build", "h1", {"platform": "ios"}),
            ("done", "h2", {}),
            ("test", "", {}),
        ]
        await s.state.end_runs(
            [RunEnding(r.job_id, "w1", "done") for r in await s.state.runs_of("w1")]
        )
        await s.clock.advance(3600)
        assert await s.state.prune_requirements(0) == 0, "too young"
        await s.clock.advance(3601)
        assert await s.state.prune_requirements(0) == 1
        assert {r.kind for r in await s.state.requirements()} == {"build", "test"}
        await s.state.cancel(job.id)
        await s.state.prune_requirements(0)
        assert await s.state.renew_job(job.id, 0) is not None
        assert "h1" in {r.hash for r in await s.state.requirements()}

    on_state(main)


def test_a_requirement_in_use_stays(on_state: On) -> None:
    async def main(s: Stand) -> None:
        await s.job()
        for _ in range(3):
            await s.clock.advance(3700)
            await s.job()
        for each in await s.state.list_jobs():
            await s.state.cancel(each.id)
        assert await s.state.prune_requirements(3600) == 0

    on_state(main)


def test_stats(on_state: On) -> None:
    async def main(s: Stand) -> None:
        empty = await s.state.stats(60)
        assert (sum(empty.jobs.values()), empty.waiting, empty.workers, empty.runs) == (0, (), 0, 0)
        await s.worker()
        await s.ready()
        await s.clock.advance(100)
        await s.worker()
        for _ in range(2):
            await s.ready(requires_hash="h")
        await s.leased()
        await s.job()
        stats = await s.state.stats(60)
        assert dict(stats.jobs) == {
            "putting": 1, "ready": 3, "leased": 1, "done": 0, "dead": 0, "cancelled": 0,
        }  # fmt: skip
        assert [
            (w.kind, w.requires_hash, w.count, round(w.oldest_age_s)) for w in stats.waiting
        ] == [
            ("build", "", 1, 100),
            ("build", "h", 2, 0),
        ]
        assert (stats.workers, stats.workers_live, stats.runs) == (2, 1, 1)

    on_state(main)


# Workers


def test_workers(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        worker = await s.worker(
            "mac\0", capabilities={"ram": 8, "tags": ["a"]}, slots=4, token_expires_at=now + 5
        )
        assert (worker.name, worker.registered_at, worker.last_seen) == ("mac\\0", now, now)
        assert (worker.capabilities, worker.slots) == ({"ram": 8, "tags": ["a"]}, 4)
        assert await s.state.worker(worker.id) == worker
        assert await s.state.worker_by_token(worker.token_hash) == worker
        assert await s.state.worker_by_token("") is None
        assert await s.state.add_worker(worker) == worker, "a repeat is no error"
        drained = await s.state.set_drain(worker.id, True)
        assert drained == replace(worker, drain=True)
        assert await s.state.set_drain("gone", True) is None

    on_state(main)


def test_pages_of_workers(on_state: On) -> None:
    async def main(s: Stand) -> None:
        made = []
        for n in range(4):
            made.append(await s.worker(f"w{n}", drain=n == 2))
            await s.clock.advance(100)
        ids = [row.id for row in made]
        assert [row.id for row in await s.state.list_workers()] == ids
        assert [row.id for row in await s.state.list_workers(limit=2, after=ids[0])] == ids[1:3]
        assert [row.id for row in await s.state.list_workers(live=True, live_s=150)] == ids[3:]
        assert [row.id for row in await s.state.list_workers(live=False, live_s=150)] == ids[:3]
        assert [row.id for row in await s.state.list_workers(drain=True)] == [ids[2]]

    on_state(main)


def test_when_workers_were_seen_is_noted_in_batches(on_state: On) -> None:
    async def main(s: Stand) -> None:
        one, two = await s.worker(address="1.1.1.1"), await s.worker()
        await s.clock.advance(60)
        batch = [
            WorkerSeen(one.id, 10),
            WorkerSeen(two.id, 0, "2.2.2.2"),
            WorkerSeen("gone"),
            WorkerSeen(one.id, 20),
        ]
        assert await s.state.seen(batch[:3]) == ["gone"]
        now = s.clock.epoch()
        found = await s.state.workers([one.id, two.id])
        assert found[one.id] == replace(one, last_seen=now - 10)
        assert found[two.id] == replace(two, last_seen=now, address="2.2.2.2")
        await s.state.seen(batch[3:])
        assert await s.state.workers([one.id]) == {one.id: found[one.id]}, "the newest stays"

    on_state(main)


def test_a_worker_that_leaves_gives_its_jobs_back(on_state: On) -> None:
    async def main(s: Stand) -> None:
        worker = await s.worker()
        job, asked, others = (
            await s.leased(worker.id),
            await s.leased(worker.id),
            await s.leased(),
        )
        await s.state.cancel(asked.id)
        runs = await s.state.remove_worker(worker.id)
        assert runs is not None
        assert {run.job_id for run in runs} == {job.id, asked.id}
        assert (await s.now(job)).state == "ready"
        assert (await s.now(asked)).state == "cancelled"
        assert (await s.now(others)).state == "leased"
        assert await s.state.worker(worker.id) is None
        assert await s.state.remove_worker(worker.id) is None

    on_state(main)


def test_workers_not_seen_for_long_are_forgotten(on_state: On) -> None:
    async def main(s: Stand) -> None:
        gone, busy = await s.worker(), await s.worker()
        await s.leased(busy.id)
        await s.clock.advance(100)
        here = await s.worker()
        assert await s.state.prune_workers(100, 10) == 1
        assert set(await s.state.workers([gone.id, busy.id, here.id])) == {busy.id, here.id}

    on_state(main)


# Tokens and audit


def test_tokens(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        given = Token(new_id(s.clock), "ci", "put", "h1", created_by="root", expires_at=now + 9)
        token = await s.state.add_token(given)
        assert token == replace(given, created_at=now)
        assert await s.state.token(token.id) == await s.state.token_by_hash("h1") == token
        assert await s.state.token("no") is None
        assert await s.state.token_by_hash("no") is None
        await s.clock.advance(3)
        await s.state.tokens_used({token.id: 1.0, "gone": 0.0})
        await s.state.tokens_used({token.id: 2.0})
        used = await s.state.token(token.id)
        assert used is not None
        assert used.last_used_at == pytest.approx(now + 2)
        assert await s.state.rotate_token(token.id, "other", "h2", None) is None
        rotated = await s.state.rotate_token(token.id, "h1", "h2", None)
        assert rotated == replace(used, hash="h2", expires_at=None)
        assert await s.state.token_by_hash("h1") is None
        revoked = await s.state.revoke_token(token.id)
        assert revoked is not None
        assert revoked.revoked_at == s.clock.epoch()
        await s.clock.advance(3)
        assert await s.state.revoke_token(token.id) == revoked
        assert await s.state.rotate_token(token.id, "h2", "h3", None) is None
        assert await s.state.revoke_token("gone") is None
        more = [
            await s.state.add_token(Token(new_id(s.clock), "x", "admin", f"h{n}"))
            for n in range(3, 6)
        ]
        ids = [row.id for row in await s.state.list_tokens()]
        assert ids == sorted([token.id, *(row.id for row in more)])
        assert [row.id for row in await s.state.list_tokens(after=ids[1], limit=1)] == ids[2:3]

    on_state(main)


def test_audit(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        await s.state.audit([AuditEntry("root", "token.add", "t1", "scope=put", "127.0.0.1")])
        await s.clock.advance(10)
        await s.state.audit([AuditEntry("ci", "job.cancel", f"j{n}") for n in range(3)])
        whole = await s.state.list_audit()
        assert [entry.what for entry in whole] == ["j2", "j1", "j0", "t1"]
        assert whole[-1] == AuditEntry(
            "root", "token.add", "t1", "scope=put", "127.0.0.1", whole[-1].id, now
        )
        assert await s.state.list_audit(before=whole[1].id, limit=1) == [whole[2]]
        assert await s.state.list_audit(who="root") == [whole[3]]
        assert await s.state.list_audit(action="job.cancel", what="j1") == [whole[1]]
        assert await s.state.prune_audit(10, 100) == 1
        assert len(await s.state.list_audit()) == 3

    on_state(main)


# Artefacts and logs


def test_rows_of_artefacts(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()
        now = s.clock.epoch()
        given = ArtefactRow(job.id, "a/b.txt", "blob1", 5, "ab" * 32, created_by="w1")
        assert await s.state.put_artefact(given, 2) is None
        kept = replace(given, created_at=now)
        assert await s.state.artefacts(job.id) == [kept]
        assert await s.state.artefact(job.id, "a/b.txt") == kept
        assert await s.state.artefact(job.id, "a/b.txt", input=True) is None
        assert await s.state.put_artefact(given, 2) is None, "the same again"
        await s.state.put_artefact(replace(given, input=True, blob="in"), 2)
        assert await s.state.put_artefact(replace(given, blob="blob2", size=2**40), 2) == kept
        await s.state.put_artefact(replace(given, name="Z", blob="blob3"), 2)
        with pytest.raises(JobError, match="has 2 artefacts already"):
            await s.state.put_artefact(replace(given, name="c", blob="blob4"), 2)
        with pytest.raises(JobError, match="there is no job"):
            await s.state.put_artefact(replace(given, job_id="gone"), 2)
        assert [(a.name, a.size) for a in await s.state.artefacts(job.id)] == [
            ("Z", 5),
            ("a/b.txt", 2**40),
        ]

    on_state(main)


def test_a_log_grows_by_offset(on_state: On) -> None:
    async def main(s: Stand) -> None:
        job = await s.leased()

        async def append(offset: int, data: bytes, part: int = 1) -> LogPlace | None:
            return await s.state.append_log(job.id, part, offset, data, 20, b"[cut]")

        assert await s.state.log_place(job.id) == LogPlace()
        assert await append(0, b"hello ") == LogPlace(6, 1, 6)
        assert await append(0, b"hello ") == LogPlace(6, 1, 6), "repeated"
        assert await append(3, b"lo wo") == LogPlace(8, 1, 8), "overlapping"
        assert await append(9, b"x") == LogPlace(8, 1, 8), "a gap"
        assert await append(8, b"") == LogPlace(8, 1, 8)
        assert await append(8, b"rld\0\xff") == LogPlace(13, 1, 13)
        assert await s.state.read_log(job.id, 0, 100) == b"hello world\0\xff"
        assert await s.state.read_log(job.id, 4, 5) == b"o wor"
        assert await s.state.read_log(job.id, 13, 5) == b""
        assert await append(0, b"again\n", 2) == LogPlace(19, 2, 6), "the next run begins anew"
        assert await append(13, b"late", 1) is None
        assert await append(6, b"abc", 2) == LogPlace(25, 2, 9, True)
        assert await append(9, b"def", 2) == LogPlace(25, 2, 12, True)
        assert await append(0, b"third", 3) == LogPlace(25, 3, 5, True)
        assert await s.state.read_log(job.id, 13, 100) == b"again\na[cut]"
        assert await s.state.log_place(job.id) == LogPlace(25, 3, 5, True)
        assert await s.state.append_log("gone", 1, 0, b"x", 20, b"") is None
        assert await s.state.log_place("gone") is None

    on_state(main)


def test_a_log_that_two_controllers_get_at_once_has_each_byte_once(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other, job = s.make(), await s.leased()
        data = bytes(range(100))
        for start in range(0, 100, 10):
            piece = data[: start + 10]
            await asyncio.gather(
                *(each.append_log(job.id, 1, 0, piece, 10**6, b"") for each in (s.state, other) * 3)
            )
        assert await s.state.read_log(job.id, 0, 1000) == data

    on_state(main)


def test_the_clock_is_virtual(on_state: On) -> None:
    async def main(s: Stand) -> None:
        assert isinstance(s.clock, VirtualClock)
        await s.state.ping()

    on_state(main)
