from __future__ import annotations

import math
import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pollux.core.agenda import Agenda, Entry
from pollux.errors import ConfigError


def drained(agenda: Agenda[str]) -> list[str]:
    order = []
    while (entry := agenda.pop()) is not None:
        order.append(entry.key)
    return order


def test_an_empty_agenda_has_nobody() -> None:
    agenda = Agenda[str]()
    assert len(agenda) == 0
    assert "a" not in agenda
    assert agenda.due("a") is None
    assert agenda.peek() is None
    assert agenda.pop() is None
    assert agenda.pop_due(1e9) is None
    assert agenda.remove("a") is False


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        ([("a", 3, 0), ("b", 1, 0), ("c", 2, 0)], "bca"),
        ([("a", 1, 0), ("b", 1, 5), ("c", 1, 2)], "bca"),
        ([("a", 2, 9), ("b", 1, 0)], "ba"),
        ([("a", 1, 0), ("b", 1, 0), ("c", 1, 0)], "abc"),
        ([("c", 1, 0), ("b", 1, 0), ("a", 1, 0)], "cba"),
        ([("a", math.inf, 9), ("b", 1, -1), ("c", -math.inf, -9)], "cba"),
        # Moved, then tied again: a keeps its place before b.
        ([("a", 1, 0), ("b", 1, 0), ("a", 9, 0), ("a", 1, 0)], "ab"),
        ([("a", 1, 0), ("b", 1, 0), ("b", 1, 1)], "ba"),
    ],
)
def test_order(entries: list[tuple[str, float, float]], order: str) -> None:
    agenda = Agenda[str]()
    for key, due, priority in entries:
        agenda.upsert(key, due, priority)
    assert "".join(drained(agenda)) == order


def test_coming_back_is_arriving_anew() -> None:
    agenda = Agenda[str]()
    for key in "abc":
        agenda.upsert(key, 1.0)
    assert agenda.remove("a")
    agenda.upsert("a", 1.0)
    assert drained(agenda) == ["b", "c", "a"]


def test_a_key_is_there_once_and_moves() -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", 5.0, 2.0)
    agenda.upsert("a", 7.0)
    assert len(agenda) == 1
    assert "a" in agenda
    assert agenda.due("a") == 7.0
    assert agenda.peek() == Entry("a", 7.0, 0.0)
    assert agenda.pop() == Entry(key="a", due=7.0, priority=0.0)
    assert "a" not in agenda


def test_pop_due_takes_only_what_is_due() -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", 5.0, 3.0)
    assert agenda.pop_due(math.nextafter(5.0, 0)) is None
    assert len(agenda) == 1
    assert agenda.pop_due(5.0) == Entry("a", 5.0, 3.0)
    assert agenda.pop_due(5.0) is None


def test_a_parked_key_stays_known_and_never_comes_due() -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", math.inf)
    assert agenda.pop_due(sys.float_info.max) is None
    assert agenda.due("a") == math.inf
    agenda.upsert("a", 1.0)
    assert agenda.pop_due(1.0) == Entry("a", 1.0, 0.0)


def test_keys_are_never_compared() -> None:
    agenda = Agenda[complex]()
    for key in (2j, 1j, 3j):
        agenda.upsert(key, 1.0)
    assert [agenda.pop(), agenda.pop()] == [Entry(2j, 1.0, 0.0), Entry(1j, 1.0, 0.0)]


@pytest.mark.parametrize(("due", "priority"), [(math.nan, 0.0), (1.0, math.nan)])
def test_nan_is_refused_and_nothing_changed(due: float, priority: float) -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", 1.0)
    for key in ("a", "b"):
        with pytest.raises(ConfigError, match=f"nan .*of '{key}'|nan of '{key}'"):
            agenda.upsert(key, due, priority)
    assert agenda.peek() == Entry("a", 1.0, 0.0)
    assert len(agenda) == 1


# Against a sorted list.

keys = st.integers(0, 12)
times = st.integers(0, 6).map(float) | st.just(math.inf)
priorities = st.integers(-1, 1).map(float)


