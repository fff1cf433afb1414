"""`queue.schedules`: set, list, pause and remove schedules; and what workers do at a tick.

All changes are compare-and-set: a schedule is changed only if it is as the caller read it, and the
job of a tick is put in the same transaction that advances the schedule. So of ten workers that see
a tick, one puts it, and a worker that was stopped for an hour puts nothing twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pollwise.durations import Duration
from pollwise.errors import ConfigError, StoreError
from pollwise.queues.notes import (
    NOTES_MAX,
    SCHEDULES_CHANGED,
    KeptSchedules,
    ScheduleSwap,
    ScheduleSwapped,
)
from pollwise.queues.schedules.record import (
    BY_LENGTH_MAX,
    NOTE_ROOM,
    TICK_ROOM,
    NoteText,
    Schedule,
    checked_note,
    checked_schedule,
    chosen_overlap,
    note_of,
    schedule_from,
)
from pollwise.queues.schedules.ticking import Outcome, plan_tick
from pollwise.queues.schedules.when import When
from pollwise.runtime.decoding import decode
from pollwise.runtime.jobs import Job, NewJob, checked_name, storable

if TYPE_CHECKING:
    from pollwise.queues.base import Queue

#: How often a change is tried again, because a worker put a tick meanwhile.
TRIES_MAX = 20
#: How long a schedule with `at` is shown after its tick, in seconds, if it was set at run time.
ENDED_KEPT = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class TickResult:
    """The result of a tick.

    outcome: "put", or "skipped" because the job before has not ended, or "missed": too late.
        "lost": another process changed the schedule first. "early": by the store's clock it is not
        due yet. "removed": no worker has it in its code any more.
    value: the schedule's note now; None if there is none. job: the id of the job that was put.
    tick: that of the job, or the last one without a job. missed: the first and last missed tick.
    wait: if it was early, after how many seconds it is due.
    """

    outcome: Outcome
    value: str | None
    job: str | None = None
    tick: float | None = None
    missed: tuple[float, float] | None = None
    wait: float = 0.0


class Schedules:
    """The schedules of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: The stamp of the newest change that this handle heard of, with a worker's record.
        self.stamp: str | None = None

    async def set(
        self,
        name: str,
        job: NewJob,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | str | float | None = None,
        tz: str | None = None,
        catch_up: str = "one",
        overlap: str | None = None,
        jitter: Duration = 0,
        by: str = "",
    ) -> Schedule:
        """Set a schedule, which replaces a schedule of the same name; return it.

        job: what to put at each tick, without unique, delay and run_at.
        cron, every, at: when; give one. A cron expression is in the time zone `tz`, by default UTC.
        catch_up: for ticks that no worker put in time: "one" job for all of them, "all" (a job for
            each of the last 100), or "none".
        overlap: "skip" puts no job while the one before has not ended, "queue" always puts one. The
            default is "skip"; with catch_up "all" it is "queue".
        jitter: delay the job of each tick by up to this long; a tick always has the same delay.
        by: who sets it, to show to people.

        A schedule that was paused stays paused. Its next tick is kept if its times are unchanged.
        """
        self.check()
        when = When.checked(cron, every, at, tz)
        wanted = checked_schedule(
            name, job, when, catch_up=catch_up, overlap=chosen_overlap(overlap, catch_up),
            jitter=jitter,
        )  # fmt: skip
        now = self._queue.clock.epoch()
        if when.at is not None and when.at <= now:
            raise ConfigError(f"at = {at!r} is in the past, so {name!r} would never tick")
        who = (storable(by) or "")[:BY_LENGTH_MAX]
        return await self.keep(replace(wanted, by=who))

    async def keep(self, wanted: Schedule) -> Schedule:
        """Store a checked schedule, for `set` and for workers with schedules in their code."""
        [sealed] = self._queue.sealed(self._queue.check_jobs(wanted.job()))
        stored = replace(wanted, payload=decode(sealed.encoded))
        made = wanted

        def change(old: Schedule | None) -> Schedule:
            nonlocal made
            now = self._queue.clock.epoch()
            fresh = stored.when.after(now)
            due = fresh
            if old is not None and old.when == stored.when:
                # Kept, so that a due tick is not lost; unless a wrong clock had set it too late.
                known = old.next_at
                due = known if known is None or fresh is None else min(known, fresh)
            new = replace(stored, set_at=now, next_at=due)
            if old is not None:
                new = replace(
                    new, paused=old.paused, last_tick=old.last_tick, last_put=old.last_put,
                    last_job=old.last_job,
                )  # fmt: skip
            made = replace(new, payload=wanted.payload)
            return new

        await self._change(wanted.name, change)
        return made

    async def list(self) -> list[Schedule]:
        """All schedules, by name."""
        self.check()
        kept = await self._queue._read_schedules()
        found = (self.opened(name, text) for name, text in sorted(kept.notes.items()))
        return [each for each in found if each is not None]

    async def get(self, name: str) -> Schedule | None:
        """One schedule; None if there is none with this name."""
        self.check()
        kept = await self._queue._read_schedules()
        text = kept.notes.get(checked_name(name, "name", ConfigError))
        return None if text is None else self.opened(name, text)

    async def last_states(self, some: Iterable[Schedule]) -> dict[str, str]:
        """The states of the last jobs of some schedules, by their names, in one call: `live` if the
        job has not ended, else as it ended, or `gone` if it is not kept."""
        jobs = {each.name: each.last_job for each in some if each.last_job is not None}
        endings = await self._queue.endings([*jobs.values()]) if jobs else {}
        states: dict[str, str] = {}
        for name, job_id in jobs.items():
            ending = endings.get(job_id)
            ended = "gone" if ending is None else ending.state
            states[name] = ended if job_id in endings else "live"
        return states

    async def remove(self, name: str) -> bool:
        """Delete a schedule; False if there is none. Its jobs stay.

        A schedule in the code of a worker comes back when such a worker next starts.
        """
        self.check()
        return await self._change(checked_name(name, "name", ConfigError), lambda _: None)

    async def pause(self, name: str) -> bool:
        """Put no jobs until `resume`; False if it was paused already."""
        return await self._set_paused(name, True)

    async def resume(self, name: str) -> bool:
        """End a pause; False if there was none. Ticks of the pause are not caught up."""
        return await self._set_paused(name, False)

    async def run(self, name: str) -> str:
        """Put a job of a schedule now, even if it is paused; return its id. Its ticks do not
        change."""
        self.check()
        checked_name(name, "name", ConfigError)
        for _ in range(TRIES_MAX):
            kept = await self._queue._read_schedules()
            self._known(name, kept)
            done = await self.run_given(name, kept.notes[name])
            if done.job is not None:
                return done.job
        raise self._busy(name)

    # For workers

    async def read(self) -> KeptSchedules:
        """The notes of all schedules, in one call."""
        self.check()
        kept = await self._queue._read_schedules()
        self.stamp = kept.stamp
        return kept

    def opened(self, name: str, text: str) -> Schedule | None:
        """A schedule from its note, with its payload decoded; None if it is not valid."""
        found = schedule_from(name, text)
        if found is None or not self._queue._sealing.concerns([found.payload]):
            return found
        job = Job("", self._queue.name, found.kind, found.payload, None, 0, 0, 0.0, 0.0, None)
        return replace(found, payload=self._queue._sealing.opened(job).payload)

    async def put_tick(self, name: str, value: str, *, undeclared: bool = False) -> TickResult:
        """Put the job of the tick that is due, if the schedule is still as `value` says.

        undeclared: the caller runs this kind, and does not have this schedule in its code. If no
            running worker has it, it is removed instead.
        """
        self.check()
        return await self._queue._put_tick(name, value, undeclared)

    async def put_tick_here(self, name: str, value: str, undeclared: bool) -> TickResult:
        """As `put_tick`, in the process that has the store."""
        queue, now = self._queue, self._queue.clock.epoch()
        schedule = schedule_from(name, value)
        if schedule is None:
            return TickResult("lost", None)
        if undeclared and schedule.origin == "code" and not await self._declared(name):
            gone = await self._queue._swap_schedule(ScheduleSwap(name, value, None))
            return TickResult("removed" if gone.done else "lost", gone.value)
        due = schedule.next_at
        busy = False
        if due is not None and due <= now and schedule.overlap == "skip":
            busy = await self._runs(schedule.last_job)
        plan = plan_tick(schedule, now, busy=busy)
        if plan is None:
            wait = 0.0 if due is None or schedule.paused else due - now
            return TickResult("early", value, wait=max(wait, 0.0))
        job = None if plan.tick is None else plan.schedule.job(plan.tick)
        head, tail = note_of(plan.schedule, NOTE_ROOM - TICK_ROOM)
        ends = plan.schedule.next_at is None and schedule.origin == "calls"
        if job is None:
            head, tail = NoteText(head, tail).with_job(schedule.last_job), ""
        done = await self._queue._swap_schedule(
            ScheduleSwap(name, value, head, tail, job, ENDED_KEPT if ends else None)
        )
        if not done.done:
            return TickResult("lost", done.value)
        if job is not None:
            queue._give_hints(1, {job.kind})
        outcome: Outcome = "put" if job is not None else "skipped" if plan.skipped else "missed"
        tick = plan.schedule.last_tick
        return TickResult(outcome, done.value, done.job, tick, plan.missed)

    # For a controller, whose clients have read and changed a schedule

    async def swap_given(
        self, name: str, expected: str | None, value: str | None
    ) -> ScheduleSwapped:
        """Replace a schedule's note by a value that somebody else made. Raises ConfigError."""
        self.check()
        new = None if value is None else checked_note(name, value)
        if expected is None and value is not None:
            self._check_room(await self._queue._read_schedules())
        # A schedule that ticked may be paused, so one that exists may use the room of ticks.
        room = NOTE_ROOM if expected is None else NOTE_ROOM - TICK_ROOM
        return await self._swap(name, expected, new, room)

    async def run_given(self, name: str, expected: str) -> ScheduleSwapped:
        """Put a job of a schedule now, if its note has this value."""
        self.check()
        old = checked_note(name, expected)
        head, tail = note_of(
            replace(old, last_put=self._queue.clock.epoch()), NOTE_ROOM - TICK_ROOM
        )
        done = await self._queue._swap_schedule(
            ScheduleSwap(name, expected, head, tail, job=old.job())
        )
        if done.done:
            self._queue._give_hints(1, {old.kind})
        return done

    # Helpers

    def check(self) -> None:
        """Refuse a store that cannot keep schedules."""
        if not self._queue.capabilities.schedules:
            raise self._queue._cannot("keep schedules")

    async def _declared(self, name: str) -> bool:
        """True if a running worker has this schedule in its code, or may have it."""
        if not self._queue.capabilities.presence:
            return True
        workers = await self._queue.workers()
        return any(each.schedules is None or name in each.schedules for each in workers)

    async def _runs(self, job_id: str | None) -> bool:
        """True if this job has not ended."""
        return job_id is not None and job_id not in await self._queue._endings([job_id])

    async def _set_paused(self, name: str, paused: bool) -> bool:
        self.check()
        checked_name(name, "name", ConfigError)
        changed = False

        def change(old: Schedule | None) -> Schedule:
            nonlocal changed
            if old is None:
                raise ConfigError(f"no schedule {name!r}")
            changed = old.paused != paused
            now = self._queue.clock.epoch()
            next_at = old.next_at if paused or not changed else old.when.after(now)
            return replace(old, paused=paused, next_at=next_at)

        kept = await self._queue._read_schedules()
        self._known(name, kept)
        await self._change(name, change, NOTE_ROOM - TICK_ROOM)
        return changed

    async def _change(
        self,
        name: str,
        change: Callable[[Schedule | None], Schedule | None],
        room: int = NOTE_ROOM,
    ) -> bool:
        """Replace a schedule by the result of `change`; None deletes it. False if there is none."""
        for _ in range(TRIES_MAX):
            kept = await self._queue._read_schedules()
            text = kept.notes.get(name)
            new = change(None if text is None else schedule_from(name, text))
            if new is None and text is None:
                return False
            if text is None:
                self._check_room(kept)
            if (await self._swap(name, text, new, room)).done:
                return True
        raise self._busy(name)

    async def _swap(
        self, name: str, expected: str | None, new: Schedule | None, room: int
    ) -> ScheduleSwapped:
        """Replace a schedule if its note has the expected value, and send workers a broadcast."""
        value = None if new is None else note_of(new, room).with_job(new.last_job)
        ends = new is not None and new.next_at is None and new.origin == "calls"
        stamp = f"{self._queue.clock.epoch():.3f} {secrets.token_hex(4)}"
        done = await self._queue._swap_schedule(
            ScheduleSwap(name, expected, value, ttl=ENDED_KEPT if ends else None, stamp=stamp)
        )
        if done.done:
            self._queue._hints.broadcast(SCHEDULES_CHANGED)
        return done

    def _check_room(self, kept: KeptSchedules) -> None:
        if len(kept.notes) >= NOTES_MAX["schedules"]:
            raise ConfigError(
                f"{self._queue.url} has {len(kept.notes)} schedules, which is the limit; remove "
                "some"
            )

    def _known(self, name: str, kept: KeptSchedules) -> Schedule:
        text = kept.notes.get(name)
        found = None if text is None else schedule_from(name, text)
        if found is None:
            near, some = get_close_matches(name, kept.notes, n=3, cutoff=0.4), sorted(kept.notes)
            advice = f"did you mean {' or '.join(map(repr, near))}?"
            if not near:
                more = ", …" if len(some) > 3 else ""
                advice = f"it has {', '.join(map(repr, some[:3])) or 'none'}{more}"
            raise ConfigError(f"no schedule {name!r} in {self._queue.url}; {advice}")
        return found

    def _busy(self, name: str) -> StoreError:
        return StoreError(
            f"{self._queue.url}: the schedule {name!r} changes faster than it can be changed; "
            "try again"
        )
