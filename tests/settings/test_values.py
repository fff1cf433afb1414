"""What settings take, what they refuse, and in which words."""

from __future__ import annotations

import re

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.settings import STRATEGIES, Settings
from pollwise.settings.keys import tables
from pollwise.settings.strategies import parameters
from pollwise.settings.values import ListReader, TextReader
from tests.settings.folder import GOALS, Folder, row

#: Every table that a file may have, as an error lists them.
TABLES = ", ".join(f"[{each}]" for each in tables())

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


@pytest.mark.parametrize(
    ("table", "key", "strategy"),
    [
        ("worker", "lease", None),
        ("worker", "grace", None),
        ("worker", "timeout", None),
        *[
            ("worker.polling", each.key, name)
            for name, strategy in STRATEGIES.items()
            for each in parameters(strategy)
            if each.reader.kind == "duration"
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
    if strategy == "freshness":
        fitting["max_interval"] = 40_000
    length = fitting.get(key, 11_000)
    twin = folder.load(overrides={**chosen, f"{table}.{key}_ms": length})
    plain = folder.load(overrides={**chosen, f"{table}.{key}": length / 1000})
    assert twin == plain
    assert twin != folder.load(overrides=chosen)
    assert row(twin, f"{table}.{key}").origin == "argument"


def test_both_forms_in_one_layer_are_refused(folder: Folder) -> None:
    assert folder.refusal('[worker.polling]\nmin_interval = "100ms"\nmin_interval_ms = 100') == (
        "worker.polling.min_interval = '100ms' (pollwise.toml) and "
        "worker.polling.min_interval_ms = 100 (pollwise.toml) contradict each other; keep one"
    )
    assert "contradict" in folder.refusal("[worker]\nlease = 5\nlease_ms = 5000\n")


def test_both_forms_in_two_layers_are_not(folder: Folder) -> None:
    settings = folder.load(
        '[worker.polling]\nmin_interval = "1s"', {"POLLWISE_POLLING_MIN_INTERVAL_MS": "200"}
    )
    assert settings.worker.polling == Adaptive("200ms")


@pytest.mark.parametrize(
    ("environ", "polling"),
    [
        ({"STRATEGY": "fixed", "INTERVAL_MS": "200"}, Fixed("200ms")),
        ({"STRATEGY": "FIXED", "INTERVAL": "2"}, Fixed(2)),
        (
            {"MIN_INTERVAL_MS": "200", "BACKOFF_MULTIPLIER": "1.5"},
            Adaptive(0.2, backoff_multiplier=1.5),
        ),
        ({"BACKOFF_MULTIPLIER": "10"}, Adaptive(backoff_multiplier=10)),
        ({"STRATEGY": "batch_fill", "MAX_INTERVAL": "25"}, BatchFill(max_interval=25)),
        ({"STRATEGY": "ewma", "HELD": "true", "DROP_AFTER": "3"}, Ewma(held=True, drop_after=3)),
        ({"STRATEGY": "ewma", "HELD": "no", "HALF_LIFE": "1m"}, Ewma(half_life=60, held=False)),
    ],
)
@pytest.mark.parametrize("prefix", ["POLLWISE_POLLING_", "POLLWISE_WORKER_POLLING_"])
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
        ("worker.metrics_host", " ", "must be text that is not empty"),
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
        assert "(pollwise.toml)" in folder.refusal(f'[{table}]\n{last} = "{value}"')


@pytest.mark.parametrize(
    ("strategy", "key", "value", "said"),
    [
        ("fixed", "interval", 0, "polls without any pause"),
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
    assert not re.search(
        r"(?<![\w.])(min_interval|max_interval|batch|idle|high|very_high) = ", refusal
    )


def test_floor_above_ceiling_names_both_keys_and_both_origins(folder: Folder) -> None:
    refusal = folder.refusal(
        "[worker.polling]\nmin_interval_ms = 9000", {"POLLWISE_POLLING_MAX_INTERVAL": "2s"}
    )
    assert refusal == (
        "worker.polling.min_interval_ms = 9000 (pollwise.toml) is above "
        "worker.polling.max_interval "
        "= '2s' (environment variable POLLWISE_POLLING_MAX_INTERVAL); "
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
            (
                "worker.concurency = 4 (pollwise.toml) is not a setting; "
                "did you mean worker.concurrency?"
            ),
        ),
        (
            "concurrency = 4",
            "concurrency = 4 (pollwise.toml) is not a setting; did you mean worker.concurrency?",
        ),
        ("[worker]\nmin_interval = 4", "did you mean worker.polling.min_interval?"),
        ("[worker.polling]\nmin_intervall_ms = 4", "did you mean worker.polling.min_interval_ms?"),
        ("[worker.polling]\nlease = 4", "did you mean worker.lease?"),
        ("[worker.polling]\nzzz = 4", "[worker.polling] has strategy, min_interval, max_interval,"),
        ("zzz = 4", f"the tables are {TABLES}"),
        ("[wroker]\nqueue = 'x'", "[wroker] (pollwise.toml) is not a table of settings"),
        ("[wroker]\nqueue = 'x'", "did you mean [worker]?"),
        ("[worker.poling]\nhold = 1", "did you mean [worker.polling]?"),
        ("[zzz]\nhold = 1", f"the tables are {TABLES}"),
        (
            "[worker]\npolling = 'fixed'",
            "worker.polling = 'fixed' (pollwise.toml) is a table; write",
        ),
        ("worker = 4", "is a table; write [worker]"),
        ("[worker.lease]\nlong = 1", "worker.lease = {…} (pollwise.toml) is a dict; give"),
        (
            "[worker.polling]\nfloor = '1s'",
            "is not a setting; [worker.polling] has strategy, min_interval",
        ),
        ("[worker.polling]\nmax_intervall_ms = 5", "did you mean worker.polling.max_interval_ms?"),
        ("[worker.polling]\nmultiplier = 3", "did you mean worker.polling.backoff_multiplier?"),
        ("[worker.polling]\nbatch_size = 3", "decided by worker.concurrency and worker.prefetch"),
        ("[outbox.polling]\nbatch-size = 3", "how much a poll claims is decided by outbox.batch"),
        ("[worker.polling]\nvery_high = 3", "did you mean worker.polling.very_high_interval?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(folder: Folder, toml: str, said: str) -> None:
    assert said in folder.refusal(toml)


def test_an_unknown_argument_is_refused_with_the_nearest(folder: Folder) -> None:
    assert folder.refusal(overrides={"worker.consurrency": 4}) == (
        "worker.consurrency = 4 (argument) is not a setting; did you mean worker.concurrency?"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("POLLWISE_POLING_STRATEGY", "did you mean POLLWISE_POLLING_STRATEGY?"),
        ("POLLWISE_POLLING_MIN_INTERVALL", "did you mean POLLWISE_POLLING_MIN_INTERVAL?"),
        ("POLLWISE_WORKER_CONCURENCY", "did you mean POLLWISE_WORKER_CONCURRENCY?"),
        ("POLLWISE_CONCURRENCY", "did you mean POLLWISE_WORKER_CONCURRENCY?"),
        ("POLLWISE_POLLING_MINIMUM_INTERVAL", "did you mean POLLWISE_POLLING_MIN_INTERVAL?"),
        ("POLLWISE_OUTBOX_POLLING_BATCH_SIZE", "how much a poll claims is decided by outbox.batch"),
        ("POLLWISE_ZZZ", "unset it; settings begin with POLLWISE_POLLING_ or POLLWISE_WORKER_"),
        ("POLLWISE_", "unset it"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(
    folder: Folder, name: str, said: str
) -> None:
    refusal = folder.refusal(environ={name: "x", "PATH": "/bin"})
    assert refusal.startswith(f"environment variable {name} = 'x' is not a setting; ")
    assert said in refusal


def test_two_variables_for_one_key_are_refused(folder: Folder) -> None:
    refusal = folder.refusal(
        environ={"POLLWISE_POLLING_HOLD": "1", "POLLWISE_WORKER_POLLING_HOLD": "2"}
    )
    assert "(environment variable POLLWISE_POLLING_HOLD) and worker.polling.hold = '2'" in refusal


def test_the_variables_of_kubernetes_are_let_be(folder: Folder) -> None:
    settings = folder.load(
        environ={
            "POLLWISE_SERVICE_HOST": "10.0.0.1",
            "POLLWISE_SERVICE_PORT": "9091",
            "POLLWISE_SERVICE_PORT_METRICS": "9091",
            "POLLWISE_PORT": "tcp://10.0.0.1:9091",
            "POLLWISE_PORT_9091_TCP": "tcp://10.0.0.1:9091",
            "POLLWISE_PORT_9091_TCP_ADDR": "10.0.0.1",
            "POLLWISE_WORKER_METRICS_PORT": "tcp://10.0.0.1:9091",
        }
    )
    assert settings == Settings()


def test_all_problems_are_told_at_once(folder: Folder) -> None:
    refusal = folder.refusal(
        "[worker]\nconcurrency = 0\nlaese = 5\n[worker.polling]\nmin_interval = 'soon'",
        {"POLLWISE_WORKER_LOG_LEVEL": "loud"},
    )
    first, *rest = refusal.splitlines()
    assert first == "4 settings are wrong:"
    assert [line.split(" = ")[0] for line in sorted(rest)] == [
        "- worker.concurrency",
        "- worker.laese",
        "- worker.log_level",
        "- worker.polling.min_interval",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('["password", "*token"]', ("password", "*token")),
        (' [ "a,b" ] ', ("a,b",)),
        ("[]", ()),
        ("[ab]*, c", ("[ab]*", "c")),
        ("password,token", ("password", "token")),
    ],
)
def test_a_list_may_be_json(text: str, found: tuple[str, ...]) -> None:
    assert ListReader(TextReader()).read(text) == found


@pytest.mark.parametrize("text", ["['a', 'b']", '["a", "b"', '["a"],', '{"a": 1}', '[""]'])
def test_a_list_that_is_almost_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|must be"):
        ListReader(TextReader()).read(text)