class AgendaIsASortedList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agenda = Agenda[int]()
        self.model: dict[int, tuple[float, float, int]] = {}
        self.arrivals = 0

    def next(self) -> Entry[int] | None:
        if not self.model:
            return None
        key, (due, rank, _) = min(self.model.items(), key=lambda item: item[1])
        return Entry(key, due, -rank)

    @rule(key=keys, due=times, priority=priorities)
    def upsert(self, key: int, due: float, priority: float) -> None:
        self.agenda.upsert(key, due, priority)
        if key in self.model:
            arrival = self.model[key][2]
        else:
            arrival = self.arrivals
            self.arrivals += 1
        self.model[key] = (due, -priority, arrival)

    @rule(key=keys)
    def remove(self, key: int) -> None:
        assert self.agenda.remove(key) is (self.model.pop(key, None) is not None)

    @rule()
    def pop(self) -> None:
        expected = self.next()
        assert self.agenda.pop() == expected
        if expected:
            del self.model[expected.key]

    @rule(now=times)
    def pop_due(self, now: float) -> None:
        expected = self.next()
        if expected is None or expected.due > now:
            assert self.agenda.pop_due(now) is None
        else:
            assert self.agenda.pop_due(now) == expected
            del self.model[expected.key]

    @invariant()
    def same_as_the_model(self) -> None:
        assert self.agenda.peek() == self.next()
        assert len(self.agenda) == len(self.model)
        for key in range(13):
            assert (key in self.agenda) is (key in self.model)
            assert self.agenda.due(key) == self.model.get(key, (None,))[0]


AgendaIsASortedList.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None
)
TestAgendaIsASortedList = AgendaIsASortedList.TestCase


@pytest.mark.parametrize("seed", range(5))
def test_a_large_agenda_empties_in_order(seed: int) -> None:
    random, agenda, due = Random(seed), Agenda[int](), dict[int, float]()
    for _ in range(5_000):
        key = random.randrange(1_000)
        if random.random() < 0.2:
            assert agenda.remove(key) is (due.pop(key, None) is not None)
        else:
            due[key] = random.random()
            agenda.upsert(key, due[key])
    order = [agenda.pop() for _ in range(len(agenda))]
    assert [entry.key for entry in order if entry] == sorted(due, key=lambda key: due[key])


# Its costs, counted rather than timed.


class Counted(float):
    """A float that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return super().__lt__(other)

    def __gt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return super().__gt__(other)

    __eq__ = float.__eq__
    __hash__ = float.__hash__


@pytest.mark.parametrize("size", [100, 1_000, 10_000])
def test_every_operation_is_logarithmic(size: int) -> None:
    random, agenda, most = Random(size), Agenda[int](), Counter[str]()
    bound = 2 * math.ceil(math.log2(size)) + 2

    def spent(what: str) -> None:
        most[what] = max(most[what], Counted.comparisons)
        Counted.comparisons = 0

    Counted.comparisons = 0
    for key in range(size):
        agenda.upsert(key, Counted(random.random()))
        spent("insert")
    for _ in range(size):
        agenda.upsert(random.randrange(size), Counted(random.random()))
        spent("move")
    agenda.upsert(0, Counted(2.0))
    agenda.upsert(0, Counted(-1.0))
    agenda.upsert(0, Counted(2.0))
    spent("there and back, in three moves")
    for key in range(0, size, 2):
        agenda.remove(key)
        spent("remove")
    while agenda.pop_due(9.0):
        spent("pop")
    assert most.pop("there and back, in three moves") <= 3 * bound
    assert most["insert"] > 1
    assert max(most.values()) <= bound, most


def test_memory_is_bounded_by_the_keys_not_by_the_changes() -> None:
    agenda, random = Agenda[int](), Random(1)
    for n in range(100_000):
        agenda.upsert(n % 10, random.random(), random.random())
    assert len(agenda) == 10
    assert len(agenda._heap) == 10
    assert len(agenda._places) == 10
    held = sys.getsizeof(agenda._heap) + sys.getsizeof(agenda._places)
    assert held < 2_000
