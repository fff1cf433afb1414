"""The sections of the settings: their fields, and the limits of each number.

A field of type `Strategy` is a polling table; an alias with a dot puts a field into a table within.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.freshness import Freshness
from pollwise.runtime.jobs import MAX_LEASE
from pollwise.settings.groups import GroupPolling
from pollwise.settings.values import Maybe, Number, QueueUrl, Span, Text, Truth, Whole, Word

# The worker checks its options by the same limits; a test keeps the two alike.
MAX_CONCURRENCY = 1000
MAX_PREFETCH = 1000
MIN_LEASE = 0.1
MAX_GRACE = 86400.0
MIN_TIMEOUT = 0.001
MAX_TIMEOUT = 7 * 86400.0
MAX_LONG_INTERVAL = 3600.0
MAX_KEYS = 1000
MAX_PER_KEY = 1000
MAX_PORT = 65535
MAX_POLLS = 10_000
MIN_FLEET_LEASE = 1.0
MAX_DEPTH = 10_000_000
MAX_FAILURES = 1_000_000


LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json")

# Fields of several sections. No base class has them: its fields would come before all others.
ClaimLease = Annotated[
    float,
    Span(MIN_LEASE, MAX_LEASE),
    Field(description="How long a claim holds without renewal."),
]
HandlerTimeout = Annotated[
    float | None,
    Maybe(Span(MIN_TIMEOUT, MAX_TIMEOUT)),
    Field(description="How long a handler may run, unless it has a timeout of its own."),
]
LongCeiling = Annotated[
    float,
    Span(MIN_TIMEOUT, MAX_LONG_INTERVAL),
    Field(
        description="The longest pause while it is proven that hints arrive; "
        "else the strategy's own max_interval holds."
    ),
]
MetricsPort = Annotated[
    int | None,
    Maybe(Whole(0, MAX_PORT)),
    Field(description="Where metrics are served; 0 takes any free port, none serves none."),
]
MetricsHost = Annotated[str, Text(), Field(description="The address that metrics are served at.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error", "critical"],
    Word(LOG_LEVELS),
    Field(description="The least severe log lines that are written."),
]
LogFormat = Annotated[
    Literal["text", "json"], Word(LOG_FORMATS), Field(description="How log lines are written.")
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class WorkerSettings(Section):
    """`[worker]`: durations are seconds here, whatever they were written as."""

    # Not in the repr, which ends in logs: a URL may hold a password.
    queue: Annotated[str | None, Maybe(QueueUrl())] = Field(
        default=None, repr=False, description="The queue to take jobs from."
    )
    concurrency: Annotated[int, Whole(1, MAX_CONCURRENCY)] = Field(
        default=8, description="How many handlers run at a time."
    )
    prefetch: Annotated[int | None, Maybe(Whole(0, MAX_PREFETCH))] = Field(
        default=None,
        description="How many jobs are claimed ahead of a free handler; "
        "none claims what handlers finish in 100 ms, at most 256.",
    )
    lease: ClaimLease = 60.0
    grace: Annotated[float, Span(0.0, MAX_GRACE)] = Field(
        default=30.0,
        description="How long a stop waits for handlers before it gives their jobs back.",
    )
    timeout: HandlerTimeout = None
    long_interval: LongCeiling = 60.0
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling: Strategy = Field(
        default_factory=Adaptive, description="The strategy that paces the polls."
    )


class FleetSettings(Section):
    """`[fleet]`: how a fleet runs; durations are seconds here, whatever they were written as."""

    model_config = ConfigDict(populate_by_name=True)

    file: Annotated[str, Text()] = Field(
        default="fleet.toml", description="The file that lists the targets."
    )
    store: Annotated[str | None, Maybe(QueueUrl("fleet", "sqlite:///fleet.db"))] = Field(
        default=None,
        repr=False,
        description="Where state is kept; none keeps it while the process runs.",
    )
    concurrency: Annotated[int, Whole(1, MAX_POLLS)] = Field(
        default=64, description="How many polls are under way at a time."
    )
    per_host: Annotated[int | None, Maybe(Whole(1, MAX_POLLS))] = Field(
        default=4, description="How many of them may ask one host; none for no limit."
    )
    budget: Annotated[float | None, Maybe(Number())] = Field(
        default=None,
        description="Polls a second over all targets and nodes, shared out by how often readings "
        "change; none lets each target go at its own pace.",
    )
    lease: Annotated[float, Span(MIN_FLEET_LEASE, MAX_LEASE)] = Field(
        default=30.0,
        description="Where nodes share a fleet: after how long the targets of a killed node go "
        "to others.",
    )
    grace: Annotated[float, Span(0.0, MAX_GRACE)] = Field(
        default=10.0, description="How long a stop waits for polls under way."
    )
    dead_after: Annotated[int, Whole(1, MAX_FAILURES)] = Field(
        default=5,
        description="So many transient failures in a row make a target a dead letter, unless it "
        "has its own `dead_after`: five take some 100 seconds.",
    )
    recheck: Annotated[float, Span(1.0, 86400.0)] = Field(
        default=1800.0, description="How often a dead letter is polled all the same."
    )
    max_due: Annotated[int, Whole(0, MAX_DEPTH)] = Field(
        default=50,
        description="The goal of `pollwise fleet check`: so many polls are due and not begun.",
    )
    max_dead: Annotated[int, Whole(0, MAX_DEPTH)] = Field(
        default=0,
        description="The goal of `pollwise fleet check`: so many targets are dead letters; paused "
        "ones do not count.",
    )
    max_staleness: Annotated[float | None, Maybe(Span(0.0, None))] = Field(
        default=None,
        description="The goal of `pollwise fleet check`: the last success of a target is no older; "
        "none allows each twice its interval and its timeout.",
    )
    api_port: Annotated[int | None, Maybe(Whole(0, MAX_PORT))] = Field(
        default=None,
        description="Where the HTTP API is served; 0 takes any free port, none serves none.",
    )
    api_host: Annotated[str, Text()] = Field(
        default="127.0.0.1", description="The address that the API is served at."
    )
    api_token_file: Annotated[str, Text()] = Field(
        default="fleet-token.hash",
        description="The file with the hash of the token that the API asks for; made, and the "
        "token told, when it is missing.",
    )
    api_tokens: Annotated[str | None, Maybe(Text())] = Field(
        default=None,
        description="The store of a controller, sqlite:///farm.db: its tokens are let in instead, "
        "those with the scope submit to look, admins to give orders.",
    )
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling_enabled: Annotated[bool, Truth()] = Field(
        default=True,
        alias="polling.enabled",
        description="Off, every target is polled at its base interval exactly.",
    )
    polling: Strategy = Field(
        default_factory=Freshness, description="The strategy that paces the polls."
    )
    groups: Mapping[str, GroupPolling] = Field(
        default_factory=lambda: MappingProxyType({}), description="Polling of groups of targets."
    )


class OutboxSettings(Section):
    """`[outbox]`: how a relay runs; durations are seconds here, whatever they were written as."""

    database: Annotated[str | None, Maybe(QueueUrl("outbox", "sqlite:///shop.db"))] = Field(
        default=None, repr=False, description="The database that the outbox is in."
    )
    batch: Annotated[int, Whole(1, MAX_KEYS)] = Field(
        default=100,
        description="How many keys a poll claims at the most; what strategies take for full.",
    )
    records_per_key: Annotated[int, Whole(1, MAX_PER_KEY)] = Field(
        default=20, description="How many records of a key are claimed together at the most."
    )
    concurrency: Annotated[int, Whole(1, MAX_CONCURRENCY)] = Field(
        default=64, description="How many keys are handled at a time."
    )
    lease: ClaimLease = 30.0
    grace: Annotated[float, Span(0.0, MAX_GRACE)] = Field(
        default=30.0,
        description="How long a stop waits for handlers before it gives their keys back.",
    )
    timeout: HandlerTimeout = None
    long_interval: LongCeiling = 60.0
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling: Strategy = Field(
        default_factory=BatchFill, description="The strategy that paces the polls."
    )


class ControllerSettings(Section):
    """`[controller]`: what `pollwise serve` goes by; durations are seconds here."""

    # Not in the repr, which ends in logs: a URL may hold a password.
    queue: Annotated[str | None, Maybe(QueueUrl())] = Field(
        default=None, repr=False, description="The store of the controller's jobs."
    )
    host: Annotated[str, Text()] = Field(
        default="127.0.0.1", description="The address it listens at."
    )
    port: Annotated[int, Whole(0, MAX_PORT)] = Field(
        default=8420, description="The port it listens at; 0 takes any that is free."
    )
    heartbeat_timeout: Annotated[float, Span(1.0, 86400.0)] = Field(
        default=120.0,
        description="A worker that is silent for so long is offline, and its jobs go to others.",
    )
    min_interval: Annotated[float, Span(0.0, 3600.0)] = Field(
        default=5.0, description="The least time between two polls of a worker that found nothing."
    )
    poll_interval: Annotated[float, Span(0.1, 3600.0)] = Field(
        default=30.0, description="How often agents poll that heed no suggestion."
    )
    max_interval: Annotated[float, Span(0.1, 3600.0)] = Field(
        default=120.0, description="The longest interval that agents are told."
    )
    target_pickup: Annotated[float, Span(0.01, 3600.0)] = Field(
        default=5.0, description="How soon the workers as a whole shall look for a new job."
    )
    empty_for: Annotated[float, Span(0.0, 60.0)] = Field(
        default=1.0, description="How long a poll that found nothing answers for the next ones."
    )
    attempts: Annotated[int, Whole(1, 100)] = Field(
        default=3, description="How often a job is tried, unless it says so itself."
    )
    registered_for: Annotated[float, Span(60.0, 3650 * 86400.0)] = Field(
        default=30 * 86400.0, description="How long the token of a registered worker holds."
    )
    keep: Annotated[float, Span(60.0, 3650 * 86400.0)] = Field(
        default=7 * 86400.0,
        description="How long finished jobs are kept, with their logs and artefacts.",
    )
    body_limit: Annotated[int, Whole(1024, 64 * 1024 * 1024)] = Field(
        default=1024 * 1024, description="The largest JSON body, in bytes."
    )
    artefacts: Annotated[str | None, Maybe(Text())] = Field(
        default=None,
        description="Where artefacts, inputs and logs lie: a folder, or the URL of a bucket; "
        "none takes a folder beside the database.",
    )
    artefact_limit: Annotated[int, Whole(0, 1024**4)] = Field(
        default=1024**3, description="The largest artefact or input, in bytes."
    )
    log_limit: Annotated[int, Whole(1024, 1024**4)] = Field(
        default=64 * 1024 * 1024, description="The longest log of a job, in bytes."
    )
    queues: Annotated[str | None, Maybe(Text())] = Field(
        default=None,
        description="Queues that more than admins may use over HTTP, by scope; with commas.",
    )
    state: Annotated[str | None, Maybe(QueueUrl())] = Field(
        default=None, repr=False, description="The database of its state; none takes the store."
    )
    trusted_proxies: Annotated[str | None, Maybe(Text())] = Field(
        default=None,
        description="Addresses or networks whose forwarded headers are believed, with commas.",
    )
    tls_cert: Annotated[str | None, Maybe(Text())] = Field(
        default=None, description="The file of the TLS certificate, with its chain."
    )
    tls_key: Annotated[str | None, Maybe(Text())] = Field(
        default=None, description="The file of the certificate's private key."
    )
    metrics_open: Annotated[bool, Truth()] = Field(
        default=False, description="Whether /metrics needs no token."
    )
    access_log: Annotated[bool, Truth()] = Field(
        default=False, description="Whether each request is logged, without its query."
    )
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class AgentSettings(Section):
    """`[agent]`: what `pollwise agent` goes by; durations are seconds here."""

    controller: Annotated[str | None, Maybe(Text())] = Field(
        default=None, description="The address of the controller."
    )
    token_file: Annotated[str | None, Maybe(Text())] = Field(
        default=None, description="The file that holds a token with the scope worker."
    )
    ca_file: Annotated[str | None, Maybe(Text())] = Field(
        default=None,
        description="Certificates to trust besides those that everybody does, in PEM.",
    )
    name: Annotated[str | None, Maybe(Text())] = Field(
        default=None, description="What people see the agent by; none takes the host's name."
    )
    slots: Annotated[int, Whole(1, MAX_CONCURRENCY)] = Field(
        default=1, description="How many jobs run at a time."
    )
    poll_interval: Annotated[float, Span(0.1, 3600.0)] = Field(
        default=30.0, description="How often to poll where the controller suggests nothing."
    )
    max_interval: Annotated[float, Span(0.1, 3600.0)] = Field(
        default=120.0, description="The longest interval of an idle agent, where nothing is said."
    )
    timeout: Annotated[float | None, Maybe(Span(MIN_TIMEOUT, MAX_TIMEOUT))] = Field(
        default=None, description="How long a command may run, unless its job says less."
    )
    grace: Annotated[float, Span(0.0, MAX_GRACE)] = Field(
        default=30.0,
        description="How long a stop waits for commands before it gives their jobs back.",
    )
    kill_after: Annotated[float, Span(0.0, 3600.0)] = Field(
        default=10.0, description="How long a command may take to end after SIGTERM."
    )
    folder: Annotated[str | None, Maybe(Text())] = Field(
        default=None,
        description="Where jobs have their folders; none takes one in the user's state folder.",
    )
    push: Annotated[bool, Truth()] = Field(
        default=True, description="Whether to open a WebSocket for hints."
    )
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
