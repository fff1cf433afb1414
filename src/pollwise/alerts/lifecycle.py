"""The life of an alert: it opens once its condition held long enough, may be repeated, and closes.

Decisions only: callers pass the time, and send and save what is decided. All times are of one
clock, whichever that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pollwise.alerts.rules import AlertRule

LifeEvent = Literal["opened", "repeated", "closed"]


@dataclass(frozen=True, slots=True)
class RuleState:
    """The state of one rule of one target.

    since: when its condition began to hold; None while it does not.
    seen: polls in a row after which it held.
    alert: the id of its open alert. opened_at, sent_at: when that opened and was last sent.
    sent: how often it was sent.
    to: the channels that heard of it, which also hear of its end.
    acknowledged: True if somebody acknowledged it, so it is not repeated.
    """

    since: float | None = None
    seen: int = 0
    alert: str | None = None
    opened_at: float = 0.0
    sent_at: float = 0.0
    sent: int = 0
    to: tuple[str, ...] = ()
    acknowledged: bool = False

    def kept(self, offset: float) -> dict[str, Any]:
        """As JSON values, with `offset` added to its times."""
        kept: dict[str, Any] = {"seen": self.seen}
        if self.since is not None:
            kept["since"] = self.since + offset
        if self.alert is not None:
            kept |= {"alert": self.alert, "sent": self.sent, "to": list(self.to)}
            kept |= {"opened_at": self.opened_at + offset, "sent_at": self.sent_at + offset}
            if self.acknowledged:
                kept["acknowledged"] = True
        return kept

    @classmethod
    def restored(cls, kept: object, offset: float, now: float) -> RuleState:
        """The state that `kept` describes; a new one if that cannot be read. No time is in the
        future, even if the clock was set back."""
        if not isinstance(kept, Mapping):
            return CALM
        try:
            since = kept.get("since")
            state = cls(
                None if since is None else min(float(since) - offset, now), int(kept.get("seen", 0))
            )
            if kept.get("alert") is None:
                return state
            return replace(
                state,
                alert=str(kept["alert"]),
                opened_at=min(float(kept["opened_at"]) - offset, now),
                sent_at=min(float(kept["sent_at"]) - offset, now),
                sent=int(kept["sent"]),
                to=tuple(map(str, kept.get("to", ()))),
                acknowledged=bool(kept.get("acknowledged")),
            )
        except (KeyError, TypeError, ValueError):
            return CALM


#: The state of a rule whose condition does not hold.
CALM = RuleState()


def step(
    rule: AlertRule,
    state: RuleState,
    now: float,
    holds: bool | None = None,
    *,
    since: float | None = None,
    free: bool | None = True,
) -> tuple[RuleState, LifeEvent | None]:
    """The state after a poll or after time passed, and what happened to the alert.

    holds: whether the condition holds after a poll; None if only time passed, or if the poll did
        not tell.
    since: when it began to hold, if that is known better than by the polls.
    free: False while the alert is held back. Then it neither opens nor is repeated, and once it is
        free again it needs new polls to open. None while that is unknown: it waits, and
            keeps its state.

    The caller gives a state that opened its alert's id.
    """
    if holds is False:
        return CALM, None if state.alert is None else "closed"
    if holds:
        began = now if state.since is None else state.since
        seen = min(state.seen + 1, rule.confirmations)
        state = replace(state, since=began if since is None else min(since, now), seen=seen)
    if free is None:
        return state, None
    if not free:
        return replace(state, seen=0) if state.seen else state, None
    if state.since is None:
        return state, None
    if now < due(rule, state):
        return state, None
    if state.alert is None:
        return replace(state, alert="", opened_at=now, sent_at=now, sent=1), "opened"
    return replace(state, sent_at=now, sent=state.sent + 1), "repeated"


def due(rule: AlertRule, state: RuleState) -> float:
    """When time alone opens or repeats the alert; infinity if it does not."""
    if state.since is None:
        return math.inf
    if state.alert is None:
        return state.since + rule.lasting if state.seen >= rule.confirmations else math.inf
    if rule.repeat is None or state.acknowledged:
        return math.inf
    return state.sent_at + rule.repeat
