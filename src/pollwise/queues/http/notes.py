"""What an `http://` queue does that is not about jobs, in one request each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.http import wire
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import GroupUse, LimitUse
from pollwise.queues.notes import (
    KeptSchedules,
    NewNote,
    Note,
    NoteWritten,
    PauseInfo,
    ScheduleSwap,
    ScheduleSwapped,
    Topic,
    pause_from,
)
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.schedules.calls import TickResult
from pollwise.runtime.rollups.keeping import HistoryChoice, PaceKept, pace_of
from pollwise.runtime.rollups.points import HistoryPoint
from pollwise.runtime.rollups.rows import HistoryRow


class HttpNotes(Queue):
    """The calls of an `http://` queue that are not about jobs."""

    # Pauses and workers

    async def _pause(self, name: str, pause: PauseInfo) -> None:
        said = {"kind": name or None, "by": pause.by, "why": pause.why}
        await self._again(lambda: self._post("pause", said))

    async def _resume(self, name: str) -> bool:
        return bool((await self._post("resume", {"kind": name or None}))["resumed"])

    async def _paused(self) -> dict[str | None, PauseInfo]:
        found = (await self._get("/pauses"))["pauses"]
        return {each["kind"]: pause_from(each) for each in found}

    async def _workers(self) -> list[WorkerInfo]:
        found = (await self._get("/workers"))["workers"]
        return [info for each in found if (info := WorkerInfo.from_value(each)) is not None]

    async def _order(self, worker: str, concurrency: int) -> int:
        said = {"worker": worker, "concurrency": concurrency}
        return int((await self._again(lambda: self._post("concurrency", said)))["workers"])

    async def _record_worker(
        self, info: WorkerInfo, ttl: float, history: tuple[HistoryRow, ...]
    ) -> int | None:
        said = {"worker": info.to_value(), "ttl": ttl, **wire.rows_to(history)}
        answer = await self._again(lambda: self._post("record-worker", said))
        order: int | None = answer["concurrency"]
        self.schedules.stamp = answer.get("schedules")  # an older controller does not send it
        return order

    async def _forget_worker(self, info: WorkerInfo, history: tuple[HistoryRow, ...]) -> None:
        said = {"worker": info.to_value(), **wire.rows_to(history)}
        await self._again(lambda: self._post("forget-worker", said))

    # Limits and breakers: the other notes have requests of their own

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        return [
            Note(topic, each["kind"], each["value"])
            for topic in topics
            if topic in ("limits", "breakers")
            for each in (await self._get(f"/{topic}"))[topic]
        ]

    async def _write_note(self, note: NewNote) -> NoteWritten:
        if note.topic == "breakers" and note.value is None:
            closed = await self._again(lambda: self._post("close-breaker", {"kind": note.name}))
            return NoteWritten(bool(closed["closed"]))
        if note.topic != "limits":
            return await super()._write_note(note)
        said = {"kind": note.name, "value": note.value}
        return NoteWritten(
            bool((await self._again(lambda: self._post("set-limits", said)))["done"])
        )

    async def _limit_use(self, limits: KindLimits, groups: int) -> LimitUse:
        asked = {"kind": limits.kind, "groups": str(groups)}
        return _limit_use_from((await self._get("/limit-use", asked))["use"], limits)

    async def _read_schedules(self) -> KeptSchedules:
        answer = await self._get("/schedules")
        notes = {each["name"]: each["value"] for each in answer["schedules"]}
        return KeptSchedules(notes, answer["stamp"])

    async def _swap_schedule(self, swap: ScheduleSwap) -> ScheduleSwapped:
        said: dict[str, Any] = {"name": swap.name, "expected": swap.expected}
        if swap.topic == "breakers":
            said = {"kind": swap.name, "expected": swap.expected, "value": swap.value}
            answer = await self._post("swap-breaker", said)
            return ScheduleSwapped(bool(answer["done"]), answer["value"])
        if swap.job is not None:  # the controller makes it from the schedule
            answer = await self._post("run-schedule", said)
        else:
            answer = await self._post("set-schedule", {**said, "value": swap.value})
        return ScheduleSwapped(bool(answer["done"]), answer["value"], answer.get("job"))

    async def _put_tick(self, name: str, value: str, undeclared: bool) -> TickResult:
        answer = await self._post("tick", {"name": name, "value": value, "undeclared": undeclared})
        missed = answer["missed"]
        return TickResult(**{**answer, "missed": None if missed is None else tuple(missed)})

    async def _history_of(self, asked: HistoryChoice) -> list[HistoryPoint]:
        if asked.kinds == ():  # without a kind, the controller would send all
            return []
        said: dict[str, Any] = {
            "since": repr(asked.span),
            "by": "hour" if asked.hourly else "minute",
        }
        said |= {"kind": asked.kinds, "worker": asked.worker}
        answer = await self._get("/history", {k: v for k, v in said.items() if v is not None})
        return wire.points_from(answer["points"])

    async def paces(self) -> list[PaceKept]:
        rows = wire.paces_from((await self._get("/paces"))["paces"])
        return [pace for row in rows if (pace := pace_of(row)) is not None]

    async def fold_history(self) -> bool:
        return bool((await self._post("fold-history", {}))["more"])

    # What the queue implements

    @abstractmethod
    async def _get(self, what: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read something of the queue."""

    @abstractmethod
    async def _post(self, what: str, said: dict[str, Any] | str) -> dict[str, Any]:
        """Change something of the queue."""

    @staticmethod
    @abstractmethod
    async def _again(call: Callable[[], Any]) -> dict[str, Any]:
        """Make a call that may be repeated."""


def _limit_use_from(said: Sequence[wire.Wire], limits: KindLimits) -> LimitUse:
    """How the limits of a kind are used; unused if they are gone."""
    if not said:
        return LimitUse(limits, 0, 0)
    [use] = said
    groups = tuple(GroupUse(**each) for each in use["groups"])
    return LimitUse(limits, use["running"], use["waiting"], use["next_at"], groups)
