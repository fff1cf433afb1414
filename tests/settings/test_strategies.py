"""Strategies in settings: over layers, as tables, in the reference; and the lone poll_interval."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.core.strategies.worth import Worth
from pollwise.errors import ConfigError
from pollwise.settings import (
    STRATEGIES,
    SettingRow,
    documented_keys,
    load,
    polling_table,
    strategy_named,
)
from pollwise.settings.keys import polling_tables
from pollwise.settings.strategies import parameters
from tests.settings.folder import GOALS, Folder, goals_of, unused

# Strategies over layers.


def test_parameters_without_a_strategy_are_those_of_adaptive(folder: Folder) -> None:
    assert folder.load("[worker.polling]\nmax_interval = 9").worker.polling == Adaptive(
        max_interval=9
    )
    assert folder.refusal("[worker.polling]\ninterval = 9") == (
        "worker.polling.interval = 9 (pollwise.toml) belongs to strategy fixed, but the strategy "
        "is "
        'adaptive (default); leave it out, or set strategy = "fixed"'
    )


def test_another_strategy_in_a_higher_layer_leaves_lower_parameters_unused(folder: Folder) -> None:
    toml = '[worker.polling]\nstrategy = "adaptive"\nmin_interval_ms = 50\nhold = 3'
    settings = folder.load(toml, {"POLLWISE_POLLING_STRATEGY": "fixed"})
    assert settings.worker.polling == Fixed(hold=3)
    assert unused(settings) == [
        SettingRow("worker.polling.min_interval", "50ms", "pollwise.toml", used=False)
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
        {"POLLWISE_POLLING_BACKOFF_MULTIPLIER": "3"},
        {"worker.polling.strategy": "ewma", "worker.polling.alpha": "0.5"},
    )
    assert settings.worker.polling == Ewma(alpha=0.5)
    assert [each.key for each in unused(settings)] == [
        "worker.polling.min_interval",
        "worker.polling.backoff_multiplier",
    ]


def test_a_file_may_keep_the_parameters_of_two_strategies(folder: Folder) -> None:
    both = '[worker.polling]\nstrategy = "fixed"\ninterval_ms = 250\nbackoff_multiplier = 3'
    with pytest.warns(UserWarning, match="has no effect") as caught:
        settings = folder.load(both)
    assert settings.worker.polling == Fixed("250ms")
    assert [each.key for each in unused(settings)] == ["worker.polling.backoff_multiplier"]
    assert [str(each.message) for each in caught] == [
        "worker.polling.backoff_multiplier = 3 (pollwise.toml) has no effect: the strategy is fixed"
    ]


def test_a_parameter_of_another_strategy_above_is_refused(folder: Folder) -> None:
    fixed = '[worker.polling]\nstrategy = "fixed"\n'
    above = folder.refusal(fixed, {"POLLWISE_POLLING_MIN_INTERVAL_MS": "5"})
    assert above.startswith(
        "worker.polling.min_interval_ms = '5' "
        "(environment variable POLLWISE_POLLING_MIN_INTERVAL_MS) "
        "belongs to strategy adaptive, batch_fill, freshness and worth, "
        "but the strategy is fixed (pollwise.toml)"
    )


# The lone poll_interval of old.

SECONDS = "and means 0.25 seconds, as a number without a unit does"


@pytest.mark.parametrize(
    ("toml", "environ", "overrides", "instead"),
    [
        (
            "[worker]\npoll_interval = 0.25",
            {},
            {},
            f'{SECONDS}; write [worker.polling] with strategy = "fixed" and interval = 0.25',
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
            {"POLLWISE_POLL_INTERVAL_MS": "250"},
            {},
            "set POLLWISE_POLLING_STRATEGY=fixed and POLLWISE_POLLING_INTERVAL_MS=250",
        ),
        (
            "",
            {"POLLWISE_POLL_INTERVAL": "0.25"},
            {},
            f"{SECONDS}; set POLLWISE_POLLING_STRATEGY=fixed and POLLWISE_POLLING_INTERVAL=0.25",
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
    assert str(warning.message).partition("is deprecated")[2].lstrip("; ").strip() == instead
    assert warning.filename == inspect.getfile(Folder), "it points at who loads"


@pytest.mark.parametrize("strategy", ["adaptive", "fixed"])
def test_poll_interval_beside_a_strategy_is_refused(folder: Folder, strategy: str) -> None:
    toml = f'[worker]\npoll_interval = 1\n[worker.polling]\nstrategy = "{strategy}"'
    assert folder.refusal(toml) == (
        f"worker.poll_interval = 1 (pollwise.toml) and worker.polling.strategy = '{strategy}' "
        "(pollwise.toml) contradict each other; keep one"
    )


@pytest.mark.parametrize("unit", ["_seconds", "_s", "_sec"])
def test_a_key_in_seconds_never_suggests_one_in_milliseconds(folder: Folder, unit: str) -> None:
    for key, meant in (
        ("poll_interval", "worker.polling.interval"),
        ("polling.min_interval", "worker.polling.min_interval"),
        ("lease", "worker.lease"),
    ):
        refusal = folder.refusal(f"[worker]\n{key}{unit} = 5")
        assert f"did you mean {meant}? A number is in seconds there" in refusal
        assert "_ms" not in refusal
        (folder.path / "pollwise.toml").unlink()
    variable = f"POLLWISE_POLL_INTERVAL{unit}".upper()
    refusal = folder.refusal(environ={variable: "5"})
    assert "did you mean POLLWISE_POLLING_INTERVAL? A number is in seconds there" in refusal
    assert "concurrency?" in folder.refusal(f"[worker]\nconcurrency{unit} = 5")


def test_poll_interval_beside_another_interval_is_refused(folder: Folder) -> None:
    twice = "[worker]\npoll_interval = 1\n[worker.polling]\npoll_interval_ms = 1000"
    assert folder.refusal(twice).count("contradict each other") == 1


def test_poll_interval_gives_way_to_a_strategy_in_a_higher_layer(folder: Folder) -> None:
    with pytest.warns(DeprecationWarning, match=r"worker\.poll_interval = 1"):
        settings = folder.load(
            "[worker]\npoll_interval = 1", {"POLLWISE_POLLING_STRATEGY": "adaptive"}
        )
    assert settings.worker.polling == Adaptive()
    assert [each.key for each in unused(settings)] == ["worker.polling.interval"]


def test_a_bad_poll_interval_is_refused_not_warned_about(folder: Folder) -> None:
    with warnings.catch_warnings(record=True) as caught:
        refusal = folder.refusal("[worker]\npoll_interval = 'soon'")
    assert refusal.startswith("worker.poll_interval = 'soon' (pollwise.toml) is not a duration")
    assert not caught


def test_adaptive_in_an_outbox_says_that_batch_fill_is_another_rule(folder: Folder) -> None:
    with pytest.warns(UserWarning, match='write "batch_fill"'):
        settings = folder.load('[outbox.polling]\nstrategy = "adaptive"')
    assert settings.outbox.polling == Adaptive()


OLD = {
    "QO_POLLING_STRATEGY": "fixed",
    "QO_POLLING_MIN_INTERVAL_MS": "50",
    "QO_POLLING_UNKNOWN": "1",
    "ADAPTIVE_POLLING_ENABLED": "true",
    "POLL_INTERVAL_SECONDS": "30",
    "HEARTBEAT_TIMEOUT_SECONDS": "120",
    "NAMASTACK_OUTBOX_POLLING_TRIGGER": "adaptive",
    "NAMASTACK_OUTBOX_POLLING_FIXED_INTERVAL": "2s",
    "NAMASTACK_OUTBOX_POLLING_BATCHSIZE": "10",
    "NAMASTACK_OUTBOX_RETRY_POLICY": "linear",
    "POLLWISE_POLLING_STRATEGY": "adaptive",
}
NO_EFFECT = "has no effect here;"


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        (
            "worker",
            [f"qo's QO_POLLING_MIN_INTERVAL_MS {NO_EFFECT} set POLLWISE_POLLING_MIN_INTERVAL_MS"],
        ),
        (
            "fleet",
            [f"Pulse's ADAPTIVE_POLLING_ENABLED {NO_EFFECT} set POLLWISE_FLEET_POLLING_ENABLED"],
        ),
        (
            "agent",
            [
                (
                    f"ADR-0007's HEARTBEAT_TIMEOUT_SECONDS {NO_EFFECT} set "
                    "POLLWISE_CONTROLLER_HEARTBEAT_TIMEOUT"
                ),
                f"ADR-0007's POLL_INTERVAL_SECONDS {NO_EFFECT} set POLLWISE_AGENT_POLL_INTERVAL",
            ],
        ),
        (
            "controller",
            [
                (
                    f"ADR-0007's HEARTBEAT_TIMEOUT_SECONDS {NO_EFFECT} set "
                    "POLLWISE_CONTROLLER_HEARTBEAT_TIMEOUT"
                ),
                (
                    f"ADR-0007's POLL_INTERVAL_SECONDS {NO_EFFECT} set "
                    "POLLWISE_CONTROLLER_POLL_INTERVAL"
                ),
            ],
        ),
        (
            "outbox",
            [
                (
                    f"Namastack's NAMASTACK_OUTBOX_POLLING_BATCHSIZE {NO_EFFECT} set "
                    "POLLWISE_OUTBOX_BATCH"
                ),
                (
                    f"Namastack's NAMASTACK_OUTBOX_POLLING_FIXED_INTERVAL {NO_EFFECT} set "
                    "POLLWISE_OUTBOX_POLLING_INTERVAL"
                ),
                (
                    f"Namastack's NAMASTACK_OUTBOX_POLLING_TRIGGER {NO_EFFECT} set "
                    "POLLWISE_OUTBOX_POLLING_STRATEGY"
                ),
                (
                    f"Namastack's NAMASTACK_OUTBOX_RETRY_POLICY {NO_EFFECT} see the page "
                    '"Coming from Namastack Outbox"'
                ),
            ],
        ),
        (None, []),
    ],
)
def test_old_variables_are_told_once_with_the_new_name_where_they_had_an_effect(
    folder: Folder, runs: str | None, told: list[str]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = folder.load(environ=OLD, runs=runs)
    assert settings.worker.polling == Adaptive()
    assert [str(each.message).partition(" instead")[0] for each in caught] == told


def test_a_command_that_shows_settings_tells_all_old_variables(folder: Folder) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder.load(environ=OLD, runs="*")
    names = [name for name in sorted(OLD) if not name.startswith("POLLWISE")]
    unmoved = ("QO_POLLING_UNKNOWN", "QO_POLLING_STRATEGY")  # the second is set under our name
    told = [str(each.message).split()[1] for each in caught]
    assert told == [name for name in names if name not in unmoved]


# Strategies as tables.

lengths = st.floats(1e-9, 1e9)
holds = st.floats(0, 1e6)


@st.composite
def any_strategy(draw: st.DrawFn) -> Strategy:
    min_interval, max_interval = sorted([draw(lengths), draw(lengths)])
    match draw(st.sampled_from(sorted(STRATEGIES))):
        case "fixed":
            return Fixed(draw(lengths), hold=draw(holds))
        case "adaptive":
            multiplier = draw(st.floats(1, 1e308, exclude_min=True))
            return Adaptive(
                min_interval, max_interval, backoff_multiplier=multiplier, hold=draw(holds)
            )
        case "batch_fill":
            return BatchFill(
                min_interval,
                max_interval,
                hold=draw(holds),
            )
        case "freshness":
            return Freshness(
                draw(st.floats(min_interval, max_interval)), min_interval, max_interval
            )
        case "ewma":
            waits = sorted(draw(st.lists(lengths, min_size=5, max_size=5)))
            very_high, high, medium, low, idle = waits
            return Ewma(
                idle_interval=idle,
                low_interval=low,
                medium_interval=medium,
                high_interval=high,
                very_high_interval=very_high,
                alpha=draw(st.floats(0, 1, exclude_min=True)),
                drop_after=draw(st.integers(1, 10**9)),
                half_life=draw(lengths),
                held=draw(st.sampled_from([True, False, None])),
            )
        case "worth":
            if draw(st.booleans()):
                return Worth.latency(
                    mean=2 * max_interval, min_interval=min_interval, max_interval=max_interval
                )
            costs = st.floats(1e-9, 1e9)
            return Worth(
                poll_cost=draw(costs),
                wait_cost=draw(costs),
                min_interval=min_interval,
                max_interval=max_interval,
            )
        case other:
            raise NotImplementedError(f"say how to draw {other}")


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "pollwise.toml"


@given(strategy=any_strategy())
@example(strategy=Adaptive())
@example(strategy=Fixed(0, hold=20))
@example(strategy=Adaptive("1us", 1e9 / 7, backoff_multiplier=1e300))
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


@pytest.mark.filterwarnings("ignore:outbox.polling.strategy = 'adaptive'")
def test_the_documented_keys_are_complete(folder: Folder) -> None:
    rows = documented_keys()
    for name, strategy in STRATEGIES.items():
        chosen: dict[str, object] = {}
        for table in polling_tables():
            chosen |= {f"{table}.strategy": name, **goals_of(name, table)}
        shown = folder.load(overrides=chosen).table()
        documented = []
        for row in rows:
            documented.append(row.key)
            table, _, last = row.key.rpartition(".")
            if table in polling_tables() and last == "strategy":
                documented += [f"{table}.{each.key}" for each in parameters(strategy)]
        assert documented == [each.key for each in shown]
        defaults = {each.key: each.value for each in shown}
        for each in parameters(strategy):
            for table in polling_tables():
                key = f"{table}.{each.key}"
                assert key in chosen or each.default_text == defaults[key]
    for row in rows:
        assert row.kind
        assert row.meaning, f"{row.key} is documented without a meaning"


def test_every_parameter_has_a_description_of_its_own() -> None:
    for name, strategy in STRATEGIES.items():
        meanings = [each.meaning for each in parameters(strategy)]
        assert all(meanings), f"a parameter of {name} has no line in its docstring"
        assert len(set(meanings)) == len(meanings), f"two parameters of {name} share a line"


@pytest.mark.filterwarnings("ignore:outbox.polling.strategy = 'adaptive'")
def test_every_documented_variable_works(folder: Folder) -> None:
    for row in documented_keys():
        if row.default != "none":
            check_variable(folder, row.key, row.variable, row.default, {})
        table, _, last = row.key.rpartition(".")
        if table not in polling_tables() or last != "strategy":
            continue
        for name, strategy in STRATEGIES.items():
            for each in parameters(strategy):
                key = f"{table}.{each.key}"
                variable = row.variable.removesuffix("STRATEGY") + each.key.upper()
                overrides = {f"{table}.strategy": name, **goals_of(name, table)}
                overrides.pop(key, None)
                if each.default_text != "none":
                    check_variable(folder, key, variable, each.default_text, overrides)


def check_variable(
    folder: Folder, key: str, variable: str, value: str, overrides: dict[str, object]
) -> None:
    origin = folder.load("", {variable: value}, overrides).origins()[key]
    assert origin == f"environment variable {variable}"


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
