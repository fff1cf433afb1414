"""Limits of each store against those of memory: the same random program, the same claims."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Concurrency, Limit, Rate
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.testing import VirtualClock
from tests.queues import test_model as model
from tests.queues.test_model import Opener, Side, Step, agree, step

opener = model.opener

#: Limits of a kind: what `queue.limits.set` takes.
CHOICES: list[tuple[list[Limit], dict[str, Any]]] = [
    ([Concurrency(1)], {}),
    ([Concurrency(3)], {}),
    ([Concurrency(1, by="t")], {}),
    ([Concurrency(3), Concurrency(2, by="t")], {}),
    ([Rate(1, 2)], {}),
    ([Rate(3, 5, burst=2), Concurrency(2)], {}),
    ([Rate(1, 3, by="t")], {}),
    ([Rate(4, 7, burst=3), Rate(1, 5, by="t", burst=2)], {}),
    ([], {"fair_by": "t"}),
    ([Concurrency(2)], {"fair_by": "t", "weights": {"g": 3, "h": 2}}),
    ([Rate(2, 3, burst=2)], {"fair_by": "t", "weights": {"h": 2}}),
]
choices = st.integers(0, len(CHOICES) - 1)

grouped = model.jobs.flatmap(
    lambda job: st.sampled_from([None, "g", "g", "g", "h", "i"]).map(
        lambda group: job | {"limit_group": group}
    )
)
puts = step("put", jobs=st.lists(grouped, min_size=1, max_size=6))
replaces = step("put", jobs=st.lists(st.one_of(model.replacing, grouped), min_size=1, max_size=3))
steps = st.lists(
    st.one_of(
        puts,
        puts,
        puts,
        replaces,
        model.lapses,
        model.claims,
        model.claims,
        model.claims,
        step(
            "settle",
            picks=st.lists(st.tuples(st.integers(0, 9), model.actions, model.delays), max_size=4),
        ),
        step("cancel", picks=model.picks),
        step("elapse", units=st.sampled_from([0.5, 1, 1, 2, 5])),
        step("retry", picks=st.none() | model.picks),
        step("pause", kind=st.sampled_from(["a", "b"])),
        step("resume", kind=st.sampled_from(["a", "b"])),
        step("limit", kind=st.just("a"), choice=choices),
    ),
    min_size=10,
    max_size=40,
).map(model.plain)


class LimitedSide(Side):
    """A queue whose kind "a" has limits."""

    async def _limit(self, queue: Queue, kind: str, choice: int) -> Any:
        limits, options = CHOICES[choice]
        await queue.limits.set(kind, limits, **options)

    async def view(self) -> tuple[Any, dict[int, dict[str, Any]]]:
        rest, shown = await super().view()
        # Whether a lease that has run out counts until the next claim is left to each store.
        [use] = await next(self.handles).limits.use("a")
        return (rest, use.next_at and round(use.next_at, 3)), shown


def compare(opener: Opener, steps: list[Step], choice: int, other: int | None) -> None:
    clock = VirtualClock()
    number = next(model.examples)
    name = f"limits {number}"
    if isinstance(opener, partial) and opener.func is SqliteQueue:
        # A claim looks for jobs without a group in a part of its file: here it may be all of it.
        path = opener.args[0].with_name(f"limits {number // 50}.db")
        opener = partial(SqliteQueue, path, synchronous="off")
    begin: list[Step] = [("limit", {"kind": "a", "choice": choice})]
    if other is not None:
        begin.append(("limit", {"kind": "b", "choice": other}))

    async def main() -> None:
        handles = [opener(name, clock=clock) for _ in range(2)]
        try:
            if handles[0].capabilities.limits:
                sides = LimitedSide(MemoryQueue(name, clock=clock)), LimitedSide(*handles)
                for side in sides:
                    await side.take(*begin[0])
                await agree(clock, *sides, begin + steps)
        finally:
            for handle in handles:
                await handle.close()

    clock.run(main())


@settings(max_examples=30, deadline=None)
@given(steps=steps, choice=choices, other=st.none() | choices)
def test_store_and_memory_keep_the_same_limits(
    opener: Opener, steps: list[Step], choice: int, other: int | None
) -> None:
    compare(opener, steps, choice, other)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(steps=steps, choice=choices, other=st.none() | choices)
def test_store_and_memory_keep_the_same_limits_for_long(
    opener: Opener, steps: list[Step], choice: int, other: int | None
) -> None:
    compare(opener, steps, choice, other)
