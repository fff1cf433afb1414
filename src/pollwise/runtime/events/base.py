"""What every event is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `source` names the queue or poll it happened to."""

    #: The level it is logged at. What happens all the time is debug, which is not even built
    #: unless a sink asks for it.
    level: ClassVar[int] = logging.DEBUG

    source: str
