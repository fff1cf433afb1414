"""Workloads: the same seed gives the same trace, at the rate that is documented."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from pollwise.errors import ConfigError
from pollwise.lab.traces import synthetic
from pollwise.lab.traces.synthetic import WORKLOADS, workload

RATES = {
    "steady": 0.2,
    "diurnal": 0.2,
    "bursty": 0.1,
    "on-off": 0.4,
    "flash-crowd": 0.14,
    "cron": 0.22,
    "self-exciting": 0.2,
}


def test_every_workload_states_its_rate() -> None:
    assert set(RATES) == set(WORKLOADS)
    for name, rate in RATES.items():
        assert any(
            line.startswith(f"| {name} |") and line.endswith(f"| {rate} |")
            for line in (synthetic.__doc__ or "").splitlines()
        ), name


@pytest.mark.parametrize("name", WORKLOADS)
def test_rates_are_as_stated(name: str) -> None:
    days = [workload(name, seed).rate for seed in range(30)]
    near = 0.15 if name == "flash-crowd" else 0.05  # four crowds a day or so, as chance has it
    assert np.mean(days) == pytest.approx(RATES[name], rel=near)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_trace(name: str) -> None:
    one, again, other = workload(name, 5, 3), workload(name, 5, 3), workload(name, 6, 3)
    assert np.array_equal(one.arrivals, again.arrivals)
    assert not np.array_equal(one.arrivals, other.arrivals)
    assert (one.name, one.span) == (name, 3 * 3600)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("hours", [0.01, 1, 50])
def test_arrivals_are_in_order_and_within_the_span(name: str, hours: float) -> None:
    trace = workload(name, 1, hours)
    assert (np.diff(trace.arrivals) >= 0).all()
    if len(trace.arrivals):
        assert trace.arrivals[0] >= 0
        assert trace.arrivals[-1] < trace.span


def test_seeds_mean_the_same_with_every_numpy() -> None:
    digest = hashlib.sha256(np.round(workload("on-off", 1, 2).arrivals, 6).tobytes()).hexdigest()
    assert digest[:16] == "95e69f809c79c4f8"


def test_noon_is_busier_than_midnight() -> None:
    arrivals = workload("diurnal", 1, 240).arrivals % 86400
    noon = ((arrivals > 11 * 3600) & (arrivals < 13 * 3600)).sum()
    midnight = ((arrivals < 3600) | (arrivals > 23 * 3600)).sum()
    assert noon / midnight == pytest.approx(0.3778 / 0.0222, rel=0.2)


def test_every_flash_crowd_has_its_crowd() -> None:
    for seed in range(10):
        trace = workload("flash-crowd", seed, 2)
        minutes, _ = np.histogram(trace.arrivals, 120, (0, 7200))
        assert minutes.max() > 100


def test_cron_comes_at_full_minutes() -> None:
    arrivals = workload("cron", 1, 10).arrivals
    assert (arrivals % 60 < 0.5).mean() == pytest.approx(10 / 13, abs=0.03)


def test_what_excites_itself_comes_in_clusters() -> None:
    """Counts in long windows vary 1 / (1 - 0.8)² = 25 times more than at random."""
    counts, _ = np.histogram(workload("self-exciting", 1, 24 * 30).arrivals, 2592, (0, 2592000))
    assert counts.var() / counts.mean() == pytest.approx(25, rel=0.2)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("diurnl", "did you mean 'diurnal'"), ("zzz", "known: steady, diurnal"), ("", "known")],
)
def test_an_unknown_workload_gets_a_suggestion(name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        workload(name)


def test_names_may_be_spelled_as_people_do() -> None:
    assert workload("Flash Crowd", 1, 1).name == workload("flash_crowd", 1, 1).name == "flash-crowd"


@pytest.mark.parametrize("hours", [0, -1, math.nan, math.inf, 10_000])
def test_a_length_that_is_none(hours: float) -> None:
    with pytest.raises(ConfigError, match="hours"):
        workload("steady", hours=hours)


@pytest.mark.parametrize("seed", [-1, 1.5, 2**32, True])
def test_a_seed_that_is_none(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed"):
        workload("steady", seed)
