"""What a replay is asked and what it answers; shared by the replays, the reports and the tuner."""

from __future__ import annotations

from dataclasses import dataclass, field

from pollwise.lab.needs import NDArray, np

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """Arrivals in seconds since the trace begins, in order.

    span: how long the trace is; it may end in silence after the last arrival.
    """

    name: str
    arrivals: Seconds
    span: float

    @property
    def rate(self) -> float:
        """Arrivals a second."""
        return len(self.arrivals) / self.span if self.span > 0 else 0.0


@dataclass(frozen=True)
class Situation:
    """What is polled, and how: the plain case unless said otherwise.

    capacity: the most items a poll can find; None for no limit.
    drain: a full poll is followed by another at once.
    hold: the source can hold a poll: a strategy's `hold` is honoured, else it is an error.
    workers: pollers that race for the same items, each with a pacer of its own.
    handler_time: seconds an item keeps one of a worker's `concurrency` places.
    concurrency: places of a worker; None for no limit.
    hints: an arrival ends the pause of a poller.
    poll_latency: seconds from the start of a poll to its answer.
    failure_share: the share of polls that fail, drawn from the seed.
    timestamps: the pacer is told how long each item waited.
    jitter: draw jitter and the spread of the first poll as the real loop does; off in comparisons.
    """

    capacity: int | None = None
    drain: bool = True
    hold: bool = False
    workers: int = 1
    handler_time: float = 0.0
    concurrency: int | None = None
    hints: bool = False
    poll_latency: float = 0.0
    failure_share: float = 0.0
    timestamps: bool = True
    jitter: bool = False


@dataclass(frozen=True)
class Replay:
    """What a strategy did with a trace.

    waits: how long each item waited until a poll found it, in the order of their arrival.
    poll_times: when each poll began; None where nobody asked for it.
    requests: polls by what they asked the source for: "poll", "held poll", …
    """

    strategy: str
    trace: str
    span: float
    polls: int
    empty: int
    failed: int
    found: int
    waits: Seconds
    poll_times: Seconds | None = None
    requests: dict[str, int] = field(default_factory=dict)

    @property
    def mean_wait(self) -> float:
        return float(self.waits.mean()) if len(self.waits) else 0.0

    def wait(self, share: float) -> float:
        """The wait that `share` of the items do not exceed."""
        return (
            float(np.quantile(self.waits, share, method="inverted_cdf")) if len(self.waits) else 0.0
        )

    @property
    def polls_an_hour(self) -> float:
        return self.polls / self.span * 3600 if self.span > 0 else 0.0

    def cost(self, poll_cost: float, wait_cost: float) -> float:
        """Polls and waiting in one currency; `wait_cost` is for an item and a second."""
        return self.polls * poll_cost + float(self.waits.sum()) * wait_cost
