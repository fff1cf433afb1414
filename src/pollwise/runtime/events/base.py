"""The base class of all events."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `source` names the queue or poll it happened to."""

    #: The level it is logged at. Frequent events are DEBUG, and not even built unless a sink
    #: subscribed to them.
    level: ClassVar[int] = logging.DEBUG

    source: str
