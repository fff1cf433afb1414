"""How the lab reads, names and varies strategies.

A policy is written as the strategy's name and its settings: `adaptive`, `fixed 500ms`, `adaptive
100ms 30s`, `ewma alpha=0.5 idle_interval=10s`. Its name in a report can be used as input again.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy, bounds
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.core.strategies.worth import GOALS, Worth
from pollwise.durations import shown
from pollwise.errors import ConfigError, did_you_mean
from pollwise.lab.texts import plain
from pollwise.settings import STRATEGIES
from pollwise.settings.strategies import ADDED, parameters
from pollwise.settings.values import DurationReader

#: What is compared by default.
USUAL = "worth,adaptive,fixed 500ms,batch_fill,ewma"
#: Seconds of waiting that are worth a poll that costs nothing.
NEXT_TO_NOTHING = 1e-6
DIGITS = 2

# The settings of values without a key, in order.
_ENDS = ("min_interval", "max_interval")
_PLAIN = {"fixed": ("interval",), "worth": ()}
# Goals that Worth can have instead of costs.
_GOALS = {key for keys in GOALS[1:] for key in keys}
# Where Ewma's intervals lie between the shortest and the longest, by its defaults.
_CLASSES = {"low_interval": 14 / 19, "medium_interval": 9 / 19, "high_interval": 4 / 19}


@dataclass(frozen=True)
class CostTerms:
    """The prices of a poll and of a second that one item waits, in dollars."""

    poll: float
    wait: float

    @property
    def ratio(self) -> float:
        """Seconds of one item's waiting that are worth one poll."""
        return self.poll / self.wait

    @property
    def poll_cost(self) -> float:
        """The cost of a poll for Worth: if it costs nothing, almost nothing."""
        return self.poll or self.wait * NEXT_TO_NOTHING

    def best_interval(self, rate: float) -> float:
        """The best fixed interval for steady arrivals of this rate, in seconds."""
        return math.sqrt(2 * self.ratio / rate)


def known() -> dict[str, type[Strategy]]:
    """The strategies of Pollwise that can be compared, by name.

    Not `Freshness`: it paces targets whose readings change, and a trace has items that wait.
    """
    return {name: kind for name, kind in STRATEGIES.items() if kind is not Freshness}


def parse(text: str, terms: CostTerms) -> list[Strategy]:
    """The strategies in a list such as `adaptive,fixed 500ms`, without repeats."""
    found: dict[Strategy, None] = {}
    for each in text.split(","):
        if not each.strip():
            raise ConfigError(
                f"strategies {shown(text)} has an empty entry; write for example {USUAL!r}"
            )
        found[parse_one(each, terms)] = None
    return list(found)


def parse_one(text: str, terms: CostTerms | None) -> Strategy:
    """The strategy of one policy.

    terms: the costs of a Worth that has no goal of its own; without them, it must have one.
    """
    name, *words = text.split() or [""]
    kind = strategy_kind(name)
    values = _values(text, kind, words)
    if kind is Worth and terms is not None:
        values = {**_costs(terms, values), **values}
    return _built(text, kind, values)


def strategy_kind(name: str) -> type[Strategy]:
    """The strategy with this name, of Pollwise or of a package; hyphens and capitals are
    accepted.
    """
    word = name.lower().replace("-", "_")
    strategies = known()
    found: type[Strategy] | None = strategies.get(word) or ADDED.get(word)
    if found is None:
        advice = did_you_mean(word, [*strategies, *ADDED.names()])
        raise ConfigError(f"strategy {shown(name)} is unknown; {advice}")
    return found


def _plain_keys(kind: type[Strategy]) -> tuple[str, ...]:
    """The settings that can be written without a key, in order."""
    if kind.name in STRATEGIES:
        return _PLAIN.get(kind.name, _ENDS)
    return _ENDS if _has_ends(kind) else ()


def _has_ends(kind: type[Strategy]) -> bool:
    return {each.key for each in parameters(kind)}.issuperset(_ENDS)


