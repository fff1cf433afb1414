"""The options of a controller, each with a default and a limit."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pollwise.controller.state.base import ControllerState
from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.runtime.jobs import checked_name

#: The most attempts a job may ask for.
ATTEMPTS_MAX = 100
#: The longest time that a poll may be held, in seconds: most proxies cut longer answers.
WAIT_MAX = 60.0

#: How often an idle worker polls by default, in seconds; less often in a large group.
POLL_INTERVAL = 30.0
#: The polls of a group of idle workers together need not come more often than this, in seconds.
TARGET_PICKUP = 5.0
#: The longest suggested interval, as a fraction of the heartbeat timeout: with delayed requests and
#: writes, an agent that keeps to it must not look silent.
INTERVAL_SHARE = 0.75

#: How long a failed job waits for its next attempt by default.
RETRY = Retry.exponential("5s", max_delay="10m", attempts=None)

_SPANS = {
    # name: (minimum, maximum) in seconds
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
class ServerOptions:
    """Where and how a server listens; see `ControllerOptions`."""

    host: str = "127.0.0.1"
    port: int = 8420
    tls_cert: str | None = None
    tls_key: str | None = None
    trusted_proxies: Sequence[str] | str | None = ()
    access_log: bool = False

    def __post_init__(self) -> None:
        _check_count("port", self.port, 0, 65535)
        proxies = tuple(map(_network, _listed(self.trusted_proxies)))
        object.__setattr__(self, "trusted_proxies", proxies)
        self._check_tls()

    def _check_tls(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise ConfigError(f"TLS needs a certificate and its key; {missing} is missing")
        for name, file in (("tls_cert", self.tls_cert), ("tls_key", self.tls_key)):
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"{name} = {file!r}: there is no such file")


@dataclass(frozen=True)
class ControllerOptions(ServerOptions):
    """How a controller behaves. Durations are seconds, or text such as "2m".

    host, port: where `run` listens; port 0 takes any free port.
    tls_cert, tls_key: the files of a TLS certificate, with its chain, and of its private key.
    trusted_proxies: addresses or networks whose forwarded headers are believed, as a list, or as
        text with commas.
    access_log: log each request.
    signals: stop on SIGTERM, SIGINT and SIGHUP (in the main thread), unless the program handles
        them itself; a second one ends the wait.
    state: where workers, tokens and the audit log are stored; by default beside the queue.
    artefacts: a folder, or the URL of a bucket; by default a folder beside the database.
    heartbeat_timeout: a worker that is silent for this long is offline, and its jobs go to others.
    min_interval: the minimum time between two polls of a worker: always after a poll that found
        nothing, on average after others.
    poll_interval: the suggested interval of an idle worker without a WebSocket; by default 30
        seconds, and longer in a large group.
    target_pickup: the workers of a group together need not poll more often than this: in a large
        group it makes the suggested interval longer. By default 5 seconds; without effect if
        poll_interval is given and target_pickup is not.
    max_interval: the longest suggested interval; it is never above 3/4 of heartbeat_timeout.
    max_wait: the longest time that a poll is held (`wait=`).
    empty_for: how long a claim that found nothing answers the next polls for the same kinds.
    attempts: how often a job is tried, unless the job says otherwise.
    retry: how long a failed job waits for its next attempt.
    registered_for: how long the token of a registered worker is valid.
    keep: how long finished jobs are kept, with their logs and artefacts. In other queues of the
        store, remote workers delete no finished job earlier, unless it was to be kept for less.
    idle_ping: a WebSocket is pinged after about this time without a message.
    body_limit: the largest JSON body, in bytes.
    artefact_limit, inputs_max: the largest artefact or input, in bytes; the most inputs of a job.
    log_limit: the longest log of a job, in bytes.
    followers_max: the most logs that are followed at a time.
    waiting_max: the most polls that are held, and the most WebSockets open, at a time.
    queues: the queues of the store that tokens other than an admin's may use over HTTP
        (`/api/queue`), as a list, or as text with commas.
    metrics_open: serve /metrics without a token.
    """

    signals: bool = True
    state: ControllerState | str | None = None
    artefacts: str | Path | None = None
    heartbeat_timeout: Duration = 120.0
    min_interval: Duration = 5.0
    poll_interval: Duration | None = None
    max_interval: Duration = 120.0
    target_pickup: Duration | None = None
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
            given = getattr(self, name)
            if given is None and name in ("poll_interval", "target_pickup"):
                continue
            length = seconds(given, name)
            if not low <= length <= high:
                raise ConfigError(f"{name} = {length:g} s must be from {low:g} s to {high:g} s")
            object.__setattr__(self, name, length)
        for name, (low, high) in _COUNTS.items():
            _check_count(name, getattr(self, name), low, high)
        if self.span("min_interval") > self.span("max_interval"):
            raise ConfigError(
                f"min_interval = {self.min_interval} s is above max_interval = "
                f"{self.max_interval} s; lower it"
            )
        self._check_poll_interval()
        queues = (checked_name(each, "queues", ConfigError) for each in _listed(self.queues))
        object.__setattr__(self, "queues", tuple(queues))
        super().__post_init__()

    def span(self, name: str) -> float:
        """A duration, in seconds."""
        return float(getattr(self, name))

    @property
    def longest_interval(self) -> float:
        """The longest interval that is suggested to a worker, in seconds."""
        longest = min(self.span("max_interval"), INTERVAL_SHARE * self.span("heartbeat_timeout"))
        return max(longest, self.span("min_interval"))

    @property
    def base_interval(self) -> float:
        """The interval that is suggested to a worker in a small group, in seconds."""
        if self.poll_interval is not None:
            return self.span("poll_interval")
        return min(max(POLL_INTERVAL, self.span("min_interval")), self.longest_interval)

    @property
    def group_pickup(self) -> float:
        """The shortest time between two polls of a group of workers, in seconds; 0 for any."""
        if self.target_pickup is not None:
            return self.span("target_pickup")
        return TARGET_PICKUP if self.poll_interval is None else 0.0

    def _check_poll_interval(self) -> None:
        """Raise `ConfigError` if the controller could not suggest the given interval."""
        if self.poll_interval is None:
            return
        interval, least = self.span("poll_interval"), self.span("min_interval")
        most, timeout = self.span("max_interval"), self.span("heartbeat_timeout")
        if interval < least:
            raise ConfigError(
                f"poll_interval = {interval:g} s is below min_interval = {least:g} s, and faster "
                "polls are refused; raise it, or lower min_interval, too"
            )
        if interval > most:
            raise ConfigError(
                f"poll_interval = {interval:g} s is above max_interval = {most:g} s; lower it, or "
                "raise max_interval, too"
            )
        if interval > INTERVAL_SHARE * timeout and interval > least:
            raise ConfigError(
                f"poll_interval = {interval:g} s is above {INTERVAL_SHARE:g} of "
                f"heartbeat_timeout = {timeout:g} s, so idle workers would look offline; lower it, "
                f"or raise heartbeat_timeout to {interval / INTERVAL_SHARE:g} s or more"
            )


def _check_count(name: str, count: Any, low: int, high: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not low <= count <= high:
        raise ConfigError(f"{name} = {count!r} must be a whole number from {low} to {high}")


def _listed(names: Sequence[str] | str | None) -> Iterable[str]:
    given = names.split(",") if isinstance(names, str) else names or ()
    return (each.strip() for each in given if each.strip())


def _network(text: str) -> str:
    """An address or network, checked: a wrong one would trust too many proxies, or too few."""
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ConfigError(
            f"trusted_proxies has {text!r}, which is not an address or network; write 10.0.0.1 or "
            "10.0.0.0/8"
        ) from None


#: The names of all options.
NAMES = tuple(field.name for field in fields(ControllerOptions))
