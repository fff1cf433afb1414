from __future__ import annotations

import math
import sys
from collections import Counter
from random import Random
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pollwise.core import agenda as module
from pollwise.core.agenda import STALE_MIN, Agenda, AgendaEntry
from pollwise.errors import ConfigError


def drained(agenda: Agenda[str]) -> list[str]:
    order = []
    while (entry := agenda.pop()) is not None:
        order.append(entry.key)
    return order


def test_an_empty_agenda_has_no_entries() -> None:
    agenda = Agenda[str]()
    assert len(agenda) == 0
    assert "a" not in agenda
    assert agenda.due("a") is None
    assert agenda.peek() is None
    assert agenda.pop() is None
    assert agenda.pop_due(1e9) is None
    assert agenda.first_due() == math.inf
    assert agenda.count_due(1e9, 10) == 0
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


def test_a_key_that_is_added_again_goes_behind_others() -> None:
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
    assert agenda.peek() == AgendaEntry("a", 7.0, 0.0)
    assert agenda.pop() == AgendaEntry(key="a", due=7.0, priority=0.0)
    assert "a" not in agenda


def test_pop_due_takes_only_what_is_due() -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", 5.0, 3.0)
    assert agenda.pop_due(math.nextafter(5.0, 0)) is None
    assert len(agenda) == 1
    assert agenda.pop_due(5.0) == AgendaEntry("a", 5.0, 3.0)
    assert agenda.pop_due(5.0) is None


def test_a_parked_key_stays_known_and_never_comes_due() -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", math.inf)
    assert agenda.pop_due(sys.float_info.max) is None
    assert agenda.count_due(sys.float_info.max, 10) == 0
    assert agenda.first_due() == math.inf
    assert agenda.due("a") == math.inf
    assert len(agenda) == 1
    agenda.upsert("a", 1.0)
    assert agenda.pop_due(1.0) == AgendaEntry("a", 1.0, 0.0)


def test_keys_are_never_compared() -> None:
    agenda = Agenda[complex]()
    for key in (2j, 1j, 3j):
        agenda.upsert(key, 1.0)
    assert [agenda.pop(), agenda.pop()] == [AgendaEntry(2j, 1.0, 0.0), AgendaEntry(1j, 1.0, 0.0)]


def test_with_ties_the_least_goes_first_and_then_who_is_here_longest() -> None:
    agenda = Agenda[str](ties=str.lower)
    for key, priority in [("b", 0), ("C", 0), ("A", 0), ("B", 0), ("a", 0), ("z", 1)]:
        agenda.upsert(key, 1.0, priority)
    agenda.upsert("b", 0.0)
    agenda.upsert("b", 1.0)
    assert "".join(drained(agenda)) == "zAabBC"


def test_keys_are_not_compared_with_what_they_left_behind() -> None:
    """A key that was removed and one that came in its stead may have all in common but arrival."""
    agenda = Agenda[complex](ties=abs)
    for key in (1j, -1j, 1j, -1j):
        agenda.upsert(key, 1.0)
        agenda.upsert(key, 2.0)
        agenda.upsert(key, 1.0)
        agenda.remove(key)
    agenda.upsert(1j, 1.0)
    agenda.upsert(-1j, 1.0)
    assert [agenda.pop(), agenda.pop()] == [AgendaEntry(1j, 1.0, 0.0), AgendaEntry(-1j, 1.0, 0.0)]


def test_those_due_are_counted_up_to_a_number() -> None:
    agenda = Agenda[int]()
    for key in range(100):
        agenda.upsert(key, 0.0)
        agenda.upsert(key, float(key))
    assert agenda.first_due() == 0.0
    assert agenda.count_due(-1.0, 1000) == 0
    assert agenda.count_due(9.0, 1000) == 10
    assert agenda.count_due(9.0, 3) == 3
    assert agenda.count_due(9.0, 0) == 0


@pytest.mark.parametrize(("due", "priority"), [(math.nan, 0.0), (1.0, math.nan)])
def test_nan_is_refused_and_nothing_changed(due: float, priority: float) -> None:
    agenda = Agenda[str]()
    agenda.upsert("a", 1.0)
    for key in ("a", "b"):
        with pytest.raises(ConfigError, match=f"nan .*of '{key}'|nan of '{key}'"):
            agenda.upsert(key, due, priority)
    assert agenda.peek() == AgendaEntry("a", 1.0, 0.0)
    assert len(agenda) == 1


# Against a sorted list.

keys = st.integers(0, 12)
times = st.integers(0, 6).map(float) | st.just(math.inf)
priorities = st.integers(-1, 1).map(float)


