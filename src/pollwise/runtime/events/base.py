"""The base class of all events."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def event(kind: type[T]) -> type[T]:
    """Make a class of events a frozen dataclass with slots.

    Its methods are those of `Event`: to compile them for each of 80 classes would take a seventh of
    the time in which a worker is imported.
    """
    return dataclass(frozen=True, slots=True, repr=False, eq=False)(kind)


@event
class Event:
    """Something that happened. `source` names the queue or poll it happened to."""

    #: The level it is logged at. Frequent events are DEBUG, and not even built unless a sink
    #: subscribed to them.
    level: ClassVar[int] = logging.DEBUG

    source: str

    def __repr__(self) -> str:
        values = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))