def _values(text: str, kind: type[Strategy], words: Sequence[str]) -> dict[str, str]:
    """The values by their keys in settings."""
    values: dict[str, str] = {}
    plain = _plain_keys(kind)
    places = iter(plain)
    for word in words:
        key, equals, value = word.partition("=")
        if word == "to":
            continue
        if not equals:
            key, value = next(places, ""), word
        if not key:
            form = " ".join((kind.name, *plain))
            raise ConfigError(f"{word!r} in {text.strip()!r} is too much; write {form} key=value")
        if key in values:
            raise ConfigError(f"{key} is given twice in {text.strip()!r}")
        values[key] = value
    return values


def _built(text: str, kind: type[Strategy], values: Mapping[str, str]) -> Strategy:
    takes = {each.key: each.reader for each in parameters(kind)}
    if kind is Ewma:
        takes |= {key: DurationReader() for key in _ENDS}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in takes:
            advice = did_you_mean(key, takes)
            raise ConfigError(f"{kind.name} has no {key!r} ({text.strip()}); {advice}")
        try:
            arguments[key] = takes[key].read(value)
        except ValueError as error:
            raise ConfigError(f"{key} = {value!r} in {text.strip()!r} {error}") from None
    if kind is Ewma:
        usual_ends = Ewma()
        low = arguments.pop("min_interval", usual_ends.very_high_interval)
        high = arguments.pop("max_interval", usual_ends.idle_interval)
        arguments = {**_classes(*bounds(low, high)), **arguments}
    try:
        return kind(**arguments)
    except (ValueError, TypeError) as error:  # that of a package may raise any
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{text.strip()!r}: {error}") from error


def _classes(low: float, high: float) -> dict[str, Any]:
    """Ewma's intervals between two ends, spaced like its defaults."""
    between = {name: low + (high - low) * share for name, share in _CLASSES.items()}
    exact = {name: rounded(value, 4) for name, value in between.items()}
    return {"idle_interval": high, **_in_order(exact, high), "very_high_interval": low}


def _costs(terms: CostTerms, values: Mapping[str, str]) -> dict[str, str]:
    """The costs for Worth, unless it has another goal."""
    if set(values) & _GOALS:
        return {}
    return {"poll_cost": repr(terms.poll_cost), "wait_cost": repr(terms.wait)}


def label(strategy: Strategy, terms: CostTerms | None = None) -> str:
    """A strategy's name in tables: its name, and the settings that differ from the defaults.

    terms: costs that are left out.
    """
    kind, text = type(strategy), DurationReader().text
    usual_values = {
        each.key: None
        if each.default is inspect.Parameter.empty
        else each.reader.read(each.default)
        for each in parameters(kind)
    }
    words = [strategy.name]
    if isinstance(strategy, Fixed):
        words.append(text(strategy.interval))
        usual_values["interval"] = strategy.interval
    elif isinstance(strategy, Worth):
        if terms is not None and strategy.poll_cost is not None:
            usual_values |= {"poll_cost": terms.poll_cost, "wait_cost": terms.wait}
    elif isinstance(strategy, Ewma):
        words += [text(strategy.very_high_interval), "to", text(strategy.idle_interval)]
        usual_values |= _classes(strategy.very_high_interval, strategy.idle_interval)
    elif _has_ends(kind):
        words += [text(strategy.min_interval), "to", text(strategy.max_interval)]
        usual_values |= {
            "min_interval": strategy.min_interval,
            "max_interval": strategy.max_interval,
        }
    for each in parameters(kind):
        value = getattr(strategy, each.key)
        if value != usual_values[each.key]:
            written = each.reader.text(value)
            is_number = isinstance(value, float) and written == str(value)
            words.append(f"{each.key}={plain(value) if is_number else written}")
    return " ".join(words)


# Settings worth trying


