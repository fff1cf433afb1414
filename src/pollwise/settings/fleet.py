"""The section `[fleet]` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from pollwise.core.strategies.freshness import Freshness
from pollwise.durations import short
from pollwise.runtime.jobs import MAX_LEASE
from pollwise.settings.groups import GroupPolling
from pollwise.settings.presets import PRESETS
from pollwise.settings.sections import (
    HIDDEN,
    Grace,
    HealthHost,
    HealthPort,
    LogFormat,
    LogLevel,
    MetricsHost,
    MetricsPort,
    OptionalPort,
    OptionalText,
    PollingStrategy,
    Section,
    Text,
    YesOrNo,
    setting,
)
from pollwise.settings.values import (
    ChoiceReader,
    DurationReader,
    IntegerReader,
    NumberReader,
    OptionalReader,
    UrlReader,
)

# The fleet checks its options with the same limits; a test compares the two.
MAX_POLLS = 10_000
MIN_LEASE = 1.0
MAX_COUNT = 10_000_000
MAX_FAILURES = 1_000_000
MULTIPLIER_MAX = 100
FLEET_GOALS = ("changes", "age")
METRICS_BY = ("group", "target")

MaximumCount = Annotated[int, IntegerReader(0, MAX_COUNT)]
Failures = Annotated[int, IntegerReader(1, MAX_FAILURES)]
Delay = Annotated[float, DurationReader(0.001, 86400.0)]
FleetUrl = Annotated[str | None, OptionalReader(UrlReader("fleet", "sqlite:///fleet.db")), HIDDEN]


class FleetSettings(Section):
    """`[fleet]`: how a fleet runs; durations are in seconds here."""

    model_config = ConfigDict(populate_by_name=True)

    file: Text = setting("fleet.toml", "The file that lists the targets.")
    preset: Annotated[str | None, OptionalReader(ChoiceReader(tuple(PRESETS)))] = setting(
        None,
        "Settings that belong together, below your own: pulse has the rules and the goals of "
        "Pulse's scheduler.",
    )
    store: FleetUrl = setting(
        None, "Where state is stored; none keeps it only while the process runs."
    )
    concurrency: Annotated[int, IntegerReader(1, MAX_POLLS)] = setting(
        64, "How many polls run at a time."
    )
    per_host: Annotated[int | None, OptionalReader(IntegerReader(1, MAX_POLLS))] = setting(
        4, "How many polls of one host run at a time; none for no limit."
    )
    budget: Annotated[float | None, OptionalReader(NumberReader())] = setting(
        None,
        "Polls a second for all targets and nodes together, divided by how often "
        "readings change; none polls each target at its own pace. No second sees more than this "
        "and `budget_burst`.",
    )
    budget_burst: Annotated[float | None, OptionalReader(NumberReader())] = setting(
        None,
        "With a budget: how many polls may start at once after a quiet time; none for one "
        "second's worth of the budget.",
    )
    goal: Annotated[str, ChoiceReader(FLEET_GOALS)] = setting(
        "changes",
        "With a budget: `changes` polls most what changes often, so that changes are seen early, "
        "all of them together; `age` polls all targets equally often, so that a rare change is "
        "seen as early as a frequent one.",
    )
    location: Text = setting(
        "default",
        "Where this node is. Targets with `confirm_from` are confirmed from several locations.",
    )
    lease: Annotated[float, DurationReader(MIN_LEASE, MAX_LEASE)] = setting(
        30.0, "After how long other nodes take over the targets of a killed node."
    )
    grace: Grace = setting(10.0, "How long a stop waits for running polls.")
    detect_within: Annotated[float | None, OptionalReader(DurationReader(1.0, None))] = setting(
        None,
        "Time within which an outage of a target, and its end, is noticed, timeout included, also "
        "while it fails or is dead; for targets without their own `detect_within`.",
    )
    confirmations: MaximumCount = setting(
        2,
        "How many quick polls follow the first failures of a target, to tell an outage from a "
        "hiccup; it is down when one more fails. 0: the first failure counts.",
    )
    confirm_delay: Delay = setting(
        5.0, "How soon these polls come, at the latest; a target's `min_interval` may be shorter."
    )
    backoff_delay: Delay = setting(
        5.0,
        "The delay after the first failure that is not confirmed quickly, until the breaker opens.",
    )
    backoff_multiplier: Annotated[float, NumberReader()] = setting(
        2.0, "By how much this delay and that of the breaker grow with each further failure."
    )
    backoff_jitter: Annotated[float, NumberReader()] = setting(
        0.2, "The share by which this delay varies, either way."
    )
    backoff_max_delay: Delay = setting(300.0, "The longest such delay.")
    breaker_failures: Failures = setting(
        3, "The breaker of a target opens after this many failures in a row."
    )
    breaker_delay: Delay = setting(
        30.0, "How long it stays open at first, before one poll is let through; then longer."
    )
    breaker_max_delay: Delay = setting(300.0, "The longest time that it stays open.")
    dead_after: Failures = setting(
        10,
        "A target is dead after this many failures in a row, unless it has its own "
        "`dead_after`; ten take about twenty minutes.",
    )
    recheck: Annotated[float, DurationReader(1.0, 86400.0)] = setting(
        600.0, "How often a dead target is polled."
    )
    max_retry_after: Annotated[float, DurationReader(0.0, 86400.0)] = setting(
        300.0,
        "The longest time that a server may ask not to be polled (`Retry-After`); a target's "
        "`max_interval` is allowed too, if it is longer.",
    )
    max_due: MaximumCount = setting(
        50, "`pollwise fleet check` fails if more polls than this are due and not started."
    )
    max_dead: MaximumCount = setting(
        0,
        "`pollwise fleet check` fails if more targets than this are dead; paused "
        "targets do not count.",
    )
    max_staleness: Annotated[float | None, OptionalReader(DurationReader(0.0, None))] = setting(
        None,
        "`pollwise fleet check` fails if a target's last success is older; none allows "
        "each target twice its interval plus its timeout.",
    )
    api_port: OptionalPort = setting(
        None, "The port of the HTTP API; 0 takes any free port, none serves no API."
    )
    api_host: Text = setting("127.0.0.1", "The address of the HTTP API.")
    api_token_file: Text = setting(
        "fleet-token.hash",
        "The file with the hash of the API's token. If it is missing, it is created, "
        "and the token is written to a file beside it, with .new at the end of its name.",
    )
    api_tokens: OptionalText = setting(
        None,
        "The store of a controller, such as sqlite:///farm.db, whose tokens are "
        "accepted instead: those with the scope read can read, those with operate can change.",
    )
    api_may_run: YesOrNo = setting(
        False,
        "If true, targets that the API and `pollwise fleet add` define may run code on the polling "
        "nodes: commands, functions, SQL, jobs; and open files there (ca). Anyone with a token "
        "that can change targets can then run code there.",
    )
    api_min_interval: Annotated[float, DurationReader(0.001, 86400.0)] = setting(
        1.0,
        "How often at most targets that the API and `pollwise fleet add` define are polled. Anyone "
        "with a token that can change targets can send that many requests to any server.",
    )
    api_variables: OptionalText = setting(
        None,
        "The environment variables that targets of the API and of `pollwise fleet add` may use, "
        "separated by commas: SHOP_TOKEN,API_KEY. Such a target can send their values anywhere.",
    )
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    health_port: HealthPort = None
    health_host: HealthHost = "127.0.0.1"
    metrics_by: Annotated[Literal["group", "target"], ChoiceReader(METRICS_BY)] = setting(
        "group",
        "What the metrics of polls, staleness and breakers are by: group (and type), or each "
        "target, which is about 3 kB a target and scrape.",
    )
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    polling_enabled: YesOrNo = Field(
        default=True,
        alias="polling.enabled",
        description="If false, every target is polled exactly at its base interval.",
    )
    polling: PollingStrategy = Field(default_factory=Freshness)
    groups: Mapping[str, GroupPolling] = Field(
        default_factory=lambda: MappingProxyType({}), description="Polling of groups of targets."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> FleetSettings:
        for name in ("backoff", "breaker"):
            first, last = (getattr(self, f"{name}_{key}") for key in ("delay", "max_delay"))
            if last < first:
                raise ValueError(
                    f"has {name}_max_delay = {short(last)}, which is below {name}_delay = "
                    f"{short(first)}"
                )
        if not 1 <= self.backoff_multiplier <= MULTIPLIER_MAX:
            raise ValueError(
                f"has backoff_multiplier = {self.backoff_multiplier:g}, which must be from 1 to "
                f"{MULTIPLIER_MAX}"
            )
        if not 0 <= self.backoff_jitter < 1:
            raise ValueError(
                f"has backoff_jitter = {self.backoff_jitter:g}, which must be from 0 to below 1: "
                "0.2 is 20 % either way"
            )
        return self
