"""The strategies that settings can name, and their parameters as settings call them.

All of it is read off the classes: a new strategy is one more class in `STRATEGIES`.
"""

from __future__ import annotations

import inspect
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
from pollwise.settings.values import (
    Maybe,
    Number,
    Reader,
    Span,
    Text,
    Truth,
    Whole,
    Word,
    quoted,
    shown,
)

STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType(
    {each.name: each for each in (Adaptive, Fixed, BatchFill, Ewma, Freshness, Worth)}
)
#: What a lone `poll_interval` stands for.
FIXED_STRATEGY = Fixed.name


@dataclass(frozen=True)
class Parameter:
    """One parameter of a strategy: a key in settings, and an argument of its constructor."""

    key: str
    reader: Reader
    default: Any  # `inspect.Parameter.empty` where the strategy must be told
    meaning: str

    @property
    def default_text(self) -> str:
        if self.default is inspect.Parameter.empty:
            return "required"
        return self.reader.text(self.reader.read(self.default))


@cache
def parameters(strategy: type[Strategy]) -> tuple[Parameter, ...]:
    """The parameters of a strategy, in its own order."""
    takes = inspect.signature(strategy).parameters
    hints = get_type_hints(strategy.__init__)
    meanings = _meanings(strategy)
    return tuple(
        Parameter(key, _reader(hints[key]), each.default, meanings[key])
        for key, each in takes.items()
    )


def parameter_names(strategy: type[Strategy]) -> tuple[str, ...]:
    """The keys of a strategy in settings: the arguments of its constructor."""
    return tuple(inspect.signature(strategy).parameters)


def strategy_named(name: str) -> Strategy:
    """The strategy of this name, with its defaults."""
    try:
        found = Word(tuple(STRATEGIES)).read(name)
    except ValueError as error:
        problem = f"strategy = {shown(name)} {error}"
    else:
        return STRATEGIES[found]()
    raise ConfigError(problem)


def strategies_with(key: str) -> list[str]:
    """The names of the strategies that have a parameter of this name."""
    return [name for name, strategy in STRATEGIES.items() if key in parameter_names(strategy)]


def polling_table(strategy: Strategy, table: str = "worker.polling") -> str:
    """The TOML table that makes `load` give this strategy again."""
    if STRATEGIES.get(strategy.name) is not type(strategy):
        raise ConfigError(
            f"{strategy!r} cannot be written as settings, which know {', '.join(STRATEGIES)}; "
            "give it to the worker in code: WorkerRunOptions(polling=…)"
        )
    lines = [f"[{table}]", f"strategy = {quoted(strategy.name)}"]
    for each in parameters(type(strategy)):
        value = getattr(strategy, each.key)
        if value is not None:  # TOML has no word for what is not given
            lines.append(f"{each.key} = {each.reader.toml(value)}")
    return "\n".join(lines) + "\n"


def _reader(hint: Any) -> Reader:
    """The reader for a constructor's annotation; only a duration may be a timedelta."""
    options = get_args(hint) or (hint,)
    if timedelta in options:
        reader: Reader = Span()
    elif bool in options:
        reader = Truth()
    elif float in options:
        reader = Number()
    elif int in options:
        reader = Whole()
    else:
        reader = Text()
    return Maybe(reader) if NoneType in options else reader


def _meanings(strategy: type[Strategy]) -> dict[str, str]:
    """What the class says about each argument: the `name: meaning` lines of its docstring."""
    meanings = dict.fromkeys(parameter_names(strategy), "")
    about: list[str] = []
    lines = (inspect.getdoc(strategy) or "").splitlines()
    for line in lines:
        names, colon, rest = line.partition(": ")
        listed = names.split(", ")
        if colon and set(listed) <= set(meanings):
            about, line = listed, rest
        elif not line.strip():
            about = []
        for name in about:
            meanings[name] = f"{meanings[name]} {line.strip()}".strip()
    # An argument without a line of its own is what the first line is about.
    return {name: meaning or lines[0] for name, meaning in meanings.items()}
