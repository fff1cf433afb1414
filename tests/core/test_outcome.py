from __future__ import annotations

import dataclasses

import pytest

from pollwise.core.outcome import Change, Outcome, Pause
from pollwise.durations import shown


@pytest.mark.parametrize(
    ("found", "capacity", "full"),
    [
        (10, 10, True),
        (11, 10, True),  # more than asked for is full too
        (1, 1, True),
        (9, 10, False),
        (0, 10, False),
        (0, 0, False),  # nothing fits, so nothing is known of what waits
        (3, 0, False),
        (10**400, None, False),  # without a limit there is always more room
        (10**400, 10**400, True),
    ],
    ids=shown,
)
def test_a_full_poll_found_all_it_could(found: int, capacity: int | None, full: bool) -> None:
    assert Outcome(0.0, found, capacity).full is full


def test_an_outcome_is_what_one_poll_saw() -> None:
    outcome = Outcome(7.5, 2, 10, (0.1, 0.2), hinted=True)
    assert outcome == Outcome(at=7.5, found=2, capacity=10, waits=(0.1, 0.2), hinted=True)
    assert Outcome(7.5, 2) == Outcome(7.5, 2, None, (), failed=False, hinted=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.found = 3  # type: ignore[misc]


def test_changes_explain_a_pause_and_are_not_part_of_it() -> None:
    turned = Pause(0.2, 0.0, (Change("back-off", 0.1, 0.2),))
    assert turned == Pause(0.2)
    assert hash(turned) == hash(Pause(0.2))
    assert turned != Pause(0.1)
    assert turned != Pause(0.2, 1.0)
    assert Pause(0.2).changes == ()
