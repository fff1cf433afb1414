"""How pages show a target: its state in one word, its last readings, and the order that waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from statistics import median

from markupsafe import Markup

from pollwise.fleet.recent import RECENT_MAX, PastReading, from_text, past_readings
from pollwise.fleet.stores.base import SavedTarget, TargetOrder
from pollwise.fleet.views import TargetState, saved_state
from pollwise.web.charts import ticks
from pollwise.web.texts import age, counted

#: Words for states. A closed breaker lets polls through, but "closed" reads like a failure.
WORDS = {"closed": "healthy", "open": "broken"}
STATES = {word: state for state, word in WORDS.items()}
EXPLAINED = {
    "healthy": "its last poll succeeded",
    "new": "it was not polled successfully yet",
    "confirming": "it failed, and is polled again at once to tell an outage from a hiccup",
    "backing off": "it failed several times, and is polled less often",
    "broken": "it keeps failing, so its breaker is open",
    "half-open": "its breaker lets one poll through to see whether it is back",
    "dead": "it failed for long, and one success brings it back",
    "paused": "it is not polled until it is resumed",
}
#: What an order is called on pages.
ORDER_WORDS = {
    "poll-now": "poll now", "retry": "retry", "pause": "pause", "resume": "resume",
    "close-breaker": "close the breaker",
}  # fmt: skip
#: Readings in the strip of a table.
TICKS = 24


@dataclass(frozen=True)
class TargetRow:
    """A target on a page. uptime: of the last 7 days, 0 to 1; None if it is not known."""

    saved: SavedTarget
    now: float
    orders: Sequence[TargetOrder] = ()
    uptime: float | None = None

    @property
    def name(self) -> str:
        return self.saved.name

    @property
    def id(self) -> str:
        """An id for elements of the page; a name may contain characters that ids cannot."""
        return blake2b(self.name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()

    @cached_property
    def state(self) -> TargetState:
        return saved_state(None, self.saved, self.now)

    @property
    def word(self) -> str:
        """Its state in one word."""
        state = self.state
        if state.paused:
            return "paused"
        if state.state == "closed" and state.succeeded_at is None:
            return "new"
        return WORDS.get(state.state, state.state)

    @property
    def failing(self) -> bool:
        return self.saved.failures > 0

    @cached_property
    def readings(self) -> list[PastReading]:
        """The last readings, oldest first."""
        return past_readings(from_text(self.saved.more.get("recent")))

    @property
    def latency(self) -> float | None:
        """The median of the last polls that succeeded."""
        took = [each.latency for each in self.readings if each.ok]
        return median(took) if took else None

    @property
    def every(self) -> str:
        """Its interval, rounded: the exact one is on its page."""
        interval = self.state.interval
        if not interval:
            return "–"
        return age(interval if interval < 100.0 else round(interval / 60.0) * 60.0)

    @property
    def pending(self) -> str:
        """The orders that wait, in words."""
        return ", ".join(dict.fromkeys(ORDER_WORDS.get(o.what, o.what) for o in self.orders))

    @property
    def strip(self) -> Markup:
        last = self.readings[-TICKS:]
        tones = ["none"] * (TICKS - len(last)) + [tone_of(each) for each in last]
        failed = sum(not each.ok for each in last)
        if not last:
            return ticks(tones, "no readings yet")
        changed = sum(each.changed for each in last)
        return ticks(
            tones, f"last {counted(len(last), 'poll')}: {failed} failed, {changed} found a change"
        )


def tone_of(reading: PastReading) -> str:
    if not reading.ok:
        return "red"
    return "blue" if reading.changed else "green"


def padded(readings: Sequence[PastReading]) -> list[PastReading | None]:
    """The readings at the end of a strip of constant length."""
    return [None] * (RECENT_MAX - len(readings)) + list(readings)
