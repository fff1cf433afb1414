"""Settings: defaults < a preset < pollwise.toml < what was changed at run time < POLLWISE_*
variables < arguments.

    settings = load()
    settings.worker.concurrency     # 8
    settings.worker.polling         # Adaptive(min_interval=0.1, max_interval=5.0, …)
    settings.table()                # every value and where it came from

Everything is read when `load` is called, never at import. Wrong settings are refused before
anything starts: the error has the key, the value, its origin and what to write instead. Passwords
are never shown.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pollwise.errors import ConfigError
from pollwise.settings.fleet import FleetSettings
from pollwise.settings.groups import GroupPolling, groups_in, is_of_group, resolve_groups
from pollwise.settings.keys import DocumentedKey, documented_keys, polling_tables
from pollwise.settings.layers import Layer, LayerReader
from pollwise.settings.models import SettingRow, Settings, plain_keys
from pollwise.settings.old_variables import old_variables
from pollwise.settings.polling import Polling, resolve
from pollwise.settings.presets import chosen_preset
from pollwise.settings.sections import (
    AgentSettings,
    CodecSettings,
    ControllerSettings,
    OutboxSettings,
    WebSettings,
    WorkerSettings,
)
from pollwise.settings.strategies import STRATEGIES, polling_table, strategy_named

__all__ = [
    "STRATEGIES", "AgentSettings", "CodecSettings", "ControllerSettings", "DocumentedKey",
    "FleetSettings", "GroupPolling", "OutboxSettings", "SettingRow", "Settings", "WebSettings",
    "WorkerSettings",
    "documented_keys", "load", "polling_table", "strategy_named",
]  # fmt: skip


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    stored: Mapping[str, object] | None = None,
    stored_in: str = "the fleet's store",
    groups: Iterable[str] = (),
    application: Mapping[str, object] | None = None,
    application_name: str = "the application",
    runs: str | None = None,
) -> Settings:
    """Read and check all layers; a ConfigError lists everything that is wrong.

    file: the settings file; without it the one in POLLWISE_CONFIG, else ./pollwise.toml if it
        exists. A named file must exist.
    environ: the environment variables; by default those of the process.
    overrides: arguments by key: {"worker.polling.min_interval": "50ms"}. None is a flag that was
        not used.
    stored: values that were changed while a fleet ran, by key.
    stored_in: where they are stored, for error messages.
    groups: names of target groups, to which variables in capitals are matched.
    application, application_name: what a framework's own settings say, above the file, and what
        these settings are called in errors.
    runs: the section of what this process runs. It warns of variables of other projects that had an
        effect on such a process; "*" warns of all.
    """
    environ = os.environ if environ is None else environ
    intake = LayerReader()
    layers = [
        intake.file(None if file is None else Path(file), environ),
        intake.tree(application or {}, application_name),
        intake.tree(stored or {}, f"changed at run time, kept in {stored_in}"),
    ]
    layers.append(intake.environment(environ, [*groups_in(layers), *groups]))
    layers.append(intake.arguments(overrides or {}))
    layers.insert(0, intake.tree(*chosen_preset(layers)))
    pollings = {table: resolve(table, layers) for table in polling_tables()}
    problems = [*intake.problems, *(each for it in pollings.values() for each in it.problems)]
    settings = _settings(layers, pollings, problems)
    if problems or settings is None:
        raise ConfigError(_report(problems))
    if runs is not None:
        intake.notes.extend(old_variables(environ, runs))
    for deprecation in intake.deprecations:
        warnings.warn(deprecation, DeprecationWarning, stacklevel=2)
    for note in (*intake.notes, *(each for it in pollings.values() for each in it.notes)):
        warnings.warn(note, UserWarning, stacklevel=2)
    return settings


def _settings(
    layers: Sequence[Layer], pollings: Mapping[str, Polling], problems: list[str]
) -> Settings | None:
    """Merge and check the layers; adds what is wrong to `problems`."""
    keys = plain_keys()
    plain = [
        {key: given for key, given in layer.items() if key in keys or _is_unknown(key, pollings)}
        for layer in layers
    ]
    used = {key: given for layer in plain for key, given in layer.items()}
    values = [{key: given.value for key, given in layer.items()} for layer in plain]
    strategies: dict[str, object] = {}
    unused: list[SettingRow] = []
    for table, polling in pollings.items():
        used |= polling.used
        unused += polling.unused
        if polling.strategy is not None:
            strategies[table] = polling.strategy
    paces = pollings["fleet.polling"].strategy
    groups, of_groups = resolve_groups(layers, paces, problems)
    used |= of_groups
    strategies["fleet.groups"] = groups
    origins = {key: given.origin for key, given in used.items()}
    try:
        return Settings.from_layers(list(map(_nested, (*values, strategies))), origins, unused)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_input=False):
            key = ".".join(map(str, each["loc"]))
            what = each.get("ctx", {}).get("error", each["msg"])
            problems.append(f"{used.get(key, key)} {what}")
    return None


def _is_unknown(key: str, pollings: Mapping[str, Polling]) -> bool:
    return key.rpartition(".")[0] not in pollings and not is_of_group(key)


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    """{"worker.lease": "60s"} -> {"worker": {"lease": "60s"}}; only the section is split off."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return nested


def _report(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join([f"{len(problems)} settings are wrong:", *(f"- {each}" for each in problems)])
