"""Sets the limits that are declared in a worker's code, before the worker claims.

The store applies the limits to claims. So a worker that cannot set its limits, because the store is
unavailable, does not claim either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from pollwise.errors import HandlerError, StoreError, StoreUnavailable, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.limits.plan import counted
from pollwise.queues.limits.record import KindLimits, Limit, kind_limits
from pollwise.queues.notes import WHOLE, without_paused
from pollwise.runtime.events import ChoreFailed, Events, LimitsChanged
from pollwise.runtime.executor.handlers import text_of

LIMITS = "limits"


class WorkerLimits:
    """The limits of a queue, as one run of a worker sets them.

    declared: those in the worker's code, by kind. kinds: those that it has handlers for.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        kinds: Collection[str],
        declared: Mapping[str, KindLimits],
        events: Events,
    ) -> None:
        self._queue = queue
        self._name = name
        self._kinds = kinds
        self._declared = declared
        self._events = events
        if declared:
            queue.limits.check()
        self._to_set = queue.capabilities.limits

    async def before_claim(self) -> None:
        """Set the limits of the code, once. The worker that started last decides, so that two
        versions of a program do not fight."""
        if not self._to_set:
            return
        try:
            await self._set_declared()
        except StoreUnavailable:
            raise
        except (StoreError, Unsupported) as error:  # old tables, or an older controller
            if self._declared:
                self._events.emit(ChoreFailed(self._queue.name, LIMITS, text_of(error)))
        self._to_set = False

    async def waiting(self) -> dict[str, int]:
        """How many jobs wait for nothing but a limit, by kind."""
        queue = self._queue
        if not queue.capabilities.limits:
            return {}
        waiting: dict[str, int] = {}
        try:
            limited = {
                each.kind: each for each in await queue.limits.list() if each.kind in self._kinds
            }
            paused = [kind or WHOLE for kind in await queue.paused()] if limited else []
            for kind in without_paused(limited, paused):
                use = await queue._limit_use(limited[kind], 0)
                if use.waiting:
                    waiting[kind] = use.waiting
        except (StoreError, Unsupported) as error:  # for example, the token lacks the scope
            self._events.emit(ChoreFailed(queue.name, LIMITS, text_of(error)))
        return waiting

    async def _set_declared(self) -> None:
        limits = self._queue.limits
        known = {each.kind: each for each in await limits.list()}
        for kind, wanted in self._declared.items():
            now = known.get(kind)
            if now is None or now.origin != "code" or not wanted.same_as(now):
                await limits.keep(wanted)
                self._emit(kind, "set", wanted.text)
        for kind, now in [*known.items()]:
            if now.origin == "code" and kind in self._kinds and kind not in self._declared:
                await limits.remove(kind)
                del known[kind]
                self._emit(kind, "removed", now.text)
        known.update(self._declared)
        self._queue._limited = counted(known)  # so that the first claim knows them

    def _emit(self, kind: str, change: Literal["set", "removed"], text: str) -> None:
        self._events.emit(LimitsChanged(self._queue.name, self._name, kind, change, text))


def declared_limits(
    kind: str,
    limit: Limit | Iterable[Limit] | None,
    fair_by: str | None,
    weights: Mapping[str, int] | None,
    arguments: Sequence[str] | None = None,
) -> KindLimits | None:
    """The limits that a decorator states; None if it states none.

    arguments: the arguments of a task; the limits name one of them.
    """
    if limit is None and fair_by is None and not weights:
        return None
    made = kind_limits(
        kind, () if limit is None else limit, fair_by=fair_by, weights=weights, origin="code"
    )
    if arguments is not None and made.by is not None and made.by not in arguments:
        raise HandlerError(
            f"the limits of the task {kind!r} are by {made.by!r}, which is not an argument of it; "
            f"it has {', '.join(arguments) or 'none'}"
        )
    return made
