"""Breaker: stop calling what keeps failing, and try again with a single trial.

Without a breaker, a broken downstream uses up the attempts of every job that needs it. All of these
jobs become dead, although nothing is wrong with them.

    closed ──`failures` in a row──▶ open ──after its delay──▶ half-open ──trial succeeded──▶ closed
                                     ▲                            │
                                     └───── failed, longer delay ─┘

Three rules keep it correct. Queries change nothing: `state` and `allows` are pure, only reports
move the circuit, and half-open follows from the time. The delay is never computed beyond its
max_delay, so it cannot overflow after ten thousand failures. And late reports do not count: work
that began before the circuit opened neither prolongs the opening nor ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pollwise.core.retry import check_count, check_multiplier, duration_repr, grown
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError

State = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Breaker:
    """A recipe for circuits; `circuit()` gives the running state for one thing.

    - `failures`: how many failures in a row open the circuit.
    - `delay`: how long the first opening lasts before a trial is allowed.
    - `max_delay`: the longest an opening may last.
    - `multiplier`: how much longer each opening lasts than the one before, until one trial
      succeeds; 1 keeps them all at `delay`.

    >>> breaker = Breaker(failures=3, delay="30s", max_delay="5m")
    >>> [breaker.open_for(n) for n in (1, 2, 3, 4, 5, 10**9)]
    [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    """

    failures: int
    delay: float
    max_delay: float
    multiplier: float

    def __init__(
        self,
        failures: int = 3,
        delay: Duration = "30s",
        max_delay: Duration = "5m",
        *,
        multiplier: float = 2.0,
    ) -> None:
        check_count(failures, "failures", "this many in a row open the circuit")
        check_multiplier(multiplier)
        first, last = seconds(delay, "delay", positive=True), seconds(max_delay, "max_delay")
        if last < first:
            raise ConfigError(f"max_delay = {max_delay!r} must be at least delay = {delay!r}")
        fields = {"failures": failures, "delay": first, "max_delay": last, "multiplier": multiplier}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def circuit(self) -> Circuit:
        """Return a new closed circuit for one thing; do not share it."""
        return Circuit(self)

    def open_for(self, openings: int) -> float:
        """Return how long the opening number `openings` (1 is the first) lasts, in seconds."""
        return grown(self.delay, self.multiplier, max(0, openings - 1), self.max_delay)

    def __repr__(self) -> str:
        multiplier = "" if self.multiplier == 2 else f", multiplier={self.multiplier!r}"
        return (
            f"Breaker({self.failures}, {duration_repr(self.delay)}, "
            f"max_delay={duration_repr(self.max_delay)}{multiplier})"
        )


class Circuit:
    """The running state of a `Breaker` for one thing. All times are of the caller's clock.

    Ask `allows(now)`; before the work call `begin(now)`, and after it exactly one of `succeeded`,
    `failed` or `abandoned`. The first report after `begin` counts as the trial's.
    """

    __slots__ = ("_failures", "_openings", "_retry_at", "_trial_at", "breaker")

    def __init__(self, breaker: Breaker) -> None:
        self.breaker: Breaker = breaker
        self.reset()

    def reset(self) -> None:
        """Close the circuit and clear its counts."""
        self._failures = 0  # in a row
        self._openings = 0  # since it was last closed
        self._retry_at: float | None = None
        self._trial_at: float | None = None

    def adopt(self, openings: int, retry_at: float) -> None:
        """Take over the state of another circuit for the same thing: open until `retry_at`."""
        self._failures = max(self._failures, self.breaker.failures)
        self._openings, self._retry_at, self._trial_at = openings, retry_at, None

    @property
    def openings(self) -> int:
        """How often it opened since it was last closed."""
        return self._openings

    @property
    def on_trial(self) -> bool:
        """True from the begin of a trial to its report."""
        return self._trial_at is not None

    @property
    def retry_at(self) -> float | None:
        """When the current opening becomes half-open, or became so; None while closed."""
        return self._retry_at

    def state(self, now: float) -> State:
        """Return the state at `now`; changes nothing."""
        if self._retry_at is None:
            return "closed"
        return "open" if now < self._retry_at else "half-open"

    def allows(self, now: float) -> bool:
        """Return True if work may begin at `now`; changes nothing.

        A half-open circuit allows one trial. A trial that does not report within the length of
        the opening is given up, and another may begin, so the circuit never gets stuck.
        """
        state = self.state(now)
        return state == "closed" or (state == "half-open" and not self._on_trial(now))

    def begin(self, now: float) -> None:
        """Report that work begins; on a half-open circuit it is the trial.

        In other states, or during a trial, this changes nothing.
        """
        if self.state(now) == "half-open" and not self._on_trial(now):
            self._trial_at = now

    def succeeded(self, now: float) -> None:
        """Report a success: it clears the count when closed, and closes the circuit after a trial.

        Any other success is from work that began before the circuit opened, and changes nothing.
        """
        if self._retry_at is None or self._trial_at is not None:
            self.reset()

    def failed(self, now: float) -> None:
        """Report a failure: the last of `failures` in a row opens the circuit.

        A half-open circuit opens again, for longer, even without `begin`. On an open circuit it is
        a late report of work that began before, and changes nothing.
        """
        if self._trial_at is None and self.state(now) == "open":
            return
        self._failures += 1
        if self._failures >= self.breaker.failures:
            self._openings += 1
            self._retry_at = now + self.breaker.open_for(self._openings)
            self._trial_at = None

    def abandoned(self, now: float) -> None:
        """Report a trial that was inconclusive (given back, cancelled): another may begin."""
        self._trial_at = None

    def snapshot(self, now: float) -> dict[str, object]:
        """Return the circuit at `now` as plain values, for views."""
        return {
            "state": self.state(now),
            "failures": self._failures,
            "openings": self._openings,
            "retry_at": self._retry_at,
            "retry_in": None if self._retry_at is None else max(0.0, self._retry_at - now),
            "on_trial": self._on_trial(now),
        }

    def _on_trial(self, now: float) -> bool:
        if self._trial_at is None:
            return False
        return now < self._trial_at + self.breaker.open_for(self._openings)
