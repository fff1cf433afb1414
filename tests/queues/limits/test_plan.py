"""The arithmetic of limits, as laws: rates, and turns against a plain simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.queues.limits import plan
from pollwise.queues.limits.plan import KindUse, Line, Place, WaitingJobs, planned, shares
from pollwise.queues.limits.record import SLACK, KindLimits, KindRate

rates = st.builds(
    KindRate, st.integers(1, 1000), st.sampled_from([0.5, 1.0, 60.0, 3600.0]), st.integers(1, 50)
)
NOW = 1.8e9


# Rates


@given(
    rates, st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60)), min_size=1, max_size=60)
)  # fmt: skip
def test_no_window_has_more_starts_than_its_length_and_the_burst(
    rate: KindRate, asked: list[tuple[float, int]]
) -> None:
    now, full_at, starts = NOW, 0.0, []
    for wait, wanted in asked:
        now += wait * rate.step
        count = min(wanted, rate.room(full_at, now))
        full_at = rate.after(full_at, now, count)
        starts += [now] * count
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            allowed = rate.burst + (starts[last] - starts[first]) / rate.step
            assert last - first + 1 <= allowed + 0.01


@given(rates)
def test_steady_work_has_all_of_its_rate(rate: KindRate) -> None:
    """Who starts one job as soon as it may loses nothing by rounding."""
    now, full_at = NOW, 0.0
    times = []
    for _ in range(rate.burst + 100):
        now = rate.next_start(full_at, now) or now
        assert rate.room(full_at, now) >= 1, "there is room at the time of the next start"
        full_at = rate.after(full_at, now, 1)
        times.append(now)
    assert times[: rate.burst] == pytest.approx([NOW] * rate.burst, abs=1e-4)
    for one, two in pairwise(times[rate.burst - 1 :]):
        assert two - one == pytest.approx(rate.step, abs=1e-4)


@given(rates, rates)
def test_a_rate_that_became_faster_has_all_of_its_room_after_one_burst(
    slow: KindRate, fast: KindRate
) -> None:
    full_at = slow.after(0.0, NOW, slow.burst)
    if fast.too_high(full_at, NOW):
        full_at = fast.after(full_at, NOW, 0)
    assert full_at <= NOW + fast.free + SLACK
    assert fast.room(full_at, NOW + fast.free + SLACK) == fast.burst


# Turns


class Groups(WaitingJobs):
    """Groups with some jobs each; counts what is read."""

    def __init__(self, sizes: Mapping[str, int], running: Mapping[str, int]) -> None:
        numbers = iter(range(10**6))
        self.jobs = {
            group: [Place(0, 0.0, next(numbers)) for _ in range(size)]
            for group, size in sorted(sizes.items())
            if size
        }
        self.running = running
        self.read = 0
        self._given = dict.fromkeys(self.jobs, 0)

    def groups(self, start: str, most: int) -> list[Line]:
        names = (group for group in self.jobs if group >= start)
        return [Line(group, self.running.get(group, 0)) for group in islice(names, most)]

    def fill(self, lines: Sequence[Line], most: int) -> None:
        for line in lines:
            begin = self._given[line.group]
            some = self.jobs[line.group][begin : begin + most]
            self._given[line.group] += len(some)
            self.read += len(some)
            line.jobs.extend(some)
            line.more = len(some) == most


def simulated(use: KindUse, groups: Groups, most: int) -> list[tuple[str, int, int]]:
    """The group, number and rest of the turn of each job, by rounds over whole lists."""
    limits, names = use.limits, list(groups.jobs)
    rest = {group: list(jobs) for group, jobs in groups.jobs.items()}
    each = limits.most_each or 10**6
    room = {group: max(each - groups.running.get(group, 0), 0) for group in names}
    own = [group for group in names if group == use.turn]
    circle = [group for group in names if group > use.turn]
    circle += [group for group in names if group < use.turn]
    circle = own + circle if use.left else circle + own
    picked: list[tuple[str, int, int]] = []
    left = use.left
    while True:
        before = len(picked)
        for group in circle:
            allowed = limits.weights.get(group, 1)
            if left and group == use.turn:
                allowed = left
            left = 0
            while allowed and rest[group] and room[group] and len(picked) < most:
                allowed -= 1
                room[group] -= 1
                picked.append((group, rest[group].pop(0).seq, allowed))
        if len(picked) == before:
            return picked


letters = st.sampled_from(["", "a", "b", "c", "d", "e", "ä", "𝄞"])


@given(
    sizes=st.dictionaries(letters, st.integers(0, 30)),
    running=st.dictionaries(letters, st.integers(0, 4)),
    weights=st.dictionaries(letters.filter(bool), st.integers(1, 9)),
    most_each=st.none() | st.integers(1, 6),
    turn=letters,
    left=st.integers(0, 5),
    most=st.integers(1, 60),
)
@example({"a": 30, "b": 30}, {}, {"a": 9}, None, "a", 3, 50)
@example({"": 3, "a": 3}, {}, {}, None, "", 0, 1)
def test_turns_are_those_of_a_plain_simulation(
    sizes: dict[str, int],
    running: dict[str, int],
    weights: dict[str, int],
    most_each: int | None,
    turn: str,
    left: int,
    most: int,
) -> None:
    limits = KindLimits("job", most_each=most_each, fair=True, weights=weights)
    use = KindUse(limits, turn=turn, left=left)
    groups = Groups(sizes, running)
    made = planned(use, groups, most, NOW)
    wanted = simulated(use, groups, most)
    assert [(pick.group, pick.place.seq, pick.left) for pick in made.picks] == wanted
    assert groups.read <= 4 * most + 2 * sum(weights.values()) + 2 * len(sizes)
    charge = made.charge(len(made.picks))
    last = made.picks[-1] if made.picks else None
    assert (charge.turn, charge.left) == ((last.group, last.left) if last else (turn, left))


def test_very_many_groups_are_examined_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GROUPS_MAX", 10)
    limits = KindLimits("job", most_each=1)
    sizes = {f"{n:03}": 2 for n in range(35)}
    running = {group: 1 for group in sizes if group not in ("007", "028")}
    use, found, times = KindUse(limits), [], []
    for _ in range(4):
        groups = Groups(sizes, running)
        made = planned(use, groups, 5, NOW)
        assert len(made.lines) <= 10
        found += [pick.group for pick in made.picks]
        running |= dict.fromkeys(found, 1)
        times.append(made.again_at(len(made.picks), None))
        charge = made.charge(len(made.picks))
        use.turn, use.left = charge.turn, charge.left
    assert found == ["007", "028"], "both groups that may run, in one circle"
    assert all(at is not None and NOW <= at <= NOW + 1 for at in times), "and on at once"


# Kinds


def test_kinds_share_a_claim_in_its_order() -> None:
    def places(*ranks: int) -> list[Place]:
        return [Place(rank, 0.0, seq) for seq, rank in enumerate(ranks)]

    assert shares({"a": places(0, 0), "b": places(-1, 1)}, 9) == {"a": 2, "b": 2}
    assert shares({"a": places(0, 0), "b": places(-1, 1)}, 3) == {"a": 2, "b": 1}
    assert shares({"a": places(5), "b": places(-1, 1)}, 2) == {"b": 2}
