"""Builds a strategy from a polling table that is spread over the layers.

The highest layer that names a strategy decides. Parameters of other strategies in lower layers are
ignored, so that you can try `POLLWISE_POLLING_STRATEGY=fixed` without editing the file. In the same
layer they are ignored with a warning, because a file may keep the parameters of both strategies.
In a higher layer they are an error: somebody sets what would have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pollwise import durations
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.errors import ConfigError
from pollwise.settings.layers import GivenValue, Layer
from pollwise.settings.models import DEFAULT, SettingRow, default_strategy, plain_keys
from pollwise.settings.strategies import (
    parameter_names,
    parameters,
    strategies_with,
    strategy_class,
)
from pollwise.settings.values import shown

OUTBOX = "outbox.polling"
NOT_BATCH_FILL = (
    "doubles the pause after an empty poll and resets it when a poll finds something. To pace by "
    'how full each batch was, as Namastack\'s "adaptive" does, write "batch_fill".'
)


@dataclass
class Polling:
    """The result for one polling table. `strategy` is None if there were problems."""

    strategy: Strategy | None = None
    used: dict[str, GivenValue] = field(default_factory=dict)
    unused: list[SettingRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def resolve(table: str, layers: Sequence[Layer]) -> Polling:
    """The strategy of a polling table; `layers` begin with the lowest."""
    result = Polling()
    key = f"{table}.strategy"
    deciding = max((depth for depth, layer in enumerate(layers) if key in layer), default=-1)
    chosen = layers[deciding][key] if deciding >= 0 else None
    try:
        strategy = strategy_class(chosen.value if chosen else default_strategy(table))
    except ConfigError as error:  # of a package
        result.problems.append(f"{chosen}: {error}")
        return result
    except ValueError as error:
        result.problems.append(f"{chosen} {error}")
        return result
    name = strategy.name
    if chosen:
        result.used[key] = chosen
    if chosen and table == OUTBOX and name == Adaptive.name:
        result.notes.append(f"{chosen} {NOT_BATCH_FILL}")
    for depth, layer in enumerate(layers):
        for given in layer.values():
            inside, _, last = given.key.rpartition(".")
            if inside != table or given.key == key or given.key in plain_keys():
                continue
            if last in parameter_names(strategy):
                result.used[given.key] = given
            elif depth <= deciding:
                result.unused.append(_unused(given))
                if depth == deciding:
                    result.notes.append(f"{given} has no effect: the strategy is {name}")
            else:
                result.problems.append(_misplaced(given, name, chosen))
    if not result.problems:
        result.strategy = _built(strategy, table, result)
    return result


def _unused(given: GivenValue) -> SettingRow:
    last = given.key.rpartition(".")[2]
    owner = next(iter(strategies_with(last).values()))
    reader = next(each.reader for each in parameters(owner) if each.key == last)
    try:
        text = reader.text(reader.read(given.value))
    except ValueError:  # It is not used, so it does no harm.
        text = shown(given.value)
    return SettingRow(given.key, text, given.origin, used=False)


def _misplaced(given: GivenValue, name: str, chosen: GivenValue | None) -> str:
    owners = list(strategies_with(given.key.rpartition(".")[2]))
    listed = " and ".join([", ".join(owners[:-1]), owners[-1]] if owners[1:] else owners)
    by = chosen.origin if chosen else DEFAULT
    return (
        f"{given} belongs to strategy {listed}, but the strategy is {name} ({by}); "
        f'leave it out, or set strategy = "{owners[0]}"'
    )


def _built(strategy: type[Strategy], table: str, result: Polling) -> Strategy | None:
    arguments: dict[str, Any] = {}
    for each in parameters(strategy):
        given = result.used.get(f"{table}.{each.key}")
        if given is None:
            continue
        try:
            arguments[each.key] = each.reader.read(given.value)
        except ValueError as error:
            result.problems.append(f"{given} {error}")
    if result.problems:
        return None
    try:
        return strategy(**arguments)
    except (ValueError, TypeError) as error:  # that of a package may lack a required argument
        said = _in_settings_words(str(error), strategy, table, arguments, result.used)
        result.problems.append(said)
        return None


def _in_settings_words(
    error: str,
    strategy: type[Strategy],
    table: str,
    arguments: Mapping[str, Any],
    used: Mapping[str, GivenValue],
) -> str:
    """The error with the full key and its origin in place of each argument name."""
    words: dict[str, str] = {}
    for each in parameters(strategy):
        key = f"{table}.{each.key}"
        passed = arguments.get(each.key, each.default)
        words[f"{each.key} = {durations.shown(passed)}"] = str(
            used.get(key, f"{key} = {each.default_text} ({DEFAULT})")
        )
    longest_first = sorted(words, key=len, reverse=True)
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    said, changes = re.subn(pattern, lambda found: words[found[0]], error)
    if changes:
        return said
    return f"[{table}] {error} (given: {', '.join(map(str, used.values())) or 'nothing'})"
