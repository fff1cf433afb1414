"""[fleet], [fleet.polling] and groups: layers, what was changed at run time, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError
from pollwise.fleet.control import failure_rules, paces
from pollwise.fleet.engine.failures import FailureDecision, FailureRules
from pollwise.fleet.engine.options import MAX_CONCURRENCY
from pollwise.fleet.targets import ProbeContext, Target
from pollwise.settings import Settings, load
from pollwise.settings.fleet import MAX_POLLS
from pollwise.settings.groups import unknown_groups

STORE = "sqlite:///fleet.db"
Given = Callable[..., Settings]


async def probe(target: Target, context: ProbeContext) -> str:
    return ""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """Settings from a file's text, the environment, and what was stored."""
    monkeypatch.chdir(tmp_path)

    def given(text: str = "", environ: dict[str, str] | None = None, **stored: object) -> Settings:
        Path("pollwise.toml").write_text(text)
        changes = {key.replace("__", "."): value for key, value in stored.items()}
        return load(None, environ or {}, stored=changes, stored_in=STORE)

    return given


def origins(found: Settings) -> dict[str, tuple[str, str]]:
    return {row.key: (row.value, row.origin) for row in found.table() if row.key[:5] == "fleet"}


def test_the_defaults_are_those_of_the_fleet(settings: Given) -> None:
    fleet = settings().fleet
    assert fleet.polling == Freshness("10s", "5s", "5m")
    assert (fleet.polling_enabled, fleet.concurrency, fleet.per_host) == (True, 64, 4)
    assert (fleet.budget, fleet.store, fleet.lease) == (None, None, 30.0)
    assert MAX_POLLS == MAX_CONCURRENCY
    assert paces(fleet) == {None: paces(fleet)[None]}


def test_each_layer_beats_the_one_below(settings: Given) -> None:
    text = '[fleet.polling]\nbase_interval = "20s"\nmin_interval = "2s"\nmax_interval = "2m"\n'
    found = settings(
        text,
        {"POLLWISE_FLEET_POLLING_MAX_INTERVAL_MS": "240000"},
        fleet__polling__min_interval="3s",
        fleet__polling__max_interval="3m",
    )
    assert found.fleet.polling == Freshness("20s", "3s", "4m")
    assert origins(found)["fleet.polling.base_interval"] == ("20s", "pollwise.toml")
    assert origins(found)["fleet.polling.min_interval"] == (
        "3s", f"changed at run time, kept in {STORE}"
    )  # fmt: skip
    assert origins(found)["fleet.polling.max_interval"] == (
        "4m", "environment variable POLLWISE_FLEET_POLLING_MAX_INTERVAL_MS"
    )  # fmt: skip


def test_off_every_target_is_polled_at_its_base_interval_exactly(settings: Given) -> None:
    fleet = settings('[fleet.polling]\nenabled = false\nbase_interval = "20s"').fleet
    pace = paces(fleet)[None]
    assert pace.of(Target("a", probe)) == Fixed("20s")
    assert pace.of(Target("b", probe, base_interval="7s")) == Fixed("7s")
    assert pace.of(Target("c", probe, min_interval="30s", max_interval="60s")) == Fixed("30s")
    assert pace.of(Target("d", probe, "90s")) == Fixed("90s")
    assert pace.of(Target("e", probe, Freshness("15s"))) == Fixed("15s")


def test_a_group_goes_its_own_way_so_that_a_rollout_can_be_staged(settings: Given) -> None:
    text = (
        "[fleet.polling]\nenabled = false\n"
        '[fleet.groups.canary.polling]\nenabled = true\nmax_interval = "1m"\n'
        '[fleet.groups."eu.west".polling]\nmin_interval_ms = 2500\n'
    )
    found = settings(text)
    by_group = paces(found.fleet)
    assert by_group["canary"].of(Target("a", probe)) == Freshness("10s", "5s", "1m")
    assert by_group["eu.west"].of(Target("a", probe)) == Fixed("10s")
    assert not by_group["eu.west"].enabled
    assert origins(found)["fleet.groups.eu.west.polling.min_interval"] == ("2.5s", "pollwise.toml")


