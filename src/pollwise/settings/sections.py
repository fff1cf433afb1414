"""The sections of the settings: their fields, and the limits of each number.

A field of type `Strategy` is a polling table. An alias with a dot puts a field into a nested table.
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
from pollwise.settings.values import (
    BooleanReader,
    ChoiceReader,
    DurationReader,
    IntegerReader,
    NumberReader,
    OptionalReader,
    TextReader,
    UrlReader,
)

# The worker checks its options with the same limits; a test compares the two.
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

# Fields of several sections. In a base class, they would come before all other fields.
ClaimLease = Annotated[
    float,
    DurationReader(MIN_LEASE, MAX_LEASE),
    Field(description="How long a claim lasts without renewal."),
]
HandlerTimeout = Annotated[
    float | None,
    OptionalReader(DurationReader(MIN_TIMEOUT, MAX_TIMEOUT)),
    Field(description="How long a handler may run, unless it has a timeout of its own."),
]
LongInterval = Annotated[
    float,
    DurationReader(MIN_TIMEOUT, MAX_LONG_INTERVAL),
    Field(description="The longest pause while hints are proven; otherwise max_interval applies."),
]
MetricsPort = Annotated[
    int | None,
    OptionalReader(IntegerReader(0, MAX_PORT)),
    Field(description="The port that serves metrics; 0 takes any free port, none serves none."),
]
MetricsHost = Annotated[str, TextReader(), Field(description="The address that serves metrics.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error", "critical"],
    ChoiceReader(LOG_LEVELS),
    Field(description="The lowest level of log lines that are written."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    ChoiceReader(LOG_FORMATS),
    Field(description="The format of log lines."),
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class WorkerSettings(Section):
    """`[worker]`: how a worker runs; durations are in seconds here."""

    # Not in the repr, which may be logged: a URL may hold a password.
    queue: Annotated[str | None, OptionalReader(UrlReader())] = Field(
        default=None, repr=False, description="The queue to take jobs from."
    )
    concurrency: Annotated[int, IntegerReader(1, MAX_CONCURRENCY)] = Field(
        default=8, description="How many handlers run at a time."
    )
    prefetch: Annotated[int | None, OptionalReader(IntegerReader(0, MAX_PREFETCH))] = Field(
        default=None,
        description="How many jobs are claimed ahead of a free handler; "
        "none claims as many as handlers finish in 100 ms, at most 256.",
    )
    lease: ClaimLease = 60.0
    grace: Annotated[float, DurationReader(0.0, MAX_GRACE)] = Field(
        default=30.0,
        description="How long a stop waits for handlers before it gives their jobs back.",
    )
    timeout: HandlerTimeout = None
    long_interval: LongInterval = 60.0
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling: Strategy = Field(
        default_factory=Adaptive, description="The strategy that paces the polls."
    )


class FleetSettings(Section):
    """`[fleet]`: how a fleet runs; durations are in seconds here."""

    model_config = ConfigDict(populate_by_name=True)

    file: Annotated[str, TextReader()] = Field(
        default="fleet.toml", description="The file that lists the targets."
    )
    store: Annotated[str | None, OptionalReader(UrlReader("fleet", "sqlite:///fleet.db"))] = Field(
        default=None,
        repr=False,
        description="Where state is stored; none keeps it only while the process runs.",
    )
    concurrency: Annotated[int, IntegerReader(1, MAX_POLLS)] = Field(
        default=64, description="How many polls run at a time."
    )
    per_host: Annotated[int | None, OptionalReader(IntegerReader(1, MAX_POLLS))] = Field(
        default=4, description="How many polls of one host run at a time; none for no limit."
    )
    budget: Annotated[float | None, OptionalReader(NumberReader())] = Field(
        default=None,
        description="Polls a second for all targets and nodes together, divided by how often "
        "readings change; none polls each target at its own pace.",
    )
    lease: Annotated[float, DurationReader(MIN_FLEET_LEASE, MAX_LEASE)] = Field(
        default=30.0,
        description="After how long other nodes take over the targets of a killed node.",
    )
    grace: Annotated[float, DurationReader(0.0, MAX_GRACE)] = Field(
        default=10.0, description="How long a stop waits for running polls."
    )
    dead_after: Annotated[int, IntegerReader(1, MAX_FAILURES)] = Field(
        default=5,
        description="A target is dead after this many transient failures in a row, unless it has "
        "its own `dead_after`; five take about 100 seconds.",
    )
    recheck: Annotated[float, DurationReader(1.0, 86400.0)] = Field(
        default=1800.0, description="How often a dead target is polled."
    )
    max_due: Annotated[int, IntegerReader(0, MAX_DEPTH)] = Field(
        default=50,
        description="`pollwise fleet check` fails if more polls than this are due and not started.",
    )
    max_dead: Annotated[int, IntegerReader(0, MAX_DEPTH)] = Field(
        default=0,
        description="`pollwise fleet check` fails if more targets than this are dead; paused "
        "targets do not count.",
    )
    max_staleness: Annotated[float | None, OptionalReader(DurationReader(0.0, None))] = Field(
        default=None,
        description="`pollwise fleet check` fails if a target's last success is older; none allows "
        "each target twice its interval plus its timeout.",
    )
    api_port: Annotated[int | None, OptionalReader(IntegerReader(0, MAX_PORT))] = Field(
        default=None,
        description="The port of the HTTP API; 0 takes any free port, none serves no API.",
    )
    api_host: Annotated[str, TextReader()] = Field(
        default="127.0.0.1", description="The address of the HTTP API."
    )
    api_token_file: Annotated[str, TextReader()] = Field(
        default="fleet-token.hash",
        description="The file with the hash of the API's token. If it is missing, it is created "
        "and the token is printed.",
    )
    api_tokens: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None,
        description="The store of a controller, such as sqlite:///farm.db, whose tokens are "
        "accepted instead: those with the scope read can read, those with operate can change.",
    )
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling_enabled: Annotated[bool, BooleanReader()] = Field(
        default=True,
        alias="polling.enabled",
        description="If false, every target is polled exactly at its base interval.",
    )
    polling: Strategy = Field(
        default_factory=Freshness, description="The strategy that paces the polls."
    )
    groups: Mapping[str, GroupPolling] = Field(
        default_factory=lambda: MappingProxyType({}), description="Polling of groups of targets."
    )


class OutboxSettings(Section):
    """`[outbox]`: how a relay runs; durations are in seconds here."""

    database: Annotated[str | None, OptionalReader(UrlReader("outbox", "sqlite:///shop.db"))] = (
        Field(default=None, repr=False, description="The database that holds the outbox.")
    )
    batch: Annotated[int, IntegerReader(1, MAX_KEYS)] = Field(
        default=100,
        description="How many keys a poll claims at most; strategies call that a full batch.",
    )
    records_per_key: Annotated[int, IntegerReader(1, MAX_PER_KEY)] = Field(
        default=20, description="How many records of a key are claimed together at most."
    )
    concurrency: Annotated[int, IntegerReader(1, MAX_CONCURRENCY)] = Field(
        default=64, description="How many keys are handled at a time."
    )
    lease: ClaimLease = 30.0
    grace: Annotated[float, DurationReader(0.0, MAX_GRACE)] = Field(
        default=30.0,
        description="How long a stop waits for handlers before it gives their keys back.",
    )
    timeout: HandlerTimeout = None
    long_interval: LongInterval = 60.0
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling: Strategy = Field(
        default_factory=BatchFill, description="The strategy that paces the polls."
    )


class ControllerSettings(Section):
    """`[controller]`: how `pollwise serve` runs; durations are in seconds here."""

    # Not in the repr, which may be logged: a URL may hold a password.
    queue: Annotated[str | None, OptionalReader(UrlReader())] = Field(
        default=None, repr=False, description="The queue of the controller's jobs."
    )
    host: Annotated[str, TextReader()] = Field(
        default="127.0.0.1", description="The address it listens at."
    )
    port: Annotated[int, IntegerReader(0, MAX_PORT)] = Field(
        default=8420, description="The port it listens at; 0 takes any free port."
    )
    heartbeat_timeout: Annotated[float, DurationReader(1.0, 86400.0)] = Field(
        default=120.0,
        description="A worker that is silent for this long is offline, and its jobs go to others.",
    )
    min_interval: Annotated[float, DurationReader(0.0, 3600.0)] = Field(
        default=5.0,
        description="The shortest time between two polls of a worker that found nothing.",
    )
    poll_interval: Annotated[float, DurationReader(0.1, 3600.0)] = Field(
        default=30.0, description="How often agents poll if they ignore suggestions."
    )
    max_interval: Annotated[float, DurationReader(0.1, 3600.0)] = Field(
        default=120.0, description="The longest interval that the controller suggests."
    )
    target_pickup: Annotated[float, DurationReader(0.01, 3600.0)] = Field(
        default=5.0, description="How soon one of the workers should poll after a new job."
    )
    empty_for: Annotated[float, DurationReader(0.0, 60.0)] = Field(
        default=1.0, description="How long an empty answer is reused for further polls."
    )
    attempts: Annotated[int, IntegerReader(1, 100)] = Field(
        default=3, description="How often a job is tried, unless the job has its own number."
    )
    registered_for: Annotated[float, DurationReader(60.0, 3650 * 86400.0)] = Field(
        default=30 * 86400.0, description="How long the token of a registered worker is valid."
    )
    keep: Annotated[float, DurationReader(60.0, 3650 * 86400.0)] = Field(
        default=7 * 86400.0,
        description="How long finished jobs are kept, with their logs and artefacts.",
    )
    body_limit: Annotated[int, IntegerReader(1024, 64 * 1024 * 1024)] = Field(
        default=1024 * 1024, description="The largest JSON body, in bytes."
    )
    artefacts: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None,
        description="Where artefacts, inputs and logs are stored: a folder, or the URL of a "
        "bucket; none takes a folder beside the database.",
    )
    artefact_limit: Annotated[int, IntegerReader(0, 1024**4)] = Field(
        default=1024**3, description="The largest artefact or input, in bytes."
    )
    log_limit: Annotated[int, IntegerReader(1024, 1024**4)] = Field(
        default=64 * 1024 * 1024, description="The longest log of a job, in bytes."
    )
    queues: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None,
        description="Queues that tokens other than admin may use over HTTP, separated by commas.",
    )
    state: Annotated[str | None, OptionalReader(UrlReader())] = Field(
        default=None,
        repr=False,
        description="The database of the controller's state; none takes its queue.",
    )
    trusted_proxies: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None,
        description="Addresses or networks whose forwarded headers are trusted, with commas.",
    )
    tls_cert: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None, description="The file of the TLS certificate, with its chain."
    )
    tls_key: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None, description="The file of the certificate's private key."
    )
    metrics_open: Annotated[bool, BooleanReader()] = Field(
        default=False, description="Serve /metrics without a token."
    )
    access_log: Annotated[bool, BooleanReader()] = Field(
        default=False, description="Log each request, without its query."
    )
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class AgentSettings(Section):
    """`[agent]`: how `pollwise agent` runs; durations are in seconds here."""

    controller: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None, description="The address of the controller."
    )
    token_file: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None, description="The file with a token of scope worker."
    )
    ca_file: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None,
        description="More certificates to trust, in PEM.",
    )
    name: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None, description="The agent's name; none takes the host's name."
    )
    slots: Annotated[int, IntegerReader(1, MAX_CONCURRENCY)] = Field(
        default=1, description="How many jobs run at a time."
    )
    poll_interval: Annotated[float, DurationReader(0.1, 3600.0)] = Field(
        default=30.0, description="How often to poll if the controller suggests nothing."
    )
    max_interval: Annotated[float, DurationReader(0.1, 3600.0)] = Field(
        default=120.0,
        description="The longest interval of an idle agent if the controller suggests nothing.",
    )
    timeout: Annotated[float | None, OptionalReader(DurationReader(MIN_TIMEOUT, MAX_TIMEOUT))] = (
        Field(
            default=None,
            description="How long a command may run, unless its job has a shorter limit.",
        )
    )
    grace: Annotated[float, DurationReader(0.0, MAX_GRACE)] = Field(
        default=30.0,
        description="How long a stop waits for commands before it gives their jobs back.",
    )
    kill_after: Annotated[float, DurationReader(0.0, 3600.0)] = Field(
        default=10.0, description="How long a command may take to end after SIGTERM."
    )
    folder: Annotated[str | None, OptionalReader(TextReader())] = Field(
        default=None,
        description="The folder for the jobs' folders; none takes one in the user's state folder.",
    )
    push: Annotated[bool, BooleanReader()] = Field(
        default=True, description="Open a WebSocket for hints."
    )
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
