"""Writes the state of a pacer as JSON values, and reads it into a fresh pacer.

Every attribute of a pacer and of its parts is written, so that none can be forgotten: numbers,
texts, lists, tuples and plain objects. Three kinds are left out: the strategy, attributes that a
class declares as `Final` (they follow from the strategy), and fields of a dataclass that do not
count when it is compared (explanations). A fresh pacer is the template for what is read: it must
have the same attributes, of the same types and lengths. Stored data is not trusted: anything else
is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

#: The maximum number of values in a list whose length differs from the template's.
LIST_MAX = 4096
#: The maximum number of characters in a text.
TEXT_MAX = 100
#: Lists of at least this length are statistics: zeros at their ends are left out.
LONG = 8
#: `compact` rounds statistics to this many significant digits.
DIGITS = 6

_INFINITE = {"inf": math.inf, "-inf": -math.inf}


class DumpRefused(Exception):
    """A value is not what the template expects."""


def dumped(part: object, besides: type) -> dict[str, Any]:
    """The attributes of `part` as JSON values, except those that are instances of `besides`."""
    return {name: _dumped(value, besides) for name, value in _attributes(part, besides)}


def _dumped(value: Any, besides: type) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (list, tuple)):
        values = [_dumped(each, besides) for each in value]
        return values if len(values) < LONG else _trimmed(values)
    return dumped(value, besides)


def _trimmed(values: list[Any]) -> Any:
    """A long list without the zeros at its ends."""
    there = [place for place, value in enumerate(values) if value != 0.0]
    first, end = (there[0], there[-1] + 1) if there else (0, 0)
    return {"size": len(values), "from": first, "items": values[first:end]}


def compact(dump: Any) -> Any:
    """A dump with its statistics rounded, which makes it about a third as large."""
    if isinstance(dump, dict):
        if dump.keys() == {"size", "from", "items"}:
            return dump | {"items": [_rounded(each) for each in dump["items"]]}
        return {name: compact(value) for name, value in dump.items()}
    return [compact(each) for each in dump] if isinstance(dump, list) else dump


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return compact(value)
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short


def take_over(part: object, dump: object, besides: type, where: str = "") -> None:
    """Set the attributes of a fresh `part` from a dump. After a `DumpRefused`, it is unusable.

    where: the place of the part, for the error.
    """
    there = dict(_attributes(part, besides))
    if not isinstance(dump, Mapping) or dump.keys() != there.keys():
        raise DumpRefused(f"{where or 'the state'} has other attributes")
    for name, like in there.items():
        place = f"{where}.{name}" if where else name
        object.__setattr__(part, name, _taken(dump[name], like, besides, place))


def _taken(value: Any, like: Any, besides: type, where: str) -> Any:
    """A value of a dump, checked; `like` is the one of a fresh pacer."""
    if like is None:
        return None if value is None else _number(value, where)
    if isinstance(like, (bool, str)):
        if type(value) is not type(like) or (isinstance(value, str) and len(value) > TEXT_MAX):
            raise DumpRefused(f"{where} is not a {type(like).__name__} as expected")
        return value
    if isinstance(like, int):
        if type(value) is not int:
            raise DumpRefused(f"{where} is not a whole number")
        return _number(value, where)
    if isinstance(like, float):
        if math.isinf(like) and isinstance(value, str) and value in _INFINITE:
            return _INFINITE[value]
        return _number(value, where)
    if isinstance(like, (list, tuple)):
        return type(like)(_all_taken(value, like, besides, where))
    part = copy.copy(like)  # it may be shared with other pacers
    take_over(part, value, besides, where)
    return part


def _all_taken(value: Any, like: Any, besides: type, where: str) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = _untrimmed(value, where)
    if not isinstance(value, list) or len(value) != (len(like) or min(len(value), LIST_MAX)):
        raise DumpRefused(
            f"{where} is not a list of {len(like) or 'at most ' + str(LIST_MAX)} values"
        )
    for n, each in enumerate(value):
        yield _taken(each, like[n] if like else None, besides, f"{where}[{n}]")


def _untrimmed(value: Mapping[str, Any], where: str) -> list[Any]:
    size, first, items = (value.get(name) for name in ("size", "from", "items"))
    if type(size) is not int or type(first) is not int or not isinstance(items, list):
        raise DumpRefused(f"{where} is not a list")
    if not 0 <= first <= first + len(items) <= size <= LIST_MAX:
        raise DumpRefused(f"{where} is a list whose size is not right")
    return [0] * first + items + [0] * (size - first - len(items))


def _number(value: Any, where: str) -> float:
    most = sys.float_info.max
    if type(value) not in (int, float) or not -most <= value <= most:
        raise DumpRefused(f"{where} is not a finite number")
    number: float = value
    return number


def _attributes(part: object, besides: type) -> Iterator[tuple[str, Any]]:
    kind: Any = type(part)
    names = {*getattr(part, "__dict__", ()), *_slots(kind)}.difference(_left_out(kind))
    for name in sorted(names):
        value = getattr(part, name)
        if not isinstance(value, besides):
            yield name, value


@cache
def _slots(kind: type) -> frozenset[str]:
    slots = [each.__dict__.get("__slots__", ()) for each in kind.__mro__]
    return frozenset(name for names in slots for name in names)


@cache
def _left_out(kind: type) -> frozenset[str]:
    """The names of attributes that are declared as `Final`, or do not count in a comparison."""
    declared = [inspect.get_annotations(each).items() for each in kind.__mro__]
    names = {name for pairs in declared for name, said in pairs if str(said).startswith("Final")}
    if dataclasses.is_dataclass(kind):
        names.update(field.name for field in dataclasses.fields(kind) if not field.compare)
    return frozenset(names)