class AgendaIsASortedList(RuleBasedStateMachine):
    #: Sweeps come as seldom as ever, or as often as can be.
    stale_min = STALE_MIN

    def __init__(self) -> None:
        super().__init__()
        self.patch = mock.patch.object(module, "STALE_MIN", self.stale_min)
        self.patch.start()
        self.agenda = self.empty()
        self.model: dict[int, tuple[float, float, int, int]] = {}
        self.arrivals = 0

    def teardown(self) -> None:
        self.patch.stop()

    def empty(self) -> Agenda[int]:
        return Agenda()

    def tie(self, key: int) -> int:
        return 0

    def next(self) -> AgendaEntry[int] | None:
        if not self.model:
            return None
        key, (due, rank, _, _) = min(self.model.items(), key=lambda item: item[1])
        return AgendaEntry(key, due, -rank)

    @rule(key=keys, due=times, priority=priorities)
    def upsert(self, key: int, due: float, priority: float) -> None:
        self.agenda.upsert(key, due, priority)
        if key in self.model:
            arrival = self.model[key][3]
        else:
            arrival = self.arrivals
            self.arrivals += 1
        self.model[key] = (due, -priority, self.tie(key), arrival)

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

    @rule(now=times, most=st.integers(0, 15))
    def count_due(self, now: float, most: int) -> None:
        due = sum(due <= now for due, *_ in self.model.values())
        assert self.agenda.count_due(now, most) == min(due, most)

    @invariant()
    def bounded_by_the_keys(self) -> None:
        assert len(self.agenda._heap) <= 2 * len(self.model) + self.stale_min

    @invariant()
    def same_as_the_model(self) -> None:
        expected = self.next()
        assert self.agenda.peek() == expected
        assert self.agenda.first_due() == (math.inf if expected is None else expected.due)
        assert len(self.agenda) == len(self.model)
        for key in range(13):
            assert (key in self.agenda) is (key in self.model)
            assert self.agenda.due(key) == self.model.get(key, (None,))[0]


class SweptAgendaIsASortedList(AgendaIsASortedList):
    stale_min = 0


class AgendaWithTiesIsASortedList(SweptAgendaIsASortedList):
    def empty(self) -> Agenda[int]:
        return Agenda(ties=self.tie)

    def tie(self, key: int) -> int:
        return -(key // 2)


few = settings(max_examples=50, stateful_step_count=60, deadline=None)
TestAgendaIsASortedList = AgendaIsASortedList.TestCase
TestAgendaIsASortedList.settings = few
TestSweptAgendaIsASortedList = SweptAgendaIsASortedList.TestCase
TestSweptAgendaIsASortedList.settings = few
TestAgendaWithTiesIsASortedList = AgendaWithTiesIsASortedList.TestCase
TestAgendaWithTiesIsASortedList.settings = few


@pytest.mark.soak
@pytest.mark.parametrize(
    "machine", [AgendaIsASortedList, SweptAgendaIsASortedList, AgendaWithTiesIsASortedList]
)
def test_an_agenda_is_a_sorted_list_for_long(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(few, max_examples=5_000))


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
def test_every_operation_is_logarithmic_amortised(size: int) -> None:
    """One that sweeps costs more, and is paid for by those that left something behind."""
    random, agenda, total = Random(size), Agenda[int](), Counter[str]()
    bound = 2 * math.ceil(math.log2(size)) + 2

    def spent(what: str) -> int:
        comparisons, Counted.comparisons = Counted.comparisons, 0
        total[what] += comparisons
        return comparisons

    Counted.comparisons = 0
    for key in range(size):
        agenda.upsert(key, Counted(random.random()))
        assert spent("insert") <= bound
    for _ in range(10 * size):
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
    assert total["insert"] > size / 2
    assert total["move"] <= 10 * size * bound
    assert total["remove"] <= size / 2 * bound
    assert total["pop"] <= size / 2 * bound


def test_what_was_not_moved_leaves_nothing_to_sweep() -> None:
    """As a fleet polls: whoever is taken comes back later. Then no operation is dear."""
    random, agenda = Random(1), Agenda[int]()
    for key in range(1_000):
        agenda.upsert(key, Counted(random.random()))
    Counted.comparisons = 0
    for _ in range(10_000):
        first = agenda.pop()
        assert first is not None
        agenda.upsert(first.key, Counted(first.due + random.random()))
        assert Counted.comparisons <= 3 * 10 + 4
        Counted.comparisons = 0
    assert len(agenda._heap) == 1_000


def test_memory_is_bounded_by_the_keys_not_by_the_changes() -> None:
    agenda, random = Agenda[int](), Random(1)
    for n in range(100_000):
        agenda.upsert(n % 10, random.random(), random.random())
        assert len(agenda._heap) <= 2 * 10 + STALE_MIN
    assert len(agenda) == len(agenda._nodes) == 10
    held = sys.getsizeof(agenda._heap) + sys.getsizeof(agenda._nodes)
    assert held < 2_000


@pytest.mark.parametrize("how", ["remove", "pop"])
def test_what_is_gone_is_let_go(how: str) -> None:
    """Though all that was left behind lies deep in the heap, where nobody comes by."""
    agenda = Agenda[int]()
    for due in (9.0, 1.0):
        for key in range(1_000):
            agenda.upsert(key, due)
    for key in range(1_000):
        assert agenda.remove(key) if how == "remove" else agenda.pop_due(1.0)
    assert len(agenda) == 0
    assert len(agenda._heap) <= STALE_MIN
