"""The running state of one target. A fleet may have a million of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pollwise.core.strategies.base import Pacer, Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import FreshnessPacer, staleness_score
from pollwise.errors import PollwiseError, ProbeError
from pollwise.fleet.probes import host_of, make_probe

if TYPE_CHECKING:
    from pollwise.alerts.lifecycle import RuleState
    from pollwise.core.shares import Share
    from pollwise.fleet.history.tracker import TargetTracker
    from pollwise.fleet.locations.values import SeenFrom
    from pollwise.fleet.targets import Probe, ProbeContext, Reading, Target

#: Where a target is. It is in one place at a time, so it always has one next poll.
AGENDA: Final = 0  # on the agenda, or parked: paused, or held by another node
WAITING: Final = 1  # due, but its host is busy, or a removed target of its name is still polled
FLIGHT: Final = 2  # being polled
GONE: Final = 3  # removed; the result of a poll in progress is dropped


async def unmade(target: Target, context: ProbeContext) -> Any:
    """Stands for the probe of a target until its first poll here."""
    raise ProbeError("its probe was not made")


class RunningTarget:
    """A target and its running state. Times are of the event loop's clock."""

    __slots__ = (
        "alerts", "changed_at", "dead", "down_since", "due", "error", "failed_at", "failing_since",
        "failures", "grid", "history", "host", "interval", "pacer", "paused", "permanent", "place",
        "polled_at", "probe", "reading", "recent", "seen_from", "share", "strategy",
        "succeeded_at", "target", "token", "until", "within",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        probe: Probe,
        host: str | None,
        strategy: Strategy,
        within: float = math.inf,
    ) -> None:
        self.target: Target = target
        #: `unmade` before its first poll, if its definition was checked when it was read.
        self.probe: Probe = probe
        self.host: str | None = host
        self.strategy: Strategy = strategy
        #: Maximum seconds from the end of a poll to the next one, also while it fails or is dead.
        self.within: float = within
        #: None for a fixed interval, which needs no pacer.
        self.pacer: Pacer | None = None if isinstance(strategy, Fixed) else strategy.pacer()
        self.share: Share | None = None
        self.due: float = math.inf
        #: A point of the grid of a fixed interval.
        self.grid: float | None = None
        self.interval: float = strategy.min_interval
        self.failures: int = 0
        #: When the failures in a row began; and the same once they are confirmed: the target is
        #: down. None after a success.
        self.failing_since: float | None = None
        self.down_since: float | None = None
        self.dead: bool = False
        self.permanent: bool = False
        self.paused: bool = False
        self.place: int = GONE
        self.reading: Reading | None = None
        #: The last readings, packed: see `pollwise.fleet.recent`.
        self.recent: bytes = b""
        #: Its periods and roll-ups; None before the first poll, or if no store keeps them.
        self.history: TargetTracker | None = None
        #: What other locations saw; None if it is not confirmed from several.
        self.seen_from: SeenFrom | None = None
        #: Where its rules stand, by their keys; only those whose condition holds.
        self.alerts: dict[str, RuleState] | None = None
        self.polled_at: float | None = None
        self.succeeded_at: float | None = None
        self.failed_at: float | None = None
        self.changed_at: float | None = None
        self.error: str | None = None
        #: With several nodes: until when this node holds it, and the token of its claim.
        self.until: float = math.inf
        self.token: int | None = None

    def ensure_probe(self) -> None:
        """Make its probe for its first poll."""
        if self.probe is unmade:
            self._make_probe()

    def _make_probe(self) -> None:
        """Make its probe. A definition was checked when it was read; if its probe cannot be made
        any more (a file is gone, say), its polls fail until it can."""
        try:
            self.probe = make_probe(self.target)
        except (PollwiseError, ImportError) as error:
            said = str(error)

            async def failing(target: Target, context: ProbeContext) -> Any:
                self.probe = unmade
                raise ProbeError(said)

            self.probe = failing
        self.host = host_of(self.target, self.probe)

    @property
    def fixed(self) -> bool:
        return self.pacer is None

    @property
    def learner(self) -> FreshnessPacer | None:
        """Its pacer, if that learns how often the reading changes."""
        return self.pacer if isinstance(self.pacer, FreshnessPacer) else None

    def score(self, at: float) -> float:
        """How stale it is at `at`, from 0 to 1; see `staleness_score`."""
        since = self.succeeded_at
        return staleness_score(None if since is None else at - since, self.strategy.max_interval)

    def __repr__(self) -> str:
        return f"<{self.target.name} due {self.due:g}>"
