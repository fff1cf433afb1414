"""Names, sizes and the store's clock: what a LIST says, read back."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.queues.objects.chain import ListedObject, read_roots, read_units
from pollwise.queues.objects.names import (
    DELAYS,
    LEASES,
    SLICE,
    EntryKind,
    EntryMeaning,
    PutName,
    _meanings,
    place_after,
    read_folder,
    read_id,
    read_size,
    rounded_delay,
    rounded_lease,
    safe_name,
    write_entry,
)
from pollwise.queues.objects.store import DRIFT, StoreClock
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import MAX_LEASE
from tests.support.kit import virtually

moments = st.floats(0, 4e9)
texts = st.text(max_size=300)


@given(st.integers(-1000, 1000), st.none() | moments, moments, st.integers(1, 10_000))
def test_a_put_says_all_in_its_name(
    priority: int, due: float | None, now: float, count: int
) -> None:
    put = PutName.make(priority, due, round(now * 1e6), "mixed", count)
    again = read_folder(put.folder)
    assert again is not None
    assert (again.priority, again.stamp, again.count) == (priority, put.stamp, count)
    assert (again.due is None) == (due is None)
    if due is not None and again.due is not None:
        assert abs(again.due - due) < 1e-6
    assert read_id(put.id_of(count - 1)) == (again, count - 1)
    assert read_id(put.id_of(count)) is None


def test_names_sort_by_what_is_claimed_first() -> None:
    def make(priority: int, due: float | None, stamp: int) -> str:
        return PutName.make(priority, due, stamp, "mixed", 1).folder

    names = [make(1000, None, 5), make(0, None, 1), make(0, None, 2), make(-1000, None, 0)]
    names += [make(0, 10.0, 3), make(5, 11.0, 0), make(0, 11.0, 0)]
    assert names == sorted(names)


@pytest.mark.parametrize("name", ["", "x", "1.0", "\0", "٣.0", "\ud800", "03e8-…-mixed-1.0"])
def test_ids_that_are_not_ours(name: str) -> None:
    assert read_id(name) is None
    with pytest.raises(ConfigError, match="after"):
        place_after(name)


@given(texts, st.sampled_from(list(_meanings().values())))
def test_an_entry_says_what_it_means_by_its_size(worker: str, meaning: EntryMeaning) -> None:
    entry = write_entry(meaning, {"worker": worker})
    assert read_size(len(entry)) == meaning
    assert entry != write_entry(meaning, {"worker": worker}), "two writes can be told apart"


def test_every_size_has_one_meaning() -> None:
    table = _meanings()
    assert len(set(table.values())) == len(table)
    assert max(table) < 8192


@given(st.floats(0.001, MAX_LEASE))
def test_leases_are_rounded_up_a_little(lease: float) -> None:
    assert lease - 1e-6 <= rounded_lease(lease) <= max(lease * 1.13, LEASES[0])


@given(st.floats(0.001, 3e8))
def test_delays_are_rounded_up_a_little(delay: float) -> None:
    assert delay - 1e-6 <= rounded_delay(delay) <= max(delay * 1.11, DELAYS[0])


@given(st.lists(st.text(min_size=1, max_size=200), unique=True, max_size=20))
def test_queue_names_stay_apart(names: list[str]) -> None:
    names = [name for name in names if name.isprintable()]
    folders = [safe_name(name) for name in names]
    assert len(set(folders)) == len(names)
    for folder in folders:
        assert len(folder) <= 120
        assert folder not in (".", "..")
        assert all(char.isascii() and (char.isalnum() or char in "_-.=") for char in folder)


def test_foreign_objects_are_passed_over() -> None:
    put = PutName.make(0, None, 1, "mixed", 1)
    folder = f"p/q/live/{put.folder}"
    names = [f"{folder}/x", f"{folder}/b.1", f"{folder}/b.0.1.2", "p/q/live/other/b", f"{folder}/B"]
    assert read_roots([ListedObject(name, 1, 0.0) for name in names]) == []
    [root] = read_roots(
        [ListedObject(f"{folder}/b", 9, 0.0), ListedObject(f"{folder}/b.0.1", 3, 0.0)]
    )
    assert not root.chains, "an entry whose size means nothing is none"


def test_units_of_a_chain() -> None:
    put = PutName.make(0, None, 1, "abcde", 20)
    path = f"p/q/live/{put.folder}/b"
    counter = itertools.count()

    def item(
        start: int, number: int, kind: EntryKind, lasts: float = 0.0, count: int = 0
    ) -> ListedObject:
        entry = write_entry(EntryMeaning(kind, lasts, count), {})
        return ListedObject(f"{path}.{start}.{number}", len(entry), float(next(counter)))

    items = [
        ListedObject(path, 1, 0.0),
        item(0, 1, EntryKind.CLAIM, 5.0, 4),  # at 0: jobs 0 to 3; 4 to 15 are free
        item(4, 1, EntryKind.CLAIM, 5.0, 2),  # at 1: jobs 4 and 5
        item(0, 2, EntryKind.BURST),
        item(1, 3, EntryKind.END),
        item(2, 3, EntryKind.BACK, 1.0),  # at 4
        item(4, 2, EntryKind.END),
    ]
    [root] = read_roots(items)
    units = read_units(root, lambda _: None, lambda _: None, 0.0)
    assert units is not None
    seen = {(u.start, u.end): (u.ended, u.free_at, u.attempts, u.claim) for u in units}
    assert seen == {
        (0, 1): (False, 5.0, 1, 1),
        (1, 2): (True, 5.0, 1, 1),
        (2, 3): (False, 5.0, 1, 0),
        (3, 4): (False, 5.0, 1, 1),
        (4, 6): (True, 6.0, 1, 1),
        (6, 16): (False, None, 0, 0),
        (16, 20): (False, None, 0, 0),
    }
    assert SLICE == 16


@pytest.mark.parametrize("seed", range(20))
def test_the_stores_time_is_known_within_its_bounds(seed: int) -> None:
    """Whatever the clocks say, `surely` is never ahead of the store, and not far behind it."""

    async def main(clock: VirtualClock) -> None:
        rng = random.Random(seed)
        grain = rng.choice([1.0, 0.001])
        ahead, rate = rng.uniform(-1e6, 1e6), rng.uniform(-1, 1) * DRIFT

        def store_time() -> float:
            return clock.epoch() + ahead + clock.now() * rate

        known = StoreClock(clock, grain)
        for n in range(100):
            sent = clock.now()
            await asyncio.sleep(rng.expovariate(20))
            written = store_time() // grain * grain
            await asyncio.sleep(rng.expovariate(20))
            known.wrote(str(n), sent, clock.now())
            await asyncio.sleep(rng.expovariate(1))
            known.saw([ListedObject(str(n), 1, written)])
            for pause in (0.0, rng.expovariate(1 / 100)):
                await asyncio.sleep(pause)
                assert known.surely() <= store_time() + 1e-6
                behind = store_time() - known.surely()
                assert behind < 2 * grain + 2 + 200 * DRIFT + pause * 3 * DRIFT, behind
        assert abs(known.now() - store_time()) < grain + 1

    virtually(main)
