"""The strategies that settings can name, and their parameters as keys.

Names, types, defaults and descriptions come from the classes. `STRATEGIES` has the classes of
Pollwise, and `ADDED` those of other packages, which are read only when a name or a key is used that
no class of Pollwise has.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_type_hints

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.core.strategies.worth import Worth
from pollwise.errors import ConfigError
from pollwise.plugins import PluginGroup
from pollwise.settings.values import (
    BooleanReader,
    ChoiceReader,
    DurationReader,
    IntegerReader,
    NumberReader,
    OptionalReader,
    TextReader,
    ValueReader,
    quoted,
    shown,
)

STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType(
    {each.name: each for each in (Adaptive, Fixed, BatchFill, Ewma, Freshness, Worth)}
)
#: Reads the name of a strategy.
NAMES = ChoiceReader(tuple(STRATEGIES))
#: The strategy that a `poll_interval` alone means.
FIXED_STRATEGY = Fixed.name


@dataclass(frozen=True)
class Parameter:
    """One parameter of a strategy: a key in settings, and an argument of its constructor."""

    key: str
    reader: ValueReader
    default: Any  # `inspect.Parameter.empty` if the strategy requires a value
    meaning: str

    @property
    def default_text(self) -> str:
        if self.default is inspect.Parameter.empty:
            return "required"
        return self.reader.text(self.reader.read(self.default))


@cache
def parameters(strategy: type[Strategy]) -> tuple[Parameter, ...]:
    """The parameters of a strategy, in the order of its constructor."""
    takes = _settings_of(strategy)
    hints = get_type_hints(strategy.__init__)
    meanings = _meanings(strategy)
    return tuple(
        Parameter(key, _reader(hints[key]), each.default, meanings[key])
        for key, each in takes.items()
    )


def parameter_names(strategy: type[Strategy]) -> tuple[str, ...]:
    """The keys of a strategy in settings."""
    return tuple(_settings_of(strategy))


def _settings_of(strategy: type[Strategy]) -> dict[str, inspect.Parameter]:
    """The arguments of its constructor, without those that only code can give."""
    takes = inspect.signature(strategy).parameters
    return {key: each for key, each in takes.items() if key not in strategy.not_settings}


def strategy_class(name: object) -> type[Strategy]:
    """The strategy with this name, of Pollwise or of a package; ValueError says what is wrong."""
    word = name.strip().lower() if isinstance(name, str) else ""
    found: type[Strategy] | None = STRATEGIES.get(word) or (ADDED.get(word) if word else None)
    if found is None:
        found = STRATEGIES[ChoiceReader((*STRATEGIES, *ADDED.names())).read(name)]
    return found


def strategy_named(name: str) -> Strategy:
    """The strategy with this name, with its defaults."""
    try:
        found = strategy_class(name)
    except ConfigError:  # of a package
        raise
    except ValueError as error:
        raise ConfigError(f"strategy = {shown(name)} {error}") from None
    return found()


def strategies_with(key: str) -> dict[str, type[Strategy]]:
    """The strategies that have this parameter; of packages, if none of Pollwise has it."""

    def having(every: Mapping[str, type[Strategy]]) -> dict[str, type[Strategy]]:
        return {name: each for name, each in every.items() if key in parameter_names(each)}

    return having(STRATEGIES) or having(ADDED.loaded())


def polling_table(strategy: Strategy, table: str = "worker.polling") -> str:
    """The TOML table from which `load` builds this strategy."""
    known = STRATEGIES.get(strategy.name) or ADDED.get(strategy.name)
    if known is not type(strategy):
        names = ", ".join((*STRATEGIES, *ADDED.names()))
        raise ConfigError(
            f"{strategy!r} cannot be written as settings, which have {names}; "
            "pass it to the worker in code: WorkerRunOptions(polling=…)"
        )
    lines = [f"[{table}]", f"strategy = {quoted(strategy.name)}"]
    for each in parameters(type(strategy)):
        value = getattr(strategy, each.key)
        if value is not None:  # TOML has no null
            lines.append(f"{each.key} = {each.reader.toml(value)}")
    return "\n".join(lines) + "\n"


def _reader(hint: Any) -> ValueReader:
    """The reader for a constructor's annotation. Only durations accept a timedelta."""
    options = get_args(hint) or (hint,)
    if timedelta in options:
        reader: ValueReader = DurationReader()
    elif bool in options:
        reader = BooleanReader()
    elif float in options:
        reader = NumberReader()
    elif int in options:
        reader = IntegerReader()
    else:
        reader = TextReader()
    return OptionalReader(reader) if NoneType in options else reader


def _meanings(strategy: type[Strategy]) -> dict[str, str]:
    """The description of each argument: the `name: meaning` lines of the class's docstring."""
    meanings = dict.fromkeys(parameter_names(strategy), "")
    about = ""
    for line in (inspect.getdoc(strategy) or "").splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name in meanings:
            about, line = name, rest
        elif not line.strip():
            about = ""
        if about:
            meanings[about] = f"{meanings[about]} {line.strip()}".strip()
    return meanings


def _wrong_class(name: str, thing: Any) -> str:
    if not (isinstance(thing, type) and issubclass(thing, Strategy)):
        return "is not a subclass of pollwise.strategies.Strategy"
    if inspect.isabstract(thing):
        return f"lacks {', '.join(sorted(thing.__abstractmethods__))}"
    if getattr(thing, "name", None) != name or not re.fullmatch("[a-z][a-z0-9_]*", name):
        said = getattr(thing, "name", None)
        return (
            f"has name = {said!r}, and its entry point {name!r}; both must be the same word of "
            "lower-case letters, digits and '_'"
        )
    try:
        keys = [each.key for each in parameters(thing) if each.default_text]
    except Exception as error:  # annotations and defaults may be anything
        return f"has parameters that settings cannot read: {type(error).__name__}: {error}"
    return "has a parameter that is called strategy" if "strategy" in keys else ""


#: Strategies that packages add.
ADDED = PluginGroup("pollwise.strategies", "strategy", lambda: STRATEGIES, _wrong_class)
