"""Schedules: each tick is put once, however many see it, in the transaction that advances it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.notes import NOTE_VALUE_MAX
from pollwise.queues.schedules.calls import TickResult
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    payloads,
    refused,
    require,
)
from pollwise.testing.conformance.codecs import Masked
from pollwise.testing.conformance.steering import INFO

#: The time between two ticks, in units of the bench, which may be less than the shortest allowed.
STEP = 4


async def _scheduling(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.schedules, "schedules")
    return queue


def _step(bench: Bench) -> float:
    return max(STEP * bench.unit, 1.0)


async def _pass_tick(bench: Bench, queue: Queue, name: str, count: int = 1) -> None:
    """Let time pass until the next tick of a schedule, and those after it, are due."""
    found = await queue.schedules.get(name)
    expect(found is not None and found.next_at is not None, f"{name} has no next tick: {found}")
    assert found is not None and found.next_at is not None
    left = found.next_at - queue.clock.epoch() + (count - 1) * _step(bench)
    await bench.elapse(left / bench.unit + 0.5)


async def _tick(queue: Queue, name: str) -> TickResult:
    kept = await queue.schedules.read()
    return await queue.schedules.put_tick(name, kept.notes[name])


async def check_schedule_is_kept(bench: Bench) -> None:
    """A schedule is kept as it was set; another handle sees it; setting it again replaces it."""
    queue, other = await _scheduling(bench), await bench.queue()
    equal(await queue.schedules.list(), [], "the schedules of a new queue")
    job = NewJob("mail ☃", {"a": [1, None]}, key="k", priority=3, headers={"h": "☃"})
    before = queue.clock.epoch()
    made = await queue.schedules.set(
        "daily ☃/*", job, cron="30 2 * * *", tz="Europe/Zurich", catch_up="all", overlap="queue",
        jitter="10s", by="ann",
    )  # fmt: skip
    await queue.schedules.set("each", NewJob("mail"), every=_step(bench))
    found = await other.schedules.get("daily ☃/*")
    expect(found == made, f"what another handle reads: {found}, wanted {made}")
    assert found is not None
    equal((found.payload, found.headers), ({"a": [1, None]}, {"h": "☃"}), "payload and headers")
    expect((found.next_at or 0) > before, f"the next tick is in the past: {found.next_at}")
    names = [each.name for each in await other.schedules.list()]
    equal(names, ["daily ☃/*", "each"], "the names")
    await other.schedules.set("each", NewJob("mail", 2), every=_step(bench))
    again = await queue.schedules.get("each")
    equal(again and again.payload, 2, "the payload after it was set again")
    equal(await other.schedules.remove("each"), True, "remove")
    equal(await queue.schedules.remove("each"), False, "remove again")
    equal(await queue.schedules.get("each"), None, "a schedule that was removed")


async def check_tick_is_put_once(bench: Bench) -> None:
    """Of many handles that see a tick, one puts its job, even after that job is done."""
    queue, other = await _scheduling(bench), await bench.queue()
    await queue.schedules.set("each", NewJob("mail", 1), every=_step(bench))
    early = await _tick(queue, "each")
    equal((early.outcome, early.wait > 0), ("early", True), "a tick that is not due")
    for _ in range(3):
        await _pass_tick(bench, queue, "each")
        seen = (await other.schedules.read()).notes["each"]
        results = await asyncio.gather(
            *(each.schedules.put_tick("each", seen) for each in [queue, other] * 5)
        )
        equal(Counter(each.outcome for each in results), {"put": 1, "lost": 9}, "outcomes of ten")
        [put] = [each for each in results if each.outcome == "put"]
        [value] = {each.value for each in results}
        equal(value, (await queue.schedules.read()).notes["each"], "the value that all get")
        claims = await bench.take(other)
        equal([claim.job.id for claim in claims], [put.job], "the job of the tick")
        equal(payloads(claims), [1], "its payload")
        await other.settle(done(claims))
        late = await queue.schedules.put_tick("each", seen)
        equal(late.outcome, "lost", "the same tick again, after its job is done")
        equal(await bench.take(queue), [], "jobs after the tick was tried again")
        after = await queue.schedules.get("each")
        equal(after and (after.last_job, after.last_tick), (put.job, put.tick), "what is kept")


async def check_tick_of_a_changed_schedule(bench: Bench) -> None:
    """A handle with an old schedule puts nothing after a change, a pause, or a removal."""
    queue, other = await _scheduling(bench), await bench.queue()
    for name in ("changed", "paused", "removed"):
        await queue.schedules.set(name, NewJob("mail", name), every=_step(bench))
    seen = (await other.schedules.read()).notes
    await queue.schedules.set("changed", NewJob("mail", "new"), every=2 * _step(bench))
    equal(await queue.schedules.pause("paused"), True, "pause")
    equal(await queue.schedules.pause("paused"), False, "pause again")
    await queue.schedules.remove("removed")
    await _pass_tick(bench, queue, "changed")
    for name, value in seen.items():
        result = await other.schedules.put_tick(name, value)
        now = (await queue.schedules.read()).notes.get(name)
        equal((result.outcome, result.value), ("lost", now), f"a tick of {name}")
    equal((await _tick(other, "paused")).outcome, "early", "a tick of a paused schedule")
    equal(await bench.take(queue), [], "jobs")
    equal(await other.schedules.resume("paused"), True, "resume")
    equal(await other.schedules.resume("paused"), False, "resume again")
    resumed = await queue.schedules.get("paused")
    now_ = queue.clock.epoch()
    expect(resumed and (resumed.next_at or 0) > now_ - 1, "ticks of a pause are not caught up")
    equal((await _tick(queue, "changed")).outcome, "put", "a tick of the changed schedule")
    equal(payloads(await bench.take(queue)), ["new"], "its job")


async def check_missed_ticks(bench: Bench) -> None:
    """Missed ticks: one job for all, a job for each, or none."""
    queue = await _scheduling(bench)
    for catch_up in ("one", "all", "none"):
        await queue.schedules.set(
            catch_up, NewJob("mail", catch_up), every=_step(bench), catch_up=catch_up
        )
    await _pass_tick(bench, queue, "one", count=3)
    found: dict[str, list[str]] = {}
    for name in ("one", "all", "none"):
        while (result := await _tick(queue, name)).outcome != "early":
            found.setdefault(name, []).append(result.outcome)
    # The third tick is not too late for "none".
    equal(found, {"one": ["put"], "all": ["put"] * 3, "none": ["put"]}, "outcomes of three ticks")
    equal(Counter(payloads(await bench.take(queue))), {"one": 1, "all": 3, "none": 1}, "the jobs")


async def check_overlapping_ticks(bench: Bench) -> None:
    """With overlap "skip", a tick puts nothing while the job before has not ended."""
    queue, other = await _scheduling(bench), await bench.queue()
    await queue.schedules.set("each", NewJob("mail", 1), every=_step(bench))
    await _pass_tick(bench, queue, "each")
    first = await _tick(queue, "each")
    equal(first.outcome, "put", "the first tick")
    await _pass_tick(bench, queue, "each")
    equal((await _tick(other, "each")).outcome, "skipped", "while the first job is ready")
    [claim] = await bench.take(queue)
    await _pass_tick(bench, queue, "each")
    equal((await _tick(other, "each")).outcome, "skipped", "while the first job runs")
    kept = await queue.schedules.get("each")
    equal(kept and kept.last_job, first.job, "the last job of a schedule that skipped ticks")
    await queue.settle(done([claim]))
    await _pass_tick(bench, queue, "each")
    equal((await _tick(other, "each")).outcome, "put", "after the first job has ended")


async def check_schedule_runs_now(bench: Bench) -> None:
    """`run` puts a job now and leaves the next tick as it is; unknown names are refused."""
    queue, other = await _scheduling(bench), await bench.queue()
    made = await queue.schedules.set("each", NewJob("mail", 1, key="k"), every="1h")
    await queue.schedules.pause("each")
    job_id = await other.schedules.run("each")
    [claim] = await bench.take(queue)
    equal((claim.job.id, claim.job.payload, claim.job.key), (job_id, 1, "k"), "the job")
    found = await queue.schedules.get("each")
    equal(found and (found.last_job, found.next_at), (job_id, made.next_at), "what is kept")
    for call in (queue.schedules.run, queue.schedules.pause, queue.schedules.resume):
        error = await refused(ConfigError, call("eech"), "an unknown name")
        expect("'each'" in str(error), f"the error names what is near: {error}")


async def check_moment_ticks_once(bench: Bench) -> None:
    """A schedule with `at` ticks once, and has no next tick after that."""
    queue = await _scheduling(bench)
    at = queue.clock.epoch() + _step(bench)
    await queue.schedules.set("once", NewJob("mail", 1), at=at)
    await _pass_tick(bench, queue, "once")
    equal((await _tick(queue, "once")).outcome, "put", "its tick")
    found = await queue.schedules.get("once")
    equal(found and (found.next_at, found.last_tick), (None, at), "what is kept")
    equal((await _tick(queue, "once")).outcome, "early", "once more")
    await refused(
        ConfigError, queue.schedules.set("past", NewJob("mail"), at=at), "a moment in the past"
    )


async def check_changes_of_schedules_are_told(bench: Bench) -> None:
    """A change is broadcast, and changes the stamp that a worker learns with its record."""
    queue, other = await _scheduling(bench), await bench.queue()
    require(queue.capabilities.presence, "presence")
    await other.record_worker(INFO, 100)
    stamps = [other.schedules.stamp]
    for change in (
        queue.schedules.set("each", NewJob("mail"), every=_step(bench)),
        queue.schedules.pause("each"),
        queue.schedules.resume("each"),
        queue.schedules.remove("each"),
    ):
        await change
        await other.record_worker(INFO, 100)
        stamps.append(other.schedules.stamp)
    equal(len(set(stamps)), 5, f"different stamps among {stamps}")
    await other.record_worker(INFO, 100)
    equal(other.schedules.stamp, stamps[-1], "the stamp without a change")
    equal((await other.schedules.read()).stamp, stamps[-1], "the stamp that is read")


async def check_schedules_from_strangers(bench: Bench) -> None:
    """A client can write any note: its texts stay texts, and its jobs are in no flow."""
    queue = await _scheduling(bench)
    hostile = 'x","kind":"other","y":"\n\\'
    await queue.schedules.set("each", NewJob("mail", headers={FLOW_HEADER: "x"}), every="1h")
    value = (await queue.schedules.read()).notes["each"]
    written = json.dumps({**json.loads(value), "last_job": hostile})
    equal((await queue.schedules.swap_given("each", value, written)).done, True, "it was written")
    found = await queue.schedules.get("each")
    equal(found and (found.kind, found.last_job), ("mail", hostile), "the kind and the last job")
    await queue.schedules.pause("each")
    found = await queue.schedules.get("each")
    equal(found and (found.paused, found.last_job), (True, hostile), "what is kept by a pause")
    await queue.schedules.run("each")
    [claim] = await bench.take(queue)
    expect(FLOW_HEADER not in claim.job.headers, f"the job is in a flow: {claim.job.headers}")


async def check_schedules_bad_arguments(bench: Bench) -> None:
    """Schedules that can never work are refused with the wrong field, and nothing is kept."""
    queue = await _scheduling(bench)
    job = NewJob("mail")
    bad: list[tuple[str, NewJob, dict[str, object], str]] = [
        ("x", job, {}, "needs one of"),
        ("x", job, {"cron": "* * * * *", "every": "1m"}, "only one"),
        ("x", job, {"cron": "61 * * * *"}, "minute '61'"),
        ("x", job, {"cron": "* * * * *", "tz": "Europe/Zurick"}, "Europe/Zurick"),
        ("x", job, {"every": "10ms"}, "every"),
        ("x", job, {"at": "tomorrow"}, "at"),
        ("x", job, {"every": "1m", "overlap": "both"}, "overlap"),
        ("x", job, {"every": "1m", "catch_up": "some"}, "catch_up"),
        ("x", job, {"every": "1m", "catch_up": "all", "overlap": "skip"}, "contradict"),
        ("", job, {"every": "1m"}, "name"),
        ("x", NewJob("mail", unique="u"), {"every": "1m"}, "unique"),
        ("x", NewJob("mail", "x" * NOTE_VALUE_MAX), {"every": "1m"}, "bytes"),
    ]
    for name, put, options, told in bad:
        call = queue.schedules.set(name, put, **options)  # type: ignore[arg-type]
        error = await refused(ConfigError, call, f"{name!r} {options}")
        expect(told in str(error), f"the error for {options} does not say {told!r}: {error}")
    equal(await queue.schedules.list(), [], "schedules that were kept")


async def check_scheduled_payloads_are_sealed(bench: Bench) -> None:
    """With a codec, a schedule's payload is stored encoded, and its jobs arrive decoded."""
    queue = await _scheduling(bench)
    queue.use_codec(Masked())
    await queue.schedules.set("each", NewJob("mail", {"secret": "rosebud"}), every=_step(bench))
    kept = await queue.schedules.read()
    expect("rosebud" not in kept.notes["each"], "the note has the payload in plain text")
    found = await queue.schedules.get("each")
    equal(found and found.payload, {"secret": "rosebud"}, "the payload that is shown")
    await _pass_tick(bench, queue, "each")
    equal((await _tick(queue, "each")).outcome, "put", "its tick")
    equal(payloads(await bench.take(queue)), [{"secret": "rosebud"}], "the payload of the job")
