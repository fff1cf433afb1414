"""Traces that are rebuilt from a queue's history."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pollwise.errors import ConfigError
from pollwise.lab.traces.claimed import ClaimedJobs, claimed_in
from pollwise.lab.traces.history import rebuilt
from pollwise.runtime.rollups import HistoryPoint


def test_arrivals_lie_in_their_minute_less_their_waits() -> None:
    claimed = [
        ClaimedJobs(1000.0, 60.0, 50, [(0.0, 0.0, 50)]),
        ClaimedJobs(1120.0, 60.0, 40, [(100.0, 110.0, 30), (0.0, 0.0, 10)]),
    ]
    trace = rebuilt("mail", claimed, 1000.0, 1200.0)
    assert len(trace.arrivals) == 90
    assert trace.span == 200.0
    counts, _ = np.histogram(trace.arrivals, [0.0, 10.0, 80.0, 120.0, 180.0])
    assert counts.sum() == 90
    assert counts[2] == 0  # nothing arrived between 80 and 120 s
    assert counts[3] == 10  # those that did not wait
    again = rebuilt("mail", claimed, 1000.0, 1200.0)
    assert np.array_equal(trace.arrivals, again.arrivals)


def test_jobs_that_arrived_before_the_time_count_at_its_beginning() -> None:
    old = ClaimedJobs(0.0, 60.0, 3, [(5000.0, math.inf, 3)])
    assert rebuilt("mail", [old], 0.0, 60.0).arrivals.tolist() == [0.0, 0.0, 0.0]


def test_a_history_without_arrivals_is_refused() -> None:
    with pytest.raises(ConfigError, match="mail has no arrivals"):
        rebuilt("mail", [ClaimedJobs(0.0, 60.0, 0, [])], 0.0, 60.0)
    with pytest.raises(ConfigError, match="not a period of time"):
        rebuilt("mail", [], 60.0, 60.0)


def test_points_of_several_kinds_are_one_interval_and_the_last_is_not_over() -> None:
    points = [
        HistoryPoint(600.0, kind="mail", found=3),
        HistoryPoint(600.0, kind="bill", found=4),
        HistoryPoint(660.0, kind="", polls=9),
        HistoryPoint(720.0, kind="mail", found=50),
    ]
    since, claimed = claimed_in(points, "mail", 3600.0, 730.0)
    assert since == 600.0
    assert [(each.at, each.seconds, each.found) for each in claimed] == [
        (600.0, 60.0, 7), (720.0, 10.0, 50),
    ]  # fmt: skip
    trace = rebuilt("mail", claimed, since, 730.0)
    assert (trace.arrivals[7:] > 120.0).all()
    assert len(set(trace.arrivals)) == 57  # none is cut off at the end
    assert claimed_in(points, "mail", 100.0, 730.0)[0] == 630.0


def test_a_queue_that_nobody_worked_on_has_no_history() -> None:
    with pytest.raises(ConfigError, match="noted an arrival in mail"):
        claimed_in([HistoryPoint(0.0, polls=3)], "mail", 60.0, 90.0)
