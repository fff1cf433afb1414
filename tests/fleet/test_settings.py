"""[fleet], [fleet.polling] and groups: layers, what was changed at run time, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError
from pollwise.fleet.control import paces
from pollwise.fleet.engine.options import MAX_CONCURRENCY
from pollwise.fleet.targets import ProbeContext, Target
from pollwise.settings import Settings, load
from pollwise.settings.groups import unknown_groups
from pollwise.settings.sections import MAX_POLLS

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