@dataclass(frozen=True)
class Axis:
    """One number that varies between bounds, by a factor from point to point."""

    name: str
    low: float
    high: float

    def points(self, count: int) -> list[float]:
        """This number of values from end to end."""
        if count == 1 or self.low == self.high:
            return [self.low]
        step = (self.high / self.low) ** (1 / (count - 1))
        return [min(self.low * step**number, self.high) for number in range(count)]

    def clamped(self, value: float) -> float:
        return min(max(value, self.low), self.high)


Point = tuple[float, ...]


@dataclass(frozen=True)
class SearchSpace:
    """The settings of a strategy to try: one for every point."""

    axes: tuple[Axis, ...]
    counts: tuple[int, ...]
    build: Callable[..., Strategy]

    def grid(self) -> list[Point]:
        """Points of the whole space."""
        sides = (axis.points(count) for axis, count in zip(self.axes, self.counts, strict=True))
        return list(itertools.product(*sides))

    def strategy(self, point: Point) -> Strategy:
        return self.build(*point)

    def around(self, point: Point, step: float) -> Iterator[Point]:
        """The neighbours of a point: each number up and down by this share of a grid's step."""
        for number, (axis, count) in enumerate(zip(self.axes, self.counts, strict=True)):
            factor = (axis.high / axis.low) ** (step / max(count - 1, 1))
            for moved in (point[number] * factor, point[number] / factor):
                yield (*point[:number], axis.clamped(moved), *point[number + 1 :])


def rounded(value: float, digits: int = DIGITS) -> float:
    """A number with few digits, so that settings are easy to read."""
    return float(f"{value:.{digits}g}")


def space(name: str, min_interval: float, max_interval: float, terms: CostTerms) -> SearchSpace:
    """The settings of a strategy to try, with delays between two bounds."""
    kind = strategy_kind(name)
    interval = Axis("interval", min_interval, max_interval)
    stretch = Axis("stretch", 1.0, max(max_interval / min_interval, 1.0))

    def high(low: float, factor: float) -> float:
        return max(rounded(min(low * factor, max_interval)), rounded(low))

    def between(low: float, factor: float) -> Strategy:
        ends = {"min_interval": rounded(low), "max_interval": high(low, factor)}
        return kind(**ends)

    def ewma(low: float, factor: float, alpha: float) -> Strategy:
        return Ewma(alpha=rounded(alpha), **_classes(rounded(low), high(low, factor)))

    if kind is Fixed:
        return SearchSpace((interval,), (41,), lambda each: Fixed(rounded(each, 3)))
    if kind is Adaptive:
        return SearchSpace(
            (interval, stretch, Axis("backoff_multiplier", 1.2, 4.0)),
            (9, 8, 3),
            lambda low, factor, growth: Adaptive(
                rounded(low), high(low, factor), backoff_multiplier=rounded(growth)
            ),
        )
    if kind is BatchFill:
        return SearchSpace(
            (interval, stretch),
            (13, 9),
            between,
        )
    if kind is Ewma:
        return SearchSpace((interval, stretch, Axis("alpha", 0.1, 0.6)), (9, 8, 3), ewma)
    if kind is not Worth:  # of a package, and not compiled
        if not _has_ends(kind):
            raise ConfigError(
                f"strategy {name!r} has no min_interval and max_interval to vary; compare settings "
                f"that you choose: pollwise lab compare TRACE --strategies '{name} …'"
            )
        return SearchSpace((interval, stretch), (7, 5), between)
    # Worth has one number to vary, the price of waiting: the higher, the shorter the intervals.
    poll = terms.poll_cost
    return SearchSpace(
        (Axis("wait cost", poll * 1e-4, poll * 1e4),),
        (17,),
        lambda cost: Worth(
            poll_cost=poll,
            wait_cost=rounded(cost),
            min_interval=rounded(min_interval),
            max_interval=rounded(max_interval),
        ),
    )


def _in_order(between: Mapping[str, float], longest: float) -> dict[str, float]:
    """The intervals in falling order again: rounding may lift one above that of a quieter class."""
    result, bound = {}, longest
    for name, value in between.items():
        bound = min(bound, value)
        result[name] = bound
    return result
