"""Everything about a controller that can be chosen, each with a default and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.jobs import checked_name

#: The most attempts a job may ask for.
ATTEMPTS_MAX = 100
#: The longest that a poll may be held, in seconds: most proxies cut an answer that takes longer.
WAIT_MAX = 60.0

#: How long a failed job waits for its next attempt, unless told otherwise.
RETRY = Retry.exponential("5s", max_delay="10m", attempts=None)

_SPANS = {
    # name: (least, most) seconds
    "heartbeat_timeout": (1.0, 86400.0),
    "min_interval": (0.0, 3600.0),
    "poll_interval": (0.1, 3600.0),
    "max_interval": (0.1, 3600.0),
    "target_pickup": (0.01, 3600.0),
    "max_wait": (0.0, WAIT_MAX),
    "empty_for": (0.0, 60.0),
    "registered_for": (60.0, 3650 * 86400.0),
    "keep": (60.0, 3650 * 86400.0),
    "idle_ping": (1.0, 3600.0),
}
_COUNTS = {
    "attempts": (1, ATTEMPTS_MAX),
    "body_limit": (1024, 64 * 1024 * 1024),
    "artefact_limit": (0, 1024**4),
    "inputs_max": (0, 1000),
    "log_limit": (1024, 1024**4),
    "followers_max": (0, 100_000),
    "waiting_max": (0, 1_000_000),
}


@dataclass(frozen=True)
class ControllerOptions:
    """How a controller behaves. Durations are seconds, or text such as "2m".

    heartbeat_timeout: a worker that is silent for so long is offline, and its jobs go to others.
    min_interval: the least time between two polls of a worker that found nothing.
    poll_interval: how often agents poll that heed no suggestion.
    target_pickup: the fleet as a whole shall look so often; what is suggested follows from it.
    max_interval: the longest interval that is suggested.
    max_wait: the longest that a poll is held (`wait=`).
    empty_for: how long a claim that found nothing stands for the next ones of the same kinds.
    attempts: how often a job is tried, unless it says so itself.
    retry: how long a failed job waits for its next attempt.
    registered_for: how long the token of a registered worker holds.
    keep: how long finished jobs are kept, with their logs and artefacts.
    body_limit: the largest JSON body, in bytes.
    artefact_limit, inputs_max: the largest artefact or input, in bytes; the most inputs of a job.
    log_limit: the longest log of a job, in bytes.
    followers_max: the most logs that are followed at a time.
    waiting_max: the most polls that are held, and the most WebSockets open, at a time.
    queues: the queues of the store that tokens with the scopes submit and worker may use over HTTP
        (`/api/queue`), as a list, or as text with commas; the others are for admins only.
    metrics_open: whether /metrics needs no token.
    """

    heartbeat_timeout: Duration = 120.0
    min_interval: Duration = 5.0
    poll_interval: Duration = 30.0
    max_interval: Duration = 120.0
    target_pickup: Duration = 5.0
    max_wait: Duration = WAIT_MAX
    empty_for: Duration = 1.0
    registered_for: Duration = 30 * 86400.0
    keep: Duration = 7 * 86400.0
    idle_ping: Duration = 20.0
    attempts: int = 3
    retry: Retry = RETRY
    body_limit: int = 1024 * 1024
    artefact_limit: int = 1024**3
    inputs_max: int = 20
    log_limit: int = 64 * 1024 * 1024
    followers_max: int = 200
    waiting_max: int = 20_000
    queues: Sequence[str] | str | None = ()
    metrics_open: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in _SPANS.items():
            length = seconds(getattr(self, name), name)
            if not low <= length <= high:
                raise ConfigError(f"{name} = {length:g} s must be from {low:g} s to {high:g} s")
            object.__setattr__(self, name, length)
        for name, (least, most) in _COUNTS.items():
            count: Any = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= most:
                raise ConfigError(
                    f"{name} = {count!r} must be a whole number from {least} to {most}"
                )
        if self.span("min_interval") > self.span("max_interval"):
            raise ConfigError(
                f"min_interval = {self.min_interval} s is above max_interval = "
                f"{self.max_interval} s; lower it"
            )
        names = self.queues.split(",") if isinstance(self.queues, str) else self.queues or ()
        stripped = (each.strip() for each in names)
        checked = tuple(checked_name(each, "queues", ConfigError) for each in stripped if each)
        object.__setattr__(self, "queues", checked)

    def span(self, name: str) -> float:
        """A duration, in seconds."""
        return float(getattr(self, name))


#: The names of all options.
NAMES = tuple(field.name for field in fields(ControllerOptions))
