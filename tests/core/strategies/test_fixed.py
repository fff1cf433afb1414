from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pollwise.core.outcome import Pause
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from tests.core.strategies.pacing import delays, feed, saw

# Golden table, worked out by hand: whatever a poll finds, the next comes an interval later.


@pytest.mark.parametrize(
    ("strategy", "interval"),
    [
        (Fixed(), 0.5),  # qo's page: fixed 500 ms
        (Fixed("100ms"), 0.1),  # its row for latency-critical work
        (Fixed("2s"), 2.0),  # Namastack's default
        (Fixed(timedelta(minutes=1)), 60.0),
        (Fixed(3), 3.0),
    ],
    ids=repr,
)
def test_intervals(strategy: Fixed, interval: float) -> None:
    assert strategy.pacer().first() == Pause(interval)
    assert delays(strategy, [0, 0, 0, 10, 3, 0, 10, 10, 0]) == [interval] * 9
    assert strategy.min_interval == strategy.max_interval == strategy.interval == interval


def test_a_hold_goes_with_every_poll() -> None:
    strategy = Fixed("1s", hold="20s")
    pacer = strategy.pacer()
    assert [pacer.first(), *feed(pacer, [0, 5, 10])] == [Pause(1.0, 20.0)] * 4
    assert strategy.longest_hold == 20.0
    assert Fixed().longest_hold == 0.0


def test_no_pause_is_needed_where_polls_are_held() -> None:
    assert Fixed(0, hold="20s").pacer().first() == Pause(0.0, 20.0)


def test_nothing_ever_changes() -> None:
    pacer = Fixed("1s").pacer()
    pauses = [*feed(pacer, [0, 10, 0]), pacer.after(saw(0, failed=True))]
    assert all(pause.changes == () for pause in pauses)
    assert pacer.state() == {"interval": 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval": 0}, "interval = 0 polls without any pause; give an interval above 0, or a"),
        ({"interval": "0s", "hold": 0}, "interval = '0s' polls without any pause; give an"),
        ({"interval": -1}, "interval = -1 must be 0 or more; give a number of seconds"),
        ({"interval": "soon"}, "interval = 'soon' is not a duration; give a number of seconds"),
        ({"interval": None}, "interval = None is a NoneType; give a number of seconds"),
        ({"interval": float("inf")}, "interval = inf is not finite; give a number of seconds"),
        ({"hold": "-1s"}, "hold = '-1s' must be 0 or more; give a number of seconds"),
        ({"hold": True}, "hold = True is not a duration; give a number of seconds"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Fixed(**arguments)
    assert str(caught.value).startswith(message)
