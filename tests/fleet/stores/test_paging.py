"""Pages and counts of targets are the same in every store, and read no more than a page."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet.stores.base import FleetStore, SavedTarget, viewed
from pollwise.fleet.stores.paging import (
    TARGET_SORTS,
    VIEWED_STATES,
    TargetFilter,
    counts_of,
    page_names,
)
from tests.fleet.stores.conftest import NOW, Main


def some_targets(count: int = 90) -> list[SavedTarget]:
    rng = Random(3)
    return [
        SavedTarget(
            f"Host-{n:03}/{rng.choice('ab')}_%",
            due=None if n % 13 == 0 else NOW + rng.randrange(-20, 60),
            paused=n % 7 == 0,
            state=rng.choice(["closed", "closed", "open", "dead", "confirming", "backing off"]),
            failures=n % 3,
            polled_at=None if n % 11 == 0 else NOW - rng.randrange(30),
            succeeded_at=None if n % 5 == 0 else NOW - rng.randrange(1000),
            interval=10.0,
            more={"reading": {"value": "x"}},
            type="http",
            group=rng.choice([None, "pages", "api"]),
        )
        for n in range(count)
    ]


def test_pages_are_those_of_the_model(run: Callable[[Main], None]) -> None:
    targets = some_targets()
    known = {each.name: each for each in targets}

    async def main(store: FleetStore) -> None:
        await store.save(targets)
        for state, group, text, sort in itertools.product(
            (None, *VIEWED_STATES), (None, "", "api"), (None, "/A", "_%"), TARGET_SORTS
        ):
            chosen = TargetFilter(state, group, text, sort, limit=11)
            for _ in range(3):
                names, after = page_names(map(viewed, targets), chosen)
                page = await store.page(chosen)
                assert [each.name for each in page.targets] == names
                assert page.targets == [known[name] for name in names]
                assert page.next == after
                if after is None:
                    break
                chosen = replace(chosen, after=after)

    run(main)


def test_counts_are_those_of_the_model(run: Callable[[Main], None]) -> None:
    targets = some_targets()

    async def main(store: FleetStore) -> None:
        assert (await store.counts()).total == 0
        await store.save(targets)
        found, model = await store.counts(), counts_of(map(viewed, targets), NOW)
        assert found.states == model.states
        assert found.total == len(targets)
        assert {
            g: {s: n for s, n in c.items() if n} for g, c in found.groups.items()
        } == model.groups
        assert (found.overdue, found.succeeded_at) == (model.overdue, model.succeeded_at)
        assert found.rates == pytest.approx(model.rates)

    run(main)


def test_orders_are_pending_until_they_are_taken(run: Callable[[Main], None]) -> None:
    async def main(store: FleetStore) -> None:
        await store.save([SavedTarget("a"), SavedTarget("b")])
        if store.shared:
            await store.claim("node", ["a", "b"], 10, 30.0)
        await store.order("pause", ["a", "b"], "web: me")
        await store.order("retry", ["a"])
        assert await store.pending(["a"]) == [("a", "pause", "web: me"), ("a", "retry", "")]
        assert len(await store.pending()) == 3
        assert await store.pending(["c"]) == []
        assert len(await store.orders()) == 3
        assert await store.pending() == []

    run(main)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"state": "half-open"}, "state = 'half-open' is not one of dead, open"),
        ({"sort": "size"}, "sort = 'size' is not one of name, stale, next"),
        ({"text": "x" * 256}, "text must be text of at most 255"),
        ({"after": "soon a"}, "`next` of the page before"),
        ({"after": "nan a"}, "`next` of the page before"),
    ],
)
def test_wrong_filters_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TargetFilter(**given)  # type: ignore[arg-type]
