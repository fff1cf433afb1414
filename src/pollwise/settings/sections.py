"""The sections of the settings: their fields, and the limits of each number.

A field of type `Strategy` is a polling table. An alias with a dot puts a field into a nested table.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.runtime.jobs import MAX_LEASE
from pollwise.settings.values import (
    BooleanReader,
    ChoiceReader,
    DurationReader,
    IntegerReader,
    ListReader,
    OptionalReader,
    PublishReader,
    TextReader,
    UrlReader,
)

T = TypeVar("T")

# The worker checks its options with the same limits; a test compares the two.
MAX_CONCURRENCY = 1000
MAX_PREFETCH = 1000
MAX_JOBS = 10**9
MIN_MEMORY = 1024**2
MAX_MEMORY = 1024**5
MIN_LEASE = 0.1
MAX_GRACE = 86400.0
MIN_TIMEOUT = 0.001
MAX_TIMEOUT = 7 * 86400.0
MAX_LONG_INTERVAL = 3600.0
MAX_KEYS = 1000
MAX_PER_KEY = 1000
MAX_PORT = 65535


LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json")
TRACE_CONTEXTS = ("link", "parent")
CODECS = ("zlib", "aes-gcm", "zlib+aes-gcm")

#: What pages hide of payloads. `*token` leaves counts such as `max_tokens` visible.
REDACTED = (
    "*password*", "*passwd*", "*passphrase*", "pwd", "*secret*", "*token", "*credential*",
    "*api_key*", "*access_key*", "*account_key*", "*private_key*", "*encryption_key*",
    "*authorization", "*cookie", "*signature", "session_id", "*card_number*", "cvc", "cvv",
)  # fmt: skip

Text = Annotated[str, TextReader()]
OptionalText = Annotated[str | None, OptionalReader(TextReader())]
YesOrNo = Annotated[bool, BooleanReader()]
Concurrency = Annotated[int, IntegerReader(1, MAX_CONCURRENCY)]
OptionalPort = Annotated[int | None, OptionalReader(IntegerReader(0, MAX_PORT))]
Interval = Annotated[float, DurationReader(0.1, 3600.0)]
Grace = Annotated[float, DurationReader(0.0, MAX_GRACE)]
OptionalTimeout = Annotated[float | None, OptionalReader(DurationReader(MIN_TIMEOUT, MAX_TIMEOUT))]
KeptFor = Annotated[float, DurationReader(60.0, 3650 * 86400.0)]

# Not in the repr, which may be logged: a URL may hold a password.
HIDDEN = Field(repr=False)
QueueUrl = Annotated[str | None, OptionalReader(UrlReader()), HIDDEN]
OutboxUrl = Annotated[str | None, OptionalReader(UrlReader("outbox", "sqlite:///shop.db")), HIDDEN]

QueueUrls = Annotated[tuple[str, ...], ListReader(UrlReader(), commas=False), HIDDEN]
FleetUrls = Annotated[
    tuple[str, ...], ListReader(UrlReader("fleet", "sqlite:///fleet.db"), commas=False), HIDDEN
]
OutboxUrls = Annotated[
    tuple[str, ...], ListReader(UrlReader("outbox", "sqlite:///shop.db"), commas=False), HIDDEN
]
Publish = Annotated[tuple[str, ...], ListReader(PublishReader(), commas=False), HIDDEN]

# Fields of several sections. In a base class, they would come before all other fields.
ClaimLease = Annotated[
    float,
    DurationReader(MIN_LEASE, MAX_LEASE),
    Field(description="How long a claim lasts without renewal."),
]
HandlerTimeout = Annotated[
    OptionalTimeout,
    Field(description="How long a handler may run, unless it has a timeout of its own."),
]
Drain = Annotated[
    bool | None,
    OptionalReader(BooleanReader()),
    Field(
        description="Poll again at once after a full batch; none: all strategies do, except fixed."
    ),
]
LongInterval = Annotated[
    float,
    DurationReader(MIN_TIMEOUT, MAX_LONG_INTERVAL),
    Field(description="The longest pause while hints are proven; otherwise max_interval applies."),
]
MaxMemory = Annotated[
    int | None,
    OptionalReader(IntegerReader(MIN_MEMORY, MAX_MEMORY)),
    Field(
        description="Replace the process when it uses more than this many bytes; none for no limit."
    ),
]
RecycleWhenFull = Annotated[
    YesOrNo,
    Field(description="Replace the process when threads that timed out occupy all places."),
]
TraceContext = Annotated[
    Literal["link", "parent"],
    ChoiceReader(TRACE_CONTEXTS),
    Field(description="How the span of a run refers to that of its put; parent for one trace."),
]
MetricsPort = Annotated[
    OptionalPort,
    Field(description="The port that serves metrics; 0 takes any free port, none serves none."),
]
MetricsHost = Annotated[Text, Field(description="The address that serves metrics.")]
HealthPort = Annotated[
    OptionalPort,
    Field(
        description="The port that serves /livez and /readyz; 0 takes any free port, none serves "
        "none."
    ),
]
HealthHost = Annotated[Text, Field(description="The address that serves /livez and /readyz.")]
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
PollingStrategy = Annotated[Strategy, Field(description="The strategy that paces the polls.")]


def setting(default: T, description: str) -> T:
    """A field of a section. For the type checker, a field has the type of its default."""
    return Field(default=default, description=description)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class WorkerSettings(Section):
    """`[worker]`: how a worker runs; durations are in seconds here."""

    queue: QueueUrl = setting(None, "The queue to take jobs from.")
    concurrency: Concurrency = setting(8, "How many handlers run at a time.")
    prefetch: Annotated[int | None, OptionalReader(IntegerReader(0, MAX_PREFETCH))] = setting(
        None,
        "How many jobs are claimed ahead of a free handler; "
        "none claims as many as handlers finish in 100 ms, at most 256.",
    )
    prefetch_bytes: Annotated[int, IntegerReader(0, MAX_MEMORY)] = setting(
        16 * 1024 * 1024,
        "How many bytes of payloads may wait for a free handler, about; 0 claims nothing ahead.",
    )
    lease: ClaimLease = 60.0
    grace: Grace = setting(
        30.0, "How long a stop waits for handlers before it gives their jobs back."
    )
    timeout: HandlerTimeout = None
    drain: Drain = None
    long_interval: LongInterval = 60.0
    max_jobs: Annotated[int | None, OptionalReader(IntegerReader(1, MAX_JOBS))] = setting(
        None, "Replace the process after this many runs of handlers; none for no limit."
    )
    max_memory: MaxMemory = None
    recycle_when_full: RecycleWhenFull = False
    cpu_processes: Annotated[int | None, OptionalReader(IntegerReader(1, MAX_CONCURRENCY))] = (
        setting(None, "How many processes run CPU-bound handlers; none for one of each CPU.")
    )
    export_queue: YesOrNo = setting(
        False, "Measure the queue every 15 seconds for metrics; one worker of a queue is enough."
    )
    trace_context: TraceContext = "link"
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    health_port: HealthPort = None
    health_host: HealthHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling: PollingStrategy = Field(default_factory=Adaptive)


class OutboxSettings(Section):
    """`[outbox]`: how a relay runs; durations are in seconds here."""

    database: OutboxUrl = setting(None, "The database that holds the outbox.")
    publish: Publish = setting((), "Which kinds of records are published, and where to.")
    batch: Annotated[int, IntegerReader(1, MAX_KEYS)] = setting(
        100, "How many keys a poll claims at most; strategies call that a full batch."
    )
    records_per_key: Annotated[int, IntegerReader(1, MAX_PER_KEY)] = setting(
        20, "How many records of a key are claimed together at most."
    )
    concurrency: Concurrency = setting(64, "How many keys are handled at a time.")
    lease: ClaimLease = 30.0
    grace: Grace = setting(
        30.0, "How long a stop waits for handlers before it gives their keys back."
    )
    timeout: HandlerTimeout = None
    drain: Drain = None
    long_interval: LongInterval = 60.0
    max_memory: MaxMemory = None
    recycle_when_full: RecycleWhenFull = False
    trace_context: TraceContext = "link"
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    health_port: HealthPort = None
    health_host: HealthHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling: PollingStrategy = Field(default_factory=BatchFill)


class ControllerSettings(Section):
    """`[controller]`: how `pollwise serve` runs; durations are in seconds here."""

    queue: QueueUrl = setting(None, "The queue of the controller's jobs.")
    host: Text = setting("127.0.0.1", "The address it listens at.")
    port: Annotated[int, IntegerReader(0, MAX_PORT)] = setting(
        8420, "The port it listens at; 0 takes any free port."
    )
    heartbeat_timeout: Annotated[float, DurationReader(1.0, 86400.0)] = setting(
        120.0, "A worker that is silent for this long is offline, and its jobs go to others."
    )
    min_interval: Annotated[float, DurationReader(0.0, 3600.0)] = setting(
        5.0, "The shortest time between two polls of a worker."
    )
    poll_interval: Annotated[float | None, OptionalReader(DurationReader(0.1, 3600.0))] = setting(
        None,
        "How often an idle worker without a WebSocket polls; none takes 30 s, and more in a large "
        "group.",
    )
    max_interval: Interval = setting(120.0, "The longest interval that the controller suggests.")
    target_pickup: Annotated[float | None, OptionalReader(DurationReader(0.01, 3600.0))] = setting(
        None,
        "A large group of idle workers together polls no more often than this; none takes 5 s, "
        "unless poll_interval is set.",
    )
    empty_for: Annotated[float, DurationReader(0.0, 60.0)] = setting(
        1.0, "How long an empty answer is reused for further polls."
    )
    attempts: Annotated[int, IntegerReader(1, 100)] = setting(
        3, "How often a job is tried, unless the job has its own number."
    )
    registered_for: KeptFor = setting(
        30 * 86400.0, "How long the token of a registered worker is valid."
    )
    keep: KeptFor = setting(
        7 * 86400.0, "How long finished jobs are kept, with their logs and artefacts."
    )
    body_limit: Annotated[int, IntegerReader(1024, 64 * 1024 * 1024)] = setting(
        1024 * 1024, "The largest JSON body, in bytes."
    )
    artefacts: OptionalText = setting(
        None,
        "Where artefacts, inputs and logs are stored: a folder, or the URL of a "
        "bucket; none takes a folder beside the database.",
    )
    artefact_limit: Annotated[int, IntegerReader(0, 1024**4)] = setting(
        1024**3, "The largest artefact or input, in bytes."
    )
    log_limit: Annotated[int, IntegerReader(1024, 1024**4)] = setting(
        64 * 1024 * 1024, "The longest log of a job, in bytes."
    )
    queues: OptionalText = setting(
        None, "Queues that tokens other than admin may use over HTTP, separated by commas."
    )
    state: QueueUrl = setting(None, "The database of the controller's state; none takes its queue.")
    trusted_proxies: OptionalText = setting(
        None, "Addresses or networks whose forwarded headers are trusted, with commas."
    )
    tls_cert: OptionalText = setting(None, "The file of the TLS certificate, with its chain.")
    tls_key: OptionalText = setting(None, "The file of the certificate's private key.")
    web: YesOrNo = setting(True, "Serve the web interface at /, if the extra web is installed.")
    metrics_open: YesOrNo = setting(False, "Serve /metrics without a token.")
    access_log: YesOrNo = setting(False, "Log each request, without its query.")
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class CodecSettings(Section):
    """`[codec]`: how workers, relays and `pollwise queue put` encode payloads and results."""

    payloads: Annotated[str | None, OptionalReader(ChoiceReader(CODECS))] = setting(
        None, "Compress with zlib, encrypt with aes-gcm, or both; none does neither."
    )
    key_file: OptionalText = setting(
        None, "The file with the keys for aes-gcm; none takes them from POLLWISE_KEYS."
    )
    required: YesOrNo = setting(False, "Refuse jobs and records that are not encrypted.")
    max_bytes: Annotated[int, IntegerReader(1, 1024**3)] = setting(
        16 * 1024 * 1024, "The largest payload before zlib compresses it, in bytes."
    )


class WebSettings(Section):
    """`[web]`: how `pollwise web` runs, and the pages of `pollwise serve`; durations in seconds."""

    queues: QueueUrls = setting((), "The stores or queues to show.")
    outboxes: OutboxUrls = setting((), "The outboxes to show.")
    fleets: FleetUrls = setting((), "The stores of the fleets to show.")
    traces: OptionalText = setting(None, "A folder of traces, to choose from in the lab.")
    host: Text = setting("127.0.0.1", "The address it listens at.")
    port: Annotated[int, IntegerReader(0, MAX_PORT)] = setting(
        8430, "The port it listens at; 0 takes any free port."
    )
    root_path: OptionalText = setting(
        None, "The path at which a proxy serves it, if the proxy removes that path."
    )
    state: QueueUrl = setting(
        None,
        "The database of tokens and the audit log; none takes the first SQLite or Postgres store. "
        "`pollwise serve` takes that of the controller.",
    )
    password_file: OptionalText = setting(
        None, "A private file with a password that logs in as an admin."
    )
    session: Annotated[float, DurationReader(60.0, 30 * 86400.0)] = setting(
        12 * 3600.0, "How long somebody stays logged in."
    )
    read_only: YesOrNo = setting(False, "Let nobody change anything.")
    redact: Annotated[tuple[str, ...], ListReader(TextReader())] = setting(
        REDACTED, "Names of values in payloads, headers and results that are never shown."
    )
    refresh: Annotated[float, DurationReader(0.2, 3600.0)] = setting(
        2.0, "How often a live page looks for changes."
    )
    status_groups: Annotated[tuple[str, ...], ListReader(TextReader())] = setting(
        (),
        "The groups of targets that everybody may see at /status, without a login; * for all. "
        "Empty: there is no such page.",
    )
    status_title: Text = setting("Status", "The title of the status page.")
    status_reasons: YesOrNo = setting(
        False, "Show on the status page why a target is down. It may name hosts of yours."
    )
    status_notes: YesOrNo = setting(
        False, "Show on the status page what operators note when they acknowledge an alert."
    )
    trusted_proxies: OptionalText = setting(
        None, "Addresses or networks whose forwarded headers are trusted, with commas."
    )
    tls_cert: OptionalText = setting(None, "The file of the TLS certificate, with its chain.")
    tls_key: OptionalText = setting(None, "The file of the certificate's private key.")
    access_log: YesOrNo = setting(False, "Log each request, without its query.")
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class AgentSettings(Section):
    """`[agent]`: how `pollwise agent` runs; durations are in seconds here."""

    controller: OptionalText = setting(None, "The address of the controller.")
    token_file: OptionalText = setting(None, "The file with a token of scope worker.")
    ca_file: OptionalText = setting(None, "More certificates to trust, in PEM.")
    name: OptionalText = setting(None, "The agent's name; none takes the host's name.")
    slots: Concurrency = setting(1, "How many jobs run at a time.")
    poll_interval: Annotated[float | None, OptionalReader(DurationReader(0.1, 3600.0))] = setting(
        None, "How often to poll without a WebSocket; none takes the controller's suggestion."
    )
    max_interval: Interval = setting(
        120.0, "The longest interval of an idle agent without a WebSocket."
    )
    input_limit: Annotated[int, IntegerReader(0, 1024**4)] = setting(
        4 * 1024**3, "The most bytes of all inputs of a job together."
    )
    timeout: OptionalTimeout = setting(
        None, "How long a command may run, unless its job has a shorter limit."
    )
    grace: Grace = setting(
        30.0, "How long a stop waits for commands before it gives their jobs back."
    )
    kill_after: Annotated[float, DurationReader(0.0, 3600.0)] = setting(
        10.0, "How long a command may take to end after SIGTERM."
    )
    folder: OptionalText = setting(
        None, "The folder for the jobs' folders; none takes one in the user's state folder."
    )
    env: OptionalText = setting(
        None, "More variables for commands: names or patterns, separated by commas."
    )
    user: OptionalText = setting(None, "The user that runs commands; the agent must be root.")
    sandbox: OptionalText = setting(None, "bwrap runs each command in bubblewrap.")
    push: YesOrNo = setting(True, "Open a WebSocket for hints.")
    health_port: HealthPort = None
    health_host: HealthHost = "127.0.0.1"
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
