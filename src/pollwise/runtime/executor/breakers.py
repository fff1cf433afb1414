"""Breakers on work: a kind whose handler keeps failing is not claimed for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pollwise.core.breaker import Breaker, Circuit
from pollwise.runtime.clock import Clock


class Guarded(Protocol):
    """A handler that may have a breaker."""

    @property
    def breaker(self) -> Breaker | None: ...


class Breakers:
    """The circuits of a worker's kinds; a kind without a breaker is always closed.

    While a circuit is not closed, only the trial's result counts: work that began before it
    opened reports late, and says nothing about the present.

    on_change: called with a kind and its new state.
    """

    def __init__(
        self, handlers: Mapping[str, Guarded], clock: Clock, on_change: Callable[[str, str], None]
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._circuits: dict[str, Circuit] = {
            kind: handler.breaker.circuit() for kind, handler in handlers.items() if handler.breaker
        }
        self._states = dict.fromkeys(self._circuits, "closed")
        #: A run failed since this was set to False, so it is worth asking what others know.
        self.doubted: bool = False

    def circuits(self) -> Mapping[str, Circuit]:
        """The circuits of the kinds that have a breaker."""
        return self._circuits

    def adopt(self, kind: str, openings: int, retry_at: float) -> None:
        """Take over an opening that another process reported."""
        self._circuits[kind].adopt(openings, retry_at)
        self._note(kind)

    def reset(self, kind: str) -> None:
        """Close a circuit, because somebody else did."""
        self._circuits[kind].reset()
        self._note(kind)

    def closed(self, kind: str) -> bool:
        circuit = self._circuits.get(kind)
        return circuit is None or circuit.state(self._clock.now()) == "closed"

    def not_closed(self) -> list[str]:
        """The kinds that are not claimed freely, sorted."""
        return sorted(kind for kind in self._circuits if not self.closed(kind))

    def claimable(self, kinds: Iterable[str]) -> tuple[list[str], list[str], float | None]:
        """The kinds to claim freely, those due for one trial job, and when the next one will be."""
        now = self._clock.now()
        freely: list[str] = []
        trials: list[str] = []
        due: list[float] = []
        for kind in kinds:
            circuit = self._circuits.get(kind)
            if circuit is None or circuit.state(now) == "closed":
                freely.append(kind)
            elif circuit.allows(now):
                self._note(kind)
                trials.append(kind)
            elif circuit.retry_at is not None and circuit.retry_at > now:
                due.append(circuit.retry_at)
        return freely, trials, min(due, default=None)

    def until_trial(self, kind: str) -> float:
        """How long a job of a kind that is not closed should wait, in seconds; an estimate."""
        circuit = self._circuits.get(kind)
        if circuit is None or circuit.retry_at is None:
            return 1.0
        return max(circuit.retry_at - self._clock.now(), 1.0)

    def begin_trial(self, kind: str) -> None:
        self._circuits[kind].begin(self._clock.now())

    def succeeded(self, kind: str, trial: bool) -> None:
        circuit = self._counted(kind, trial)
        if circuit is not None:
            circuit.succeeded(self._clock.now())
            self._note(kind)

    def failed(self, kind: str, trial: bool) -> None:
        circuit = self._counted(kind, trial)
        if circuit is not None:
            circuit.failed(self._clock.now())
            self.doubted = True
            self._note(kind)

    def inconclusive(self, kind: str, trial: bool) -> None:
        """A run ended without success or failure: another trial may begin."""
        circuit = self._counted(kind, trial)
        if circuit is not None:
            circuit.abandoned(self._clock.now())

    def _counted(self, kind: str, trial: bool) -> Circuit | None:
        circuit = self._circuits.get(kind)
        return circuit if circuit is not None and (trial or self.closed(kind)) else None

    def _note(self, kind: str) -> None:
        state = self._circuits[kind].state(self._clock.now())
        if state != self._states[kind]:
            self._states[kind] = state
            self._on_change(kind, state)