def test_the_environment_reaches_groups_that_are_known_and_others(settings: Given) -> None:
    found = settings(
        '[fleet.groups."eu-West".polling]\nenabled = false',
        {
            "POLLWISE_FLEET_GROUPS_EU_WEST_POLLING_ENABLED": "true",
            "POLLWISE_FLEET_GROUPS_SHOP_POLLING_BASE_INTERVAL_MS": "9000",
        },
    )
    assert found.fleet.groups["eu-West"].enabled is True
    assert found.fleet.groups["shop"].base_interval == 9.0


def test_stored_changes_of_a_group_apply(settings: Given) -> None:
    found = settings("", None, fleet__groups__shop__polling__enabled=False)
    assert paces(found.fleet)["shop"].enabled is False
    assert "kept in" in origins(found)["fleet.groups.shop.polling.enabled"][1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[fleet.polling]\nmin_intervall = 1", "did you mean fleet.polling.min_interval?"),
        ("[fleet.polling]\nenabld = 1", "did you mean fleet.polling.enabled?"),
        (
            "[fleet.polling]\nenabled = 'perhaps'",
            "fleet.polling.enabled = 'perhaps' (pollwise.toml)",
        ),
        (
            "[fleet.polling]\nmin_interval = '10m'",
            "is above fleet.polling.max_interval = 5m (default)",
        ),
        ("[fleet]\nbudget = 'much'", "fleet.budget = 'much' (pollwise.toml) must be a number"),
        ("[fleet]\nstore = 'fleet.db'", "is not a fleet URL; give one like 'sqlite:///fleet.db'"),
        ("[fleet]\nlease = '10ms'", "must be a duration from 1s"),
        (
            "[fleet.groups.a.polling]\nmin_interval = '2m'\nmax_interval = '1m'",
            (
                "fleet.groups.a.polling.min_interval = '2m' (pollwise.toml) is above "
                "fleet.groups.a.polling.max_interval = '1m' (pollwise.toml); lower min_interval"
            ),
        ),
        (
            "[fleet.groups.a.polling]\nbase_interval = '1h'",
            (
                "fleet.groups.a.polling.base_interval = '1h' (pollwise.toml) must be from "
                "min_interval = 5s (as for all targets) to max_interval = 5m (as for all targets)"
            ),
        ),
        (
            "[fleet.groups.a.polling]\nstrategy = 'fixed'",
            "[fleet.groups.NAME.polling] has enabled, base_interval, min_interval, max_interval",
        ),
        ("[fleet.groups.a.polling]\nenabled_ms = 1", "is not a setting"),
        ("[fleet.groups.a]\nenabled = true", "is not a setting; [fleet.groups.NAME.polling] has"),
        ("[fleet.groups.a.polling]\nbase_interval = 'x'", "base_interval = 'x' (pollwise.toml)"),
    ],
)
def test_bad_input_is_refused_with_its_key_value_and_place(
    settings: Given, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as told:
        settings(text)
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        (["shop", "rest"], "did you mean 'shop'?"),
        (["north", "rest"], "there are 'north', 'rest'"),
        ([f"g{number:02}" for number in range(12)], "'g09', …"),
        ([], "no target is in any group"),
    ],
)
def test_an_unknown_group_is_reported_with_its_origin(
    settings: Given, known: list[str], hint: str
) -> None:
    found = settings("[fleet.groups.shp.polling]\nenabled = false\nmax_interval = '1m'\n")
    [said] = unknown_groups(found.fleet.groups, known, found.origins())
    assert said.startswith(
        "[fleet.groups.shp.polling] (pollwise.toml): no target is in a group 'shp'; "
    )
    assert hint in said
    assert unknown_groups(found.fleet.groups, ["shp"], found.origins()) == []


@pytest.mark.parametrize("url", ["hunter2@h", "postgres//u:hunter2@h/d", "http:/u:hunter2@h"])
@pytest.mark.parametrize("key", ["fleet.store", "worker.queue", "outbox.database"])
def test_an_invalid_url_shows_nothing_before_its_at(key: str, url: str) -> None:
    variable = "POLLWISE_" + key.replace(".", "_").upper()
    for environ, overrides in (({variable: url}, {}), ({}, {key: url})):
        with pytest.raises(ConfigError) as told:
            load(environ=environ, overrides=overrides)
        assert "hunter2" not in str(told.value)
        assert "'***@h" in str(told.value)


