"""Where settings come from, which of them holds, and what is shown of that."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.fixed import Fixed
from pollwise.durations import seconds
from pollwise.errors import ConfigError
from pollwise.outbox import OutboxRunOptions
from pollwise.runtime.variables import NO_SETTINGS
from pollwise.settings import Settings, load
from pollwise.worker import WorkerRunOptions
from tests.settings.folder import Folder, row

# Defaults.


def test_without_anything_the_defaults_hold(folder: Folder) -> None:
    worker = folder.load().worker
    assert worker.queue is None
    assert (worker.concurrency, worker.prefetch) == (8, None)
    assert (worker.lease, worker.grace, worker.timeout) == (60.0, 30.0, None)
    assert (worker.metrics_port, worker.metrics_host) == (None, "127.0.0.1")
    assert (worker.log_level, worker.log_format) == ("info", "text")
    assert worker.polling == Adaptive()


def test_the_defaults_are_those_of_the_worker(folder: Folder) -> None:
    worker, options = folder.load().worker, WorkerRunOptions()
    assert worker.concurrency == options.concurrency
    assert worker.prefetch == options.prefetch
    assert worker.prefetch_bytes == options.prefetch_bytes
    assert worker.lease == seconds(options.lease)
    assert worker.grace == seconds(options.grace)
    assert worker.timeout == options.timeout
    assert (worker.max_jobs, worker.max_memory) == (options.max_jobs, options.max_memory)
    assert worker.recycle_when_full == options.recycle_when_full
    assert worker.trace_context == options.trace_context
    assert worker.polling == options.polling


def test_the_defaults_are_those_of_the_outbox(folder: Folder) -> None:
    outbox, options = folder.load().outbox, OutboxRunOptions()
    assert (outbox.batch, outbox.records_per_key) == (options.batch, options.records_per_key)
    assert outbox.concurrency == options.concurrency
    assert (outbox.lease, outbox.grace) == (seconds(options.lease), seconds(options.grace))
    assert (outbox.timeout, outbox.long_interval) == (options.timeout, options.long_interval)
    assert outbox.max_memory == options.max_memory
    assert outbox.recycle_when_full == options.recycle_when_full
    assert outbox.trace_context == options.trace_context
    assert outbox.polling == options.polling == BatchFill("1s", "8s")


@pytest.mark.parametrize(
    ("key", "within", "outside"),
    [
        ("batch", [1, 1000], [0, 1001]),
        ("records_per_key", [1, 1000], [0, 1001]),
        ("concurrency", [1, 1000], [0, 1001]),
        ("max_memory", [1024**2, 1024**5], [1000, 1024**5 + 1]),
        ("lease", [0.1, "7d"], [0.09, "8d"]),
        ("long_interval", [0.001, 3600], [0, 3601]),
    ],
)
def test_every_number_of_the_outbox_has_limits(
    folder: Folder, key: str, within: list[object], outside: list[object]
) -> None:
    for value in within:
        read = getattr(folder.load(overrides={f"outbox.{key}": value}).outbox, key)
        OutboxRunOptions(**{key: read})
    for value in outside:
        refusal = folder.refusal(overrides={f"outbox.{key}": value})
        assert refusal.startswith(f"outbox.{key} = {value!r} (argument) must be ")


@pytest.mark.parametrize(
    ("key", "within", "outside"),
    [
        ("concurrency", [1, 1000], [0, -1, 1001]),
        ("prefetch", [0, 1000], [-1, 1001]),
        ("prefetch_bytes", [0, 1024**5], [-1, 1024**5 + 1]),
        ("max_jobs", [1, 10**9], [0, 10**9 + 1]),
        ("cpu_processes", [1, 1000], [0, 1001]),
        ("max_memory", [1024**2, 1024**5], [1000, 1024**5 + 1]),
        ("lease", [0.1, "7d"], [0.09, "8d", 0]),
        ("grace", [0, "1d"], ["25h", -1]),
        ("timeout", [0.001, "7d"], [0, "8d"]),
        ("metrics_port", [0, 65535], [-1, 65536]),
    ],
)
def test_every_number_has_limits(
    folder: Folder, key: str, within: list[object], outside: list[object]
) -> None:
    for value in within:
        read = getattr(folder.load(overrides={f"worker.{key}": value}).worker, key)
        if key != "metrics_port":  # The worker agrees with the limits.
            WorkerRunOptions(**{key: read})
    for value in outside:
        refusal = folder.refusal(overrides={f"worker.{key}": value})
        assert refusal.startswith(f"worker.{key} = {value!r} (argument) must be ")


def test_a_refusal_names_the_limits(folder: Folder) -> None:
    assert folder.refusal("[worker]\nconcurrency = 5000") == (
        "worker.concurrency = 5000 (pollwise.toml) must be a whole number from 1 to 1000"
    )
    assert folder.refusal('[worker]\nlease = "1ms"') == (
        "worker.lease = '1ms' (pollwise.toml) must be a duration from 100ms to 7d"
    )


# Layers.

FILE = {"concurrency": "[worker]\nconcurrency = 2", "hold": "[worker.polling]\nhold = 2"}
VARIABLE = {
    "concurrency": {"POLLWISE_WORKER_CONCURRENCY": "3"},
    "hold": {"POLLWISE_POLLING_HOLD": "3"},
}
ARGUMENT = {"concurrency": {"worker.concurrency": 4}, "hold": {"worker.polling.hold": 4}}


def value_of(settings: Settings, key: str) -> float:
    polling = settings.worker.polling
    assert isinstance(polling, Adaptive)
    return settings.worker.concurrency if key == "concurrency" else polling.hold


@pytest.mark.parametrize("key", ["concurrency", "hold"])
def test_each_layer_outranks_those_below(folder: Folder, key: str) -> None:
    file, variable, argument = FILE[key], VARIABLE[key], ARGUMENT[key]
    assert value_of(folder.load("", variable), key) == 3
    assert value_of(folder.load("", None, argument), key) == 4
    assert value_of(folder.load("", variable, argument), key) == 4
    assert value_of(folder.load(file), key) == 2
    assert value_of(folder.load(file, variable), key) == 3
    assert value_of(folder.load(file, None, argument), key) == 4
    assert value_of(folder.load(file, variable, argument), key) == 4


def test_keys_of_one_table_may_come_from_different_layers(folder: Folder) -> None:
    settings = folder.load(
        '[worker]\nlease = "2m"\n[worker.polling]\nmin_interval = "1s"',
        {"POLLWISE_WORKER_GRACE": "5s", "POLLWISE_POLLING_MAX_INTERVAL": "20s"},
        {"worker.timeout": "1h", "worker.polling.backoff_multiplier": "3"},
    )
    assert (settings.worker.lease, settings.worker.grace) == (120.0, 5.0)
    assert settings.worker.timeout == 3600.0
    assert settings.worker.polling == Adaptive("1s", "20s", backoff_multiplier=3)


def test_the_environment_is_read_when_asked_for(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("POLLWISE_")]:
        monkeypatch.delenv(name)
    assert load().worker.concurrency == 8
    monkeypatch.setenv("POLLWISE_WORKER_CONCURRENCY", "5")
    assert load().worker.concurrency == 5
    monkeypatch.setenv("POLLWISE_WORKER_CONCURRENCY", "6")
    assert load().worker.concurrency == 6
    assert load(environ={}).worker.concurrency == 8


def test_an_empty_variable_counts_as_not_set(folder: Folder) -> None:
    assert folder.load("", {"POLLWISE_WORKER_CONCURRENCY": ""}).worker.concurrency == 8


def test_an_argument_that_is_none_counts_as_not_given(folder: Folder) -> None:
    settings = folder.load("[worker]\ntimeout = 5", None, {"worker.timeout": None})
    assert settings.worker.timeout == 5.0


def test_the_word_none_takes_a_value_back(folder: Folder) -> None:
    toml = "[worker]\ntimeout = 5\nmetrics_port = 9091"
    settings = folder.load(
        toml, {"POLLWISE_WORKER_TIMEOUT": "none"}, {"worker.metrics_port": "None"}
    )
    assert (settings.worker.timeout, settings.worker.metrics_port) == (None, None)
    assert row(settings, "worker.timeout").origin == "environment variable POLLWISE_WORKER_TIMEOUT"


def test_arguments_may_be_nested(folder: Folder) -> None:
    settings = folder.load(overrides={"worker": {"polling": {"strategy": "fixed"}}})
    assert settings.worker.polling == Fixed()


# The file.


def test_the_file_is_found_in_the_current_directory_or_named(folder: Folder) -> None:
    other = folder.path / "other.toml"
    other.write_text("[worker]\nconcurrency = 3")
    third = folder.path / "third.toml"
    third.write_text("[worker]\nconcurrency = 4")
    assert folder.load("[worker]\nconcurrency = 2").worker.concurrency == 2
    by_variable = load(environ={"POLLWISE_CONFIG": str(other)})
    assert by_variable.worker.concurrency == 3
    assert row(by_variable, "worker.concurrency").origin == str(other)
    assert load(third, {"POLLWISE_CONFIG": str(other)}).worker.concurrency == 4


def test_a_file_that_is_named_must_exist(folder: Folder) -> None:
    missing = folder.path / "missing.toml"
    with pytest.raises(ConfigError, match=r"there is no file .*missing\.toml \(argument\)"):
        load(missing, {})
    refusal = folder.refusal(environ={"POLLWISE_CONFIG": str(missing)})
    assert f"there is no file {missing} (environment variable POLLWISE_CONFIG)" in refusal
    assert "create it or name another file" in refusal


def test_a_file_that_is_no_toml_is_refused_with_its_line(folder: Folder) -> None:
    refusal = folder.refusal("[worker]\nconcurrency = 4\nlease = 60s\n")
    assert refusal.startswith("pollwise.toml is not valid TOML: ")
    assert "line 3" in refusal
    assert "fix that line" in refusal


def test_a_broken_line_is_not_shown_for_it_may_hold_a_password(folder: Folder) -> None:
    with pytest.raises(ConfigError) as caught:
        folder.load("[worker]\nqueue = postgresql://app:hunter2@db/jobs")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[worker]\nqueue = '\xff'", "is not UTF-8 text (byte 18)"),
        (b"x = " + b"9" * 5000, "a value in it is far too large"),
        (b"x = " + b"[" * 50_000, "not a settings file"),
    ],
    ids=["latin-1", "digits", "brackets"],
)
def test_an_odd_file_is_refused(folder: Folder, content: bytes, said: str) -> None:
    (folder.path / "pollwise.toml").write_bytes(content)
    refusal = folder.refusal()
    assert refusal.startswith("pollwise.toml is not")
    assert said in refusal or "not valid TOML" in refusal


def test_a_directory_is_no_file(folder: Folder) -> None:
    (folder.path / "pollwise.toml").mkdir()
    assert "pollwise.toml (found in the current directory) cannot be read" in folder.refusal()


def test_a_byte_order_mark_is_no_problem(folder: Folder) -> None:
    assert folder.load("\ufeff[worker]\nconcurrency = 3").worker.concurrency == 3


# What `pollwise config show` shows.


def test_the_table_has_every_value_with_its_origin_in_a_stable_order(folder: Folder) -> None:
    settings = folder.load(
        '[worker]\nlease = "90s"\nqueue = "sqlite:///jobs.db"\n[worker.polling]\nhold_ms = 500',
        {"POLLWISE_POLLING_MAX_INTERVAL_MS": "30000"},
        {"worker.concurrency": "4"},
    )
    shown = [(each.key, each.value, each.origin) for each in settings.table()]
    assert [row for row in shown if row[0].startswith("outbox.")] == [
        ("outbox.database", "none", "default"),
        ("outbox.publish", "none", "default"),
        ("outbox.batch", "100", "default"),
        ("outbox.records_per_key", "20", "default"),
        ("outbox.concurrency", "64", "default"),
        ("outbox.lease", "30s", "default"),
        ("outbox.grace", "30s", "default"),
        ("outbox.timeout", "none", "default"),
        ("outbox.drain", "none", "default"),
        ("outbox.long_interval", "1m", "default"),
        ("outbox.max_memory", "none", "default"),
        ("outbox.recycle_when_full", "false", "default"),
        ("outbox.trace_context", "link", "default"),
        ("outbox.metrics_port", "none", "default"),
        ("outbox.metrics_host", "127.0.0.1", "default"),
        ("outbox.health_port", "none", "default"),
        ("outbox.health_host", "127.0.0.1", "default"),
        ("outbox.log_level", "info", "default"),
        ("outbox.log_format", "text", "default"),
        ("outbox.polling.strategy", "batch_fill", "default"),
        ("outbox.polling.min_interval", "1s", "default"),
        ("outbox.polling.max_interval", "8s", "default"),
        ("outbox.polling.hold", "0s", "default"),
    ]
    assert [row for row in shown if row[0].startswith("worker.")] == [
        ("worker.queue", "sqlite:///jobs.db", "pollwise.toml"),
        ("worker.concurrency", "4", "argument"),
        ("worker.prefetch", "none", "default"),
        ("worker.prefetch_bytes", "16777216", "default"),
        ("worker.lease", "1m30s", "pollwise.toml"),
        ("worker.grace", "30s", "default"),
        ("worker.timeout", "none", "default"),
        ("worker.drain", "none", "default"),
        ("worker.long_interval", "1m", "default"),
        ("worker.max_jobs", "none", "default"),
        ("worker.max_memory", "none", "default"),
        ("worker.recycle_when_full", "false", "default"),
        ("worker.cpu_processes", "none", "default"),
        ("worker.export_queue", "false", "default"),
        ("worker.trace_context", "link", "default"),
        ("worker.metrics_port", "none", "default"),
        ("worker.metrics_host", "127.0.0.1", "default"),
        ("worker.health_port", "none", "default"),
        ("worker.health_host", "127.0.0.1", "default"),
        ("worker.log_level", "info", "default"),
        ("worker.log_format", "text", "default"),
        ("worker.polling.strategy", "adaptive", "default"),
        ("worker.polling.min_interval", "100ms", "default"),
        (
            "worker.polling.max_interval",
            "30s",
            "environment variable POLLWISE_POLLING_MAX_INTERVAL_MS",
        ),
        ("worker.polling.backoff_multiplier", "2.0", "default"),
        ("worker.polling.hold", "500ms", "pollwise.toml"),
    ]
    assert settings.origins()["worker.lease"] == "pollwise.toml"
    assert list(settings.origins()) == [each.key for each in settings.table()]


def test_what_was_set_can_be_told_from_defaults(folder: Folder) -> None:
    settings = folder.load(
        "[worker]\nlease = 60\n[worker.polling]\nmin_interval = 1", {}, {"worker.grace": None}
    )
    assert settings.is_set("worker.lease")  # to its default, but by somebody
    assert settings.is_set("worker.polling")
    assert settings.is_set("worker.polling.min_interval")
    for key in ("worker.grace", "worker.polling.strategy", "worker.poll", "worker.queue"):
        assert not settings.is_set(key)
    assert not folder.load("[worker]\nlease = 60").is_set("worker.polling")


def test_what_is_shown_can_be_given_again(folder: Folder) -> None:
    settings = folder.load('[worker.polling]\nstrategy = "ewma"\nheld = true\nalpha = 0.1')
    again = {each.key: each.value for each in settings.table()}
    assert folder.load(overrides=again).worker == settings.worker


def test_settings_do_not_change(folder: Folder) -> None:
    settings = folder.load()
    with pytest.raises(ValidationError):
        settings.worker.concurrency = 3


def test_settings_can_be_made_in_code() -> None:
    assert Settings(worker={"lease": "5s"}).worker.lease == 5.0  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Settings(worker={"laese": "5s"})  # type: ignore[arg-type]


def test_variables_that_are_no_settings_are_let_through(folder: Folder) -> None:
    """What `pollwise agent` exports to its command must not stop `pollwise` inside of it."""
    told = dict.fromkeys(NO_SETTINGS, "x")
    assert load(environ=told) == load(environ={})
    with pytest.raises(ConfigError, match="POLLWISE_TOKENS"):
        load(environ={**told, "POLLWISE_TOKENS": "x"})
