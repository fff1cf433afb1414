"""Conditions: what is accepted, what is refused with which advice, and when they hold."""

from __future__ import annotations

import pytest

from pollwise.alerts.conditions import Condition, Sighting
from pollwise.alerts.rules import AlertRule, checked_rules
from pollwise.errors import ConfigError

WELL = Sighting(ok=True, down=False)
FAILED = Sighting(ok=False, down=False)
DOWN = Sighting(ok=False, down=True)


def reading(value: str | bytes | None = None, latency: float = 0.1, **facts: object) -> Sighting:
    return Sighting(True, False, False, latency, value, facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("when", "seen", "holds"),
    [
        ("down", WELL, False),
        ("down", FAILED, False),
        ("down", DOWN, True),
        ("breaker open", DOWN, False),
        ("breaker  open", DOWN._replace(broken=True), True),
        ("changed", WELL, False),
        ("changed", WELL._replace(changed=True), True),
        ("stale 10m", WELL, False),
        ("stale 10m", DOWN, None),
        ("latency > 2s", reading(latency=2.5), True),
        ("latency>2s", reading(latency=2.0), False),
        ("latency >= 2000ms", reading(latency=2.0), True),
        ("latency > 2s", DOWN, None),
        ("value > 5", reading("6"), True),
        ("value > 5", reading(b"4.5"), False),
        ("value > 5", reading("many"), None),
        ("value > 5", reading(None), None),
        ("value == ok", reading("ok"), True),
        ("value != ok", reading("broken"), True),
        ("value == '5'", reading("5"), True),
        ("value == '5'", reading("5.0"), False),
        ("value == 5", reading("5.0"), True),
        ("value == 5d", reading("5d"), True),
        ("days_left < 14", reading(days_left=13.9), True),
        ("days_left < 14d", reading(days_left=13.9), True),
        ("days_left < 14d", reading(days_left=15), False),
        ("ms > 2s", reading(ms=1500), False),
        ("ms > 2s", reading(ms=2500), True),
        ("ms > 2000", reading(ms=2500), True),
        ("oldest > 5m", reading(oldest=301), True),
        ("status == 503", reading(status=503), True),
        ("status == 503", WELL, None),
        ("valid == false", reading(valid=False), True),
        ("dead > 0", reading(dead=float("nan")), None),
        ("status matches ^5", reading(status=503), True),
        ("status matches '^5'", reading(status=404), False),
        ("value matches (?i)error|fail", reading("an Error"), True),
        ("value matches x", reading(None), None),
    ],
)
def test_holds(when: str, seen: Sighting, holds: bool | None) -> None:
    condition = Condition.parsed(when)
    assert condition.holds(seen) is holds
    assert Condition.parsed(str(condition)).holds(seen) is holds


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("", "is not a condition; write 'down'"),
        (5, "when = 5 is not a condition"),
        ("donw", "did you mean 'down'?"),
        ("down 5m", "did you mean 'down'?"),
        ("stale", "say after how long"),
        ("stale soon", "is not a duration"),
        ("stale 0s", "must be above 0"),
        ("latency = 2s", "compare with '=='"),
        ("latency > soon", "neither a number nor a duration"),
        ("latency == 'x'", "neither a number nor a duration"),
        ("value matches (", "when = 'value matches (':"),
        ("value matches", "lacks"),
        ("value matches (?=x)", "lookahead"),
        ("value >", "lacks what to compare with"),
        ("value > 1\0", "is not a condition"),
        ("value == " + "x" * 600, "longer than 500"),
        ("__import__('os')", "is not a condition"),
    ],
)
def test_refused(when: object, said: str) -> None:
    with pytest.raises(ConfigError, match="when = ") as caught:
        Condition.parsed(when)
    assert said in str(caught.value)


def test_unknown_fields_are_refused_with_the_nearest() -> None:
    known = ("status", "days_left")
    Condition.parsed("days_left < 3").check(known)
    Condition.parsed("latency > 3").check(known)
    Condition.parsed("anything > 3").check(None)
    with pytest.raises(ConfigError, match=r"no field 'day_left'; did you mean 'days_left'\?"):
        Condition.parsed("day_left < 3").check(known)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"lasting": "soon"}, "for = 'soon' is not a duration"),
        ({"confirmations": 0}, "from 1 to 1000"),
        ({"confirmations": True}, "whole number"),
        ({"repeat": "1s"}, "at least 10s"),
        ({"severity": "critcal"}, "did you mean 'critical'?"),
        ({"to": 5}, "must be a list of channels"),
        ({"when": "changed", "repeat": "1h"}, "sent once, at once"),
        ({"when": "stale 1h", "confirmations": 2}, "leave out confirmations"),
    ],
)
def test_wrong_rules_are_refused(rule: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AlertRule(**{"when": "down", **rule})  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_the_rules_of_a_target_are_told_apart() -> None:
    first, second = checked_rules(["down", AlertRule("down", lasting="5m", to="ops")], "target 'a'")
    assert (first.key, second.key, second.to) == ("down", "down for 5m", ("ops",))
    with pytest.raises(ConfigError, match="target 'a': two alerts on 'down'"):
        checked_rules(["down", "down"], "target 'a'")
    with pytest.raises(ConfigError, match="target 'a': 7 is not an AlertRule"):
        checked_rules([7], "target 'a'")