def test_a_store_s_password_is_not_shown(settings: Given) -> None:
    found = settings("[fleet]\nstore = 'postgresql://app:hunter2@db/x'")
    assert "hunter2" not in repr(found)
    assert "hunter2" not in str(origins(found))


def test_the_rules_for_failures_are_settings(settings: Given) -> None:
    assert failure_rules(settings().fleet) == FailureRules()
    text = """
    [fleet]
    confirmations = 1
    confirm_delay = "2s"
    backoff_delay = "4s"
    backoff_multiplier = 3
    backoff_jitter = 0.5
    backoff_max_delay = "2m"
    breaker_failures = 6
    breaker_delay = "20s"
    breaker_max_delay = "10m"
    dead_after = 12
    recheck = "1h"
    max_retry_after = "1m"
    """
    assert failure_rules(settings(text).fleet) == FailureRules(
        confirm=2.0,
        confirmations=1,
        breaker=Breaker(6, "20s", "10m", multiplier=3.0),
        backoff=Retry.exponential("4s", "2m", multiplier=3.0, attempts=None, jitter=0.5),
        dead_after=12,
        recheck=3600.0,
        max_retry_after=60.0,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('breaker_delay = "10m"', "fleet has breaker_max_delay = 5m, which is below breaker_delay"),
        ('backoff_max_delay = "1s"', "backoff_max_delay = 1s, which is below backoff_delay = 5s"),
        ("backoff_multiplier = 0.5", "backoff_multiplier = 0.5, which must be from 1 to 100"),
        ("backoff_jitter = 1", "backoff_jitter = 1, which must be from 0 to below 1"),
        ("confirmations = -1", "confirmations = -1 (pollwise.toml) must be a whole number"),
        ("breaker_failures = 0", "breaker_failures = 0 (pollwise.toml) must be a whole number"),
        ('preset = "puls"', "preset = 'puls' (pollwise.toml) must be one of 'pulse'; did you mean"),
        ('metrics_by = "instance"', "must be one of 'group', 'target'"),
    ],
)
def test_rules_that_do_not_fit_are_refused(settings: Given, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as failed:
        settings(f"[fleet]\n{text}")
    assert said in str(failed.value)


def test_a_preset_is_below_all_that_is_set(settings: Given) -> None:
    found = settings('[fleet]\npreset = "pulse"\n[fleet.polling]\nbase_interval = "7s"')
    fleet = found.fleet
    assert fleet.polling == Freshness("7s", "5s", "20s")
    assert (fleet.dead_after, fleet.recheck, fleet.max_staleness) == (5, 1800.0, 45.0)
    assert origins(found)["fleet.recheck"] == ("30m", "preset pulse, pollwise.toml")
    assert origins(found)["fleet.polling.base_interval"] == ("7s", "pollwise.toml")
    variables = {"POLLWISE_FLEET_PRESET": "pulse", "POLLWISE_FLEET_RECHECK": "1h"}
    fleet = settings("[fleet]\ndead_after = 7", variables).fleet
    assert (fleet.dead_after, fleet.recheck, fleet.confirmations) == (7, 3600.0, 0)


def test_pulses_delays_are_those_of_its_document(settings: Given) -> None:
    """5 s, doubled, within 20 %; the breaker opens at the third failure; dead after the fifth."""
    rules = failure_rules(settings('[fleet]\npreset = "pulse"').fleet)

    def failed(number: int, u: float = 0.5, *, permanent: bool = False) -> FailureDecision:
        return rules.failed(number, permanent=permanent, dead=False, soon=5.0, u=u)

    assert [failed(n).delay for n in (1, 2)] == [5.0, 10.0]
    assert [failed(1, u).delay for u in (0.0, 1.0)] == [4.0, 6.0]
    assert [failed(n, 0.0).delay for n in (3, 4)] == [20.0, 40.0]
    assert failed(5) == (1800.0, True)
    assert failed(1, permanent=True) == (1800.0, True)
    states = [rules.state(n, dead=False, asked=False) for n in (1, 2, 3, 4)]
    assert states == ["backing off", "backing off", "open", "open"]
