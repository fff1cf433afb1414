from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from pollux.core.adaptive import Adaptive
from pollux.core.batch_fill import BatchFill
from pollux.core.ewma import Ewma
from pollux.core.fixed import Fixed
from pollux.core.strategy import Strategy
from pollux.core.worth import Worth
from pollux.durations import seconds
from pollux.errors import ConfigError
from pollux.outbox import OutboxRunOptions
from pollux.settings import (
    STRATEGIES,
    Row,
    Settings,
    documented_keys,
    load,
    polling_table,
    strategy_named,
)
from pollux.urls import without_secrets
from pollux.worker import WorkerRunOptions


class Folder:
    """An empty current directory, and `load` in it with nothing but what is given."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(
        self,
        toml: str = "",
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> Settings:
        if toml:
            (self.path / "pollux.toml").write_text(toml, encoding="utf-8")
        return load(environ=environ or {}, overrides=overrides)

    def refusal(
        self,
        toml: str = "",
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(toml, environ, overrides)
        return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def row(settings: Settings, key: str) -> Row:
    (found,) = [each for each in settings.table() if each.key == key and each.used]
    return found


def unused(settings: Settings) -> list[Row]:
    return [each for each in settings.table() if not each.used]


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
    assert worker.lease == seconds(options.lease)
    assert worker.grace == seconds(options.grace)
    assert worker.timeout == options.timeout
    assert worker.polling == options.polling


def test_the_defaults_are_those_of_the_outbox(folder: Folder) -> None:
    outbox, options = folder.load().outbox, OutboxRunOptions()
    assert (outbox.batch, outbox.run) == (options.batch, options.run)
    assert outbox.concurrency == options.concurrency
    assert (outbox.lease, outbox.grace) == (seconds(options.lease), seconds(options.grace))
    assert (outbox.timeout, outbox.long_ceiling) == (options.timeout, options.long_ceiling)
    assert outbox.polling == options.polling == BatchFill("1s", "8s")


@pytest.mark.parametrize(
    ("key", "within", "outside"),
    [
        ("batch", [1, 1000], [0, 1001]),
        ("run", [1, 1000], [0, 1001]),
        ("concurrency", [1, 1000], [0, 1001]),
        ("lease", [0.1, "7d"], [0.09, "8d"]),
        ("long_ceiling", [0.001, 3600], [0, 3601]),
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
        "worker.concurrency = 5000 (pollux.toml) must be a whole number from 1 to 1000"
    )
    assert folder.refusal('[worker]\nlease = "1ms"') == (
        "worker.lease = '1ms' (pollux.toml) must be a duration from 100ms to 7d"
    )


# Layers.

FILE = {"concurrency": "[worker]\nconcurrency = 2", "hold": "[worker.polling]\nhold = 2"}
VARIABLE = {
    "concurrency": {"POLLUX_WORKER_CONCURRENCY": "3"},
    "hold": {"POLLUX_POLLING_HOLD": "3"},
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
        {"POLLUX_WORKER_GRACE": "5s", "POLLUX_POLLING_MAX_INTERVAL": "20s"},
        {"worker.timeout": "1h", "worker.polling.backoff_multiplier": "3"},
    )
    assert (settings.worker.lease, settings.worker.grace) == (120.0, 5.0)
    assert settings.worker.timeout == 3600.0
    assert settings.worker.polling == Adaptive("1s", "20s", multiplier=3)


def test_the_environment_is_read_when_asked_for(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("POLLUX_")]:
        monkeypatch.delenv(name)
    assert load().worker.concurrency == 8
    monkeypatch.setenv("POLLUX_WORKER_CONCURRENCY", "5")
    assert load().worker.concurrency == 5
    monkeypatch.setenv("POLLUX_WORKER_CONCURRENCY", "6")
    assert load().worker.concurrency == 6
    assert load(environ={}).worker.concurrency == 8


def test_an_empty_variable_counts_as_not_set(folder: Folder) -> None:
    assert folder.load("", {"POLLUX_WORKER_CONCURRENCY": ""}).worker.concurrency == 8


def test_an_argument_that_is_none_counts_as_not_given(folder: Folder) -> None:
    settings = folder.load("[worker]\ntimeout = 5", None, {"worker.timeout": None})
    assert settings.worker.timeout == 5.0


def test_the_word_none_takes_a_value_back(folder: Folder) -> None:
    toml = "[worker]\ntimeout = 5\nmetrics_port = 9091"
    settings = folder.load(toml, {"POLLUX_WORKER_TIMEOUT": "none"}, {"worker.metrics_port": "None"})
    assert (settings.worker.timeout, settings.worker.metrics_port) == (None, None)
    assert row(settings, "worker.timeout").origin == "environment variable POLLUX_WORKER_TIMEOUT"


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
    by_variable = load(environ={"POLLUX_CONFIG": str(other)})
    assert by_variable.worker.concurrency == 3
    assert row(by_variable, "worker.concurrency").origin == str(other)
    assert load(third, {"POLLUX_CONFIG": str(other)}).worker.concurrency == 4


def test_a_file_that_is_named_must_exist(folder: Folder) -> None:
    missing = folder.path / "missing.toml"
    with pytest.raises(ConfigError, match=r"there is no file .*missing\.toml \(argument\)"):
        load(missing, {})
    refusal = folder.refusal(environ={"POLLUX_CONFIG": str(missing)})
    assert f"there is no file {missing} (environment variable POLLUX_CONFIG)" in refusal
    assert "create it, or name another" in refusal


def test_a_file_that_is_no_toml_is_refused_with_its_line(folder: Folder) -> None:
    refusal = folder.refusal("[worker]\nconcurrency = 4\nlease = 60s\n")
    assert refusal.startswith("pollux.toml is not valid TOML: ")
    assert "line 3" in refusal
    assert "mend that line" in refusal


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
    (folder.path / "pollux.toml").write_bytes(content)
    refusal = folder.refusal()
    assert refusal.startswith("pollux.toml is not")
    assert said in refusal or "not valid TOML" in refusal


def test_a_directory_is_no_file(folder: Folder) -> None:
    (folder.path / "pollux.toml").mkdir()
    assert "pollux.toml (found in the current directory) cannot be read" in folder.refusal()


def test_a_byte_order_mark_is_no_problem(folder: Folder) -> None:
    assert folder.load("\ufeff[worker]\nconcurrency = 3").worker.concurrency == 3


# Values.


@pytest.mark.parametrize(
    "toml",
    [
        'min_interval = "250ms"',
        "min_interval = 0.25",
        'min_interval = "0.25"',
        "min_interval_ms = 250",
        "min_interval_ms = 250.0",
        'min_interval_ms = "250"',
    ],
)
def test_a_duration_has_two_forms(folder: Folder, toml: str) -> None:
    settings = folder.load(f"[worker.polling]\n{toml}")
    assert settings.worker.polling == Adaptive("250ms")
    assert row(settings, "worker.polling.min_interval").value == "250ms"


#: What a strategy needs besides its name.
GOALS: dict[str | None, dict[str, object]] = {"worth": {"worker.polling.p95_wait": "2s"}}


@pytest.mark.parametrize(
    ("table", "key", "strategy"),
    [
        ("worker", "lease", None),
        ("worker", "grace", None),
        ("worker", "timeout", None),
        *[
            ("worker.polling", each.key.rpartition(".")[2], each.strategy)
            for each in documented_keys()
            if each.strategy and each.kind == "duration"
        ],
    ],
)
def test_every_duration_has_a_twin_in_milliseconds(
    folder: Folder, table: str, key: str, strategy: str | None
) -> None:
    chosen = {"worker.polling.strategy": strategy, **GOALS.get(strategy, {})}
    fitting = {
        "min_interval": 2_000,
        "max_interval": 4_000,
        "high_interval": 6_000,
        "very_high_interval": 700,
        "idle_interval": 30_000,
    }
    length = fitting.get(key, 11_000)
    twin = folder.load(overrides={**chosen, f"{table}.{key}_ms": length})
    plain = folder.load(overrides={**chosen, f"{table}.{key}": length / 1000})
    assert twin == plain
    assert twin != folder.load(overrides=chosen)
    assert row(twin, f"{table}.{key}").origin == "argument"


def test_both_forms_in_one_layer_are_refused(folder: Folder) -> None:
    assert folder.refusal('[worker.polling]\nmin_interval = "100ms"\nmin_interval_ms = 100') == (
        "worker.polling.min_interval = '100ms' (pollux.toml) and "
        "worker.polling.min_interval_ms = 100 (pollux.toml) contradict each other; keep one"
    )
    assert "contradict" in folder.refusal("[worker]\nlease = 5\nlease_ms = 5000\n")


def test_both_forms_in_two_layers_are_not(folder: Folder) -> None:
    settings = folder.load(
        '[worker.polling]\nmin_interval = "1s"', {"POLLUX_POLLING_MIN_INTERVAL_MS": "200"}
    )
    assert settings.worker.polling == Adaptive("200ms")


@pytest.mark.parametrize(
    ("environ", "polling"),
    [
        ({"STRATEGY": "fixed", "INTERVAL_MS": "200"}, Fixed("200ms")),
        ({"STRATEGY": "FIXED", "INTERVAL": "2"}, Fixed(2)),
        ({"MIN_INTERVAL_MS": "200", "BACKOFF_MULTIPLIER": "1.5"}, Adaptive(0.2, multiplier=1.5)),
        ({"BACKOFF_MULTIPLIER": "10"}, Adaptive(multiplier=10)),
        ({"STRATEGY": "batch_fill", "BATCH_SIZE": "25"}, BatchFill(batch=25)),
        ({"STRATEGY": "ewma", "HELD": "true", "DROP_AFTER": "3"}, Ewma(held=True, drop_after=3)),
        ({"STRATEGY": "ewma", "HELD": "no", "HALF_LIFE": "1m"}, Ewma(half_life=60)),
    ],
)
@pytest.mark.parametrize("prefix", ["POLLUX_POLLING_", "POLLUX_WORKER_POLLING_"])
def test_variables_are_converted(
    folder: Folder, environ: dict[str, str], polling: Strategy, prefix: str
) -> None:
    settings = folder.load("", {prefix + name: value for name, value in environ.items()})
    assert settings.worker.polling == polling


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("worker.concurrency", True, "must be a whole number from 1 to 1000"),
        ("worker.concurrency", "many", "must be a whole number"),
        ("worker.concurrency", 2.5, "must be a whole number"),
        ("worker.concurrency", [4], "must be a whole number"),
        ("worker.lease", "soon", "is not a duration; give a number of seconds"),
        ("worker.lease", True, "is not a duration"),
        ("worker.lease", 10**400, "is not finite"),
        ("worker.lease", float("nan"), "is not finite"),
        ("worker.queue", "jobs.db", "is not a queue URL; give one like 'sqlite:///jobs.db'"),
        ("worker.queue", 5, "is not a queue URL"),
        ("worker.metrics_host", " ", "must be text, and not empty"),
        ("worker.log_level", "warn", "did you mean 'warning'?"),
        ("worker.log_format", "xml", "must be one of 'text', 'json'"),
        ("worker.polling.strategy", "adaptve", "did you mean 'adaptive'?"),
        ("worker.polling.strategy", 3, "must be one of 'adaptive', 'fixed'"),
        ("worker.polling.min_interval", "soon", "is not a duration"),
        ("worker.polling.min_interval", -1, "must be 0 or more"),
        ("worker.polling.min_interval", 0, "must be above 0"),
        ("worker.polling.min_interval_ms", "100ms", "leave `_ms` off the key"),
        ("worker.polling.min_interval_ms", -5, "must be 0 or more"),
        ("worker.polling.backoff_multiplier", "twice", "must be a number, such as 2"),
        ("worker.polling.backoff_multiplier", 1, "must be above 1"),
        ("worker.polling.backoff_multiplier", 10**400, "must be a number"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_origin(
    folder: Folder, key: str, value: object, said: str
) -> None:
    refusal = folder.refusal(overrides={key: value})
    assert refusal.startswith(f"{key} = ")
    assert "(argument)" in refusal
    assert said in refusal
    if isinstance(value, str):
        assert repr(value) in refusal
        table, _, last = key.rpartition(".")
        assert "(pollux.toml)" in folder.refusal(f'[{table}]\n{last} = "{value}"')


@pytest.mark.parametrize(
    ("strategy", "key", "value", "said"),
    [
        ("fixed", "interval", 0, "polls without any pause"),
        ("batch_fill", "batch_size", 0, "must be a whole number of at least 1"),
        ("batch_fill", "batch_size", "1.5", "must be a whole number"),
        ("batch_fill", "max_interval", "100ms", "lower min_interval or raise max_interval"),
        ("ewma", "alpha", 1.5, "must be above 0 and at most 1"),
        ("ewma", "drop_after", 0, "must be a whole number of at least 1"),
        ("ewma", "half_life", 0, "must be above 0"),
        ("ewma", "very_high_interval", "6s", "is longer than worker.polling.high_interval = 5s"),
        ("ewma", "held", "perhaps", "must be true or false"),
    ],
)
def test_what_a_strategy_refuses_is_said_in_the_words_of_settings(
    folder: Folder, strategy: str, key: str, value: object, said: str
) -> None:
    chosen = {"worker.polling.strategy": strategy, f"worker.polling.{key}": value}
    refusal = folder.refusal(overrides=chosen)
    assert f"worker.polling.{key} = {value!r} (argument)" in refusal
    assert said in refusal
    assert not re.search(r"(?<![\w.])(floor|ceiling|batch|idle|high|very_high) = ", refusal)


def test_floor_above_ceiling_names_both_keys_and_both_origins(folder: Folder) -> None:
    refusal = folder.refusal(
        "[worker.polling]\nmin_interval_ms = 9000", {"POLLUX_POLLING_MAX_INTERVAL": "2s"}
    )
    assert refusal == (
        "worker.polling.min_interval_ms = 9000 (pollux.toml) is above worker.polling.max_interval "
        "= '2s' (environment variable POLLUX_POLLING_MAX_INTERVAL); "
        "lower min_interval or raise max_interval"
    )
    refusal = folder.refusal('[worker.polling]\nmin_interval = "9s"')
    assert "worker.polling.max_interval = 5s (default)" in refusal


# Unknown keys.


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (
            "[worker]\nconcurency = 4",
            "worker.concurency = 4 (pollux.toml) is no setting; did you mean worker.concurrency?",
        ),
        (
            "concurrency = 4",
            "concurrency = 4 (pollux.toml) is no setting; did you mean worker.concurrency?",
        ),
        ("[worker]\nmin_interval = 4", "did you mean worker.polling.min_interval?"),
        ("[worker.polling]\nmin_intervall_ms = 4", "did you mean worker.polling.min_interval_ms?"),
        ("[worker.polling]\nlease = 4", "did you mean worker.lease?"),
        ("[worker.polling]\nzzz = 4", "[worker.polling] has strategy, min_interval, max_interval,"),
        ("zzz = 4", "the tables are [worker], [outbox], [worker.polling], [outbox.polling]"),
        ("[wroker]\nqueue = 'x'", "[wroker] (pollux.toml) is no table of settings"),
        ("[wroker]\nqueue = 'x'", "did you mean [worker]?"),
        ("[worker.poling]\nhold = 1", "did you mean [worker.polling]?"),
        (
            "[zzz]\nhold = 1",
            "the tables are [worker], [outbox], [worker.polling], [outbox.polling]",
        ),
        ("[worker]\npolling = 'fixed'", "worker.polling = 'fixed' (pollux.toml) is a table; write"),
        ("worker = 4", "is a table; write [worker]"),
        ("[worker.lease]\nlong = 1", "worker.lease = {…} (pollux.toml) is a dict; give"),
        ("[worker.polling]\nfloor = '1s'", "settings call it worker.polling.min_interval"),
        ("[worker.polling]\nceiling_ms = 5", "settings call it worker.polling.max_interval_ms"),
        ("[worker.polling]\nmultiplier = 3", "settings call it worker.polling.backoff_multiplier"),
        ("[worker.polling]\nbatch = 3", "settings call it worker.polling.batch_size"),
        ("[worker.polling]\nvery_high = 3", "settings call it worker.polling.very_high_interval"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(folder: Folder, toml: str, said: str) -> None:
    assert said in folder.refusal(toml)


def test_an_unknown_argument_is_refused_with_the_nearest(folder: Folder) -> None:
    assert folder.refusal(overrides={"worker.consurrency": 4}) == (
        "worker.consurrency = 4 (argument) is no setting; did you mean worker.concurrency?"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("POLLUX_POLING_STRATEGY", "did you mean POLLUX_POLLING_STRATEGY?"),
        ("POLLUX_POLLING_MIN_INTERVALL", "did you mean POLLUX_POLLING_MIN_INTERVAL?"),
        ("POLLUX_WORKER_CONCURENCY", "did you mean POLLUX_WORKER_CONCURRENCY?"),
        ("POLLUX_CONCURRENCY", "did you mean POLLUX_WORKER_CONCURRENCY?"),
        ("POLLUX_POLLING_FLOOR", "settings call it POLLUX_POLLING_MIN_INTERVAL"),
        ("POLLUX_WORKER_POLLING_BATCH", "settings call it POLLUX_POLLING_BATCH_SIZE"),
        ("POLLUX_ZZZ", "unset it; settings begin with POLLUX_POLLING_ or POLLUX_WORKER_"),
        ("POLLUX_", "unset it"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(
    folder: Folder, name: str, said: str
) -> None:
    refusal = folder.refusal(environ={name: "x", "PATH": "/bin"})
    assert refusal.startswith(f"environment variable {name} = 'x' is no setting; ")
    assert said in refusal


def test_two_variables_for_one_key_are_refused(folder: Folder) -> None:
    refusal = folder.refusal(
        environ={"POLLUX_POLLING_HOLD": "1", "POLLUX_WORKER_POLLING_HOLD": "2"}
    )
    assert "(environment variable POLLUX_POLLING_HOLD) and worker.polling.hold = '2'" in refusal


def test_the_variables_of_kubernetes_are_let_be(folder: Folder) -> None:
    settings = folder.load(
        environ={
            "POLLUX_SERVICE_HOST": "10.0.0.1",
            "POLLUX_SERVICE_PORT": "9091",
            "POLLUX_SERVICE_PORT_METRICS": "9091",
            "POLLUX_PORT": "tcp://10.0.0.1:9091",
            "POLLUX_PORT_9091_TCP": "tcp://10.0.0.1:9091",
            "POLLUX_PORT_9091_TCP_ADDR": "10.0.0.1",
            "POLLUX_WORKER_METRICS_PORT": "tcp://10.0.0.1:9091",
        }
    )
    assert settings == Settings()


def test_all_problems_are_told_at_once(folder: Folder) -> None:
    refusal = folder.refusal(
        "[worker]\nconcurrency = 0\nlaese = 5\n[worker.polling]\nmin_interval = 'soon'",
        {"POLLUX_WORKER_LOG_LEVEL": "loud"},
    )
    first, *rest = refusal.splitlines()
    assert first == "4 settings are wrong:"
    assert [line.split(" = ")[0] for line in sorted(rest)] == [
        "- worker.concurrency",
        "- worker.laese",
        "- worker.log_level",
        "- worker.polling.min_interval",
    ]


# Strategies over layers.


def test_parameters_without_a_strategy_are_those_of_adaptive(folder: Folder) -> None:
    assert folder.load("[worker.polling]\nmax_interval = 9").worker.polling == Adaptive(ceiling=9)
    assert folder.refusal("[worker.polling]\ninterval = 9") == (
        "worker.polling.interval = 9 (pollux.toml) belongs to strategy fixed, but the strategy is "
        'adaptive (default); leave it out, or set strategy = "fixed"'
    )


def test_another_strategy_in_a_higher_layer_leaves_lower_parameters_unused(folder: Folder) -> None:
    toml = '[worker.polling]\nstrategy = "adaptive"\nmin_interval_ms = 50\nhold = 3'
    settings = folder.load(toml, {"POLLUX_POLLING_STRATEGY": "fixed"})
    assert settings.worker.polling == Fixed(hold=3)
    assert unused(settings) == [
        Row("worker.polling.min_interval", "50ms", "pollux.toml", used=False)
    ]
    assert "worker.polling.min_interval" not in settings.origins()


def test_an_unused_parameter_may_even_be_wrong(folder: Folder) -> None:
    settings = folder.load(
        "[worker.polling]\nmin_interval = 'soon'", None, {"worker.polling.strategy": "fixed"}
    )
    assert [each.value for each in unused(settings)] == ["'soon'"]


def test_unused_parameters_come_from_all_lower_layers(folder: Folder) -> None:
    settings = folder.load(
        "[worker.polling]\nmin_interval = 1",
        {"POLLUX_POLLING_BACKOFF_MULTIPLIER": "3"},
        {"worker.polling.strategy": "ewma", "worker.polling.alpha": "0.5"},
    )
    assert settings.worker.polling == Ewma(alpha=0.5)
    assert [each.key for each in unused(settings)] == [
        "worker.polling.min_interval",
        "worker.polling.backoff_multiplier",
    ]


def test_a_parameter_of_another_strategy_beside_or_above_is_refused(folder: Folder) -> None:
    fixed = '[worker.polling]\nstrategy = "fixed"\n'
    beside = folder.refusal(fixed + "batch_size = 5")
    assert "belongs to strategy batch_fill, but the strategy is fixed (pollux.toml)" in beside
    above = folder.refusal(fixed, {"POLLUX_POLLING_MIN_INTERVAL_MS": "5"})
    assert above.startswith(
        "worker.polling.min_interval_ms = '5' "
        "(environment variable POLLUX_POLLING_MIN_INTERVAL_MS) "
        "belongs to strategy adaptive, batch_fill and worth, "
        "but the strategy is fixed (pollux.toml)"
    )


# The lone poll_interval of old.


@pytest.mark.parametrize(
    ("toml", "environ", "overrides", "instead"),
    [
        (
            "[worker]\npoll_interval = 0.25",
            {},
            {},
            'write [worker.polling] with strategy = "fixed" and interval = 0.25',
        ),
        (
            '[worker.polling]\npoll_interval = "250ms"',
            {},
            {},
            'write [worker.polling] with strategy = "fixed" and interval = "250ms"',
        ),
        (
            "[worker]\npoll_interval_ms = 250",
            {},
            {},
            'write [worker.polling] with strategy = "fixed" and interval_ms = 250',
        ),
        (
            "",
            {"POLLUX_POLL_INTERVAL_MS": "250"},
            {},
            "set POLLUX_POLLING_STRATEGY=fixed and POLLUX_POLLING_INTERVAL_MS=250",
        ),
        (
            "",
            {"POLLUX_POLL_INTERVAL": "0.25"},
            {},
            "set POLLUX_POLLING_STRATEGY=fixed and POLLUX_POLLING_INTERVAL=0.25",
        ),
        (
            "",
            {},
            {"worker.poll_interval": "250ms"},
            "give worker.polling.strategy=fixed and worker.polling.interval=250ms",
        ),
    ],
)
def test_a_lone_poll_interval_is_fixed_with_a_warning(
    folder: Folder,
    toml: str,
    environ: dict[str, str],
    overrides: dict[str, object],
    instead: str,
) -> None:
    with pytest.warns(DeprecationWarning, match="poll_interval") as caught:
        settings = folder.load(toml, environ, overrides)
    assert settings.worker.polling == Fixed("250ms")
    (warning,) = caught
    assert str(warning.message).endswith(f"is deprecated; {instead}")
    assert warning.filename == __file__


@pytest.mark.parametrize("strategy", ["adaptive", "fixed"])
def test_poll_interval_beside_a_strategy_is_refused(folder: Folder, strategy: str) -> None:
    toml = f'[worker]\npoll_interval = 1\n[worker.polling]\nstrategy = "{strategy}"'
    assert folder.refusal(toml) == (
        f"worker.poll_interval = 1 (pollux.toml) and worker.polling.strategy = '{strategy}' "
        "(pollux.toml) contradict each other; keep one"
    )


def test_poll_interval_beside_another_interval_is_refused(folder: Folder) -> None:
    twice = "[worker]\npoll_interval = 1\n[worker.polling]\npoll_interval_ms = 1000"
    assert folder.refusal(twice).count("contradict each other") == 1
    other = "[worker]\npoll_interval = 1\n[worker.polling]\nmin_interval = 1"
    assert "belongs to strategy adaptive, batch_fill and worth, but the strategy is fixed" in (
        folder.refusal(other)
    )


def test_poll_interval_gives_way_to_a_strategy_in_a_higher_layer(folder: Folder) -> None:
    with pytest.warns(DeprecationWarning, match=r"worker\.poll_interval = 1"):
        settings = folder.load(
            "[worker]\npoll_interval = 1", {"POLLUX_POLLING_STRATEGY": "adaptive"}
        )
    assert settings.worker.polling == Adaptive()
    assert [each.key for each in unused(settings)] == ["worker.polling.interval"]


def test_a_bad_poll_interval_is_refused_not_warned_about(folder: Folder) -> None:
    with warnings.catch_warnings(record=True) as caught:
        refusal = folder.refusal("[worker]\npoll_interval = 'soon'")
    assert refusal.startswith("worker.poll_interval = 'soon' (pollux.toml) is not a duration")
    assert not caught


# What `pollux config show` shows.


def test_the_table_has_every_value_with_its_origin_in_a_stable_order(folder: Folder) -> None:
    settings = folder.load(
        '[worker]\nlease = "90s"\nqueue = "sqlite:///jobs.db"\n[worker.polling]\nhold_ms = 500',
        {"POLLUX_POLLING_MAX_INTERVAL_MS": "30000"},
        {"worker.concurrency": "4"},
    )
    shown = [(each.key, each.value, each.origin) for each in settings.table()]
    assert [row for row in shown if row[0].startswith("outbox.")] == [
        ("outbox.database", "none", "default"),
        ("outbox.batch", "100", "default"),
        ("outbox.run", "20", "default"),
        ("outbox.concurrency", "64", "default"),
        ("outbox.lease", "30s", "default"),
        ("outbox.grace", "30s", "default"),
        ("outbox.timeout", "none", "default"),
        ("outbox.long_ceiling", "1m", "default"),
        ("outbox.metrics_port", "none", "default"),
        ("outbox.metrics_host", "127.0.0.1", "default"),
        ("outbox.log_level", "info", "default"),
        ("outbox.log_format", "text", "default"),
        ("outbox.polling.strategy", "batch_fill", "default"),
        ("outbox.polling.min_interval", "1s", "default"),
        ("outbox.polling.max_interval", "8s", "default"),
        ("outbox.polling.batch_size", "10", "default"),
        ("outbox.polling.hold", "0s", "default"),
    ]
    assert [row for row in shown if row[0].startswith("worker.")] == [
        ("worker.queue", "sqlite:///jobs.db", "pollux.toml"),
        ("worker.concurrency", "4", "argument"),
        ("worker.prefetch", "none", "default"),
        ("worker.lease", "1m30s", "pollux.toml"),
        ("worker.grace", "30s", "default"),
        ("worker.timeout", "none", "default"),
        ("worker.long_ceiling", "1m", "default"),
        ("worker.metrics_port", "none", "default"),
        ("worker.metrics_host", "127.0.0.1", "default"),
        ("worker.log_level", "info", "default"),
        ("worker.log_format", "text", "default"),
        ("worker.polling.strategy", "adaptive", "default"),
        ("worker.polling.min_interval", "100ms", "default"),
        (
            "worker.polling.max_interval",
            "30s",
            "environment variable POLLUX_POLLING_MAX_INTERVAL_MS",
        ),
        ("worker.polling.backoff_multiplier", "2.0", "default"),
        ("worker.polling.hold", "500ms", "pollux.toml"),
    ]
    assert settings.origins()["worker.lease"] == "pollux.toml"
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


# Secrets.

WITH_PASSWORD = "postgresql://app:hunter2@db:5432/jobs?queue=mail"
WITHOUT = "postgresql://app:***@db:5432/jobs?queue=mail"


def test_a_password_is_kept_but_not_shown(folder: Folder) -> None:
    settings = folder.load(f'[worker]\nqueue = "{WITH_PASSWORD}"')
    assert settings.worker.queue == WITH_PASSWORD
    assert row(settings, "worker.queue").value == WITHOUT
    assert "hunter2" not in f"{settings!r} {settings} {settings.worker!r} {settings.table()}"


@pytest.mark.parametrize(
    ("toml", "environ", "overrides"),
    [
        ("[worker]\nqueue = 'app:hunter2@db'", {}, {}),
        ("[worker]\nqueeu = 'redis://:hunter2@db/0'", {}, {}),
        ("[worker]\nlease = 'redis://:hunter2@db/0'", {}, {}),
        ("[worker]\nqueue = ['redis://:hunter2@db/0']", {}, {}),
        ("[worker]\nqueue = {url = 'redis://:hunter2@db/0'}", {}, {}),
        ("[worker]\npassword = 'hunter2'", {}, {}),
        ("", {"POLLUX_WORKER_LEASE": "redis://:hunter2@db/0"}, {}),
        ("", {"POLLUX_QUEUES": "redis://:hunter2@db/0"}, {}),
        ("", {"POLLUX_API_TOKEN": "hunter2"}, {}),
        ("", {}, {"worker.queue": "postgresql:/app:hunter2@db"}),
        ("", {}, {"worker.polling.min_interval": "redis://:hunter2@db/0"}),
    ],
)
def test_no_error_shows_a_password(
    folder: Folder, toml: str, environ: dict[str, str], overrides: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        folder.load(toml, environ, overrides)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (WITH_PASSWORD, WITHOUT),
        ("redis://:pw@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("postgresql://u:p@ss/w:rd@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:forgotten", "postgresql://u:***"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("az://box/jobs?sig=abc", "az://box/jobs?sig=***"),
        (
            "postgresql://h/d?listen=postgresql://u:p@g/d",
            "postgresql://h/d?listen=postgresql://u:***@g/d",
        ),
        (
            "postgresql://u:p@h/d?listen=postgresql%3A%2F%2Fu%3Ap%40g%2Fd%3Fx%3D1&queue=a",
            "postgresql://u:***@h/d?listen=postgresql://u:***@g/d%3Fx=1&queue=a",
        ),
        (
            "postgresql://h/d?listen=host%3Dg+password%3Dp",
            "postgresql://h/d?listen=host=g%20password=***",
        ),
        ("https://token@controller/jobs", "https://***@controller/jobs"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("memory://", "memory://"),
    ],
)
def test_secrets_are_hidden_and_the_rest_is_not(url: str, expected: str) -> None:
    assert without_secrets(url) == expected
    assert without_secrets(expected) == expected


# Strategies as tables.

lengths = st.floats(1e-9, 1e9)
holds = st.floats(0, 1e6)


@st.composite
def any_strategy(draw: st.DrawFn) -> Strategy:
    floor, ceiling = sorted([draw(lengths), draw(lengths)])
    match draw(st.sampled_from(sorted(STRATEGIES))):
        case "fixed":
            return Fixed(draw(lengths), hold=draw(holds))
        case "adaptive":
            multiplier = draw(st.floats(1, 1e308, exclude_min=True))
            return Adaptive(floor, ceiling, multiplier=multiplier, hold=draw(holds))
        case "batch_fill":
            return BatchFill(floor, ceiling, batch=draw(st.integers(1, 10**18)), hold=draw(holds))
        case "ewma":
            waits = sorted(draw(st.lists(lengths, min_size=5, max_size=5)))
            very_high, high, medium, low, idle = waits
            return Ewma(
                idle=idle,
                low=low,
                medium=medium,
                high=high,
                very_high=very_high,
                alpha=draw(st.floats(0, 1, exclude_min=True)),
                drop_after=draw(st.integers(1, 10**9)),
                half_life=draw(lengths),
                held=draw(st.booleans()),
            )
        case "worth":
            if draw(st.booleans()):
                return Worth.latency(mean=2 * ceiling, floor=floor, ceiling=ceiling)
            costs = st.floats(1e-9, 1e9)
            return Worth(poll_cost=draw(costs), wait_cost=draw(costs), floor=floor, ceiling=ceiling)
        case other:
            raise NotImplementedError(f"say how to draw {other}")


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "pollux.toml"


@given(strategy=any_strategy())
@example(strategy=Adaptive())
@example(strategy=Fixed(0, hold=20))
@example(strategy=Adaptive("1us", 1e9 / 7, multiplier=1e300))
@example(strategy=Ewma.high_volume(held=True))
def test_the_table_of_a_strategy_gives_it_again(table_file: Path, strategy: Strategy) -> None:
    table_file.write_text(polling_table(strategy), encoding="utf-8")
    assert load(table_file, {}).worker.polling == strategy


def test_the_table_of_a_strategy_reads_well() -> None:
    assert polling_table(Adaptive("100ms", "30s")) == (
        "[worker.polling]\n"
        'strategy = "adaptive"\n'
        'min_interval = "100ms"\n'
        'max_interval = "30s"\n'
        "backoff_multiplier = 2.0\n"
        'hold = "0s"\n'
    )
    assert polling_table(Fixed(), "outbox.polling").startswith("[outbox.polling]\n")


def test_a_strategy_that_settings_do_not_know_has_no_table() -> None:
    @dataclasses.dataclass(frozen=True, init=False)
    class Mine(Fixed):
        pass

    with pytest.raises(ConfigError, match="cannot be written as settings"):
        polling_table(Mine())


# The reference page.


def test_the_documented_keys_are_complete(folder: Folder) -> None:
    rows = documented_keys()
    for name, strategy in STRATEGIES.items():
        goals = GOALS.get(name, {})
        ours = {key.replace("worker.", "outbox."): goal for key, goal in goals.items()}
        chosen = {"worker.polling.strategy": name, "outbox.polling.strategy": name, **goals, **ours}
        shown = folder.load(overrides=chosen).table()
        documented = [each for each in rows if each.strategy in {"", name}]
        assert [each.key for each in documented] == [each.key for each in shown]
        of_worker = [each for each in documented if each.key.startswith("worker.")]
        parameters = [each for each in of_worker if each.strategy]
        assert len(parameters) == len(strategy.settings)
        defaults = {each.key: each.value for each in shown if each.key.count(".") > 1}
        for each in parameters:
            assert each.key in chosen or each.default == defaults[each.key]
    for each in rows:
        assert each.kind
        assert each.meaning, f"{each.key} ({each.strategy}) is documented without a meaning"


def test_every_documented_variable_works(folder: Folder) -> None:
    for each in documented_keys():
        if each.default == "none":
            continue
        environ = {each.variable: each.default}
        polling = "POLLUX_OUTBOX_POLLING" if each.key.startswith("outbox.") else "POLLUX_POLLING"
        if each.strategy:
            environ[f"{polling}_STRATEGY"] = each.strategy
        if each.strategy == "worth":
            environ[f"{polling}_P95_WAIT"] = "2s"
        origin = folder.load("", environ).origins()[each.key]
        assert origin == f"environment variable {each.variable}"


def test_a_strategy_is_found_by_its_name() -> None:
    for name in sorted(set(STRATEGIES) - set(GOALS)):
        assert strategy_named(name) == STRATEGIES[name]()
    with pytest.raises(ConfigError, match=r"^poll_cost = None and no other goal; give"):
        strategy_named("worth")
    with pytest.raises(ConfigError, match=r"^strategy = 'adaptve' must be .*'adaptive'\?$"):
        strategy_named("adaptve")


def test_every_strategy_is_registered_by_its_name() -> None:
    assert {name: each.name for name, each in STRATEGIES.items()} == {n: n for n in STRATEGIES}
    assert {"adaptive", "fixed", "batch_fill", "ewma", "worth"} <= set(STRATEGIES)
