"""The events that the runtime emits, one file per part, and the bus that sinks subscribe to.

Metrics, logs and views are sinks. The classes are API: the reference is made from these files, and
every event class in them is exported here.
"""

from pollwise.runtime.events.base import Event as Event
from pollwise.runtime.events.bus import Events as Events
from pollwise.runtime.events.bus import action_of as action_of
from pollwise.runtime.events.bus import all_events as all_events
from pollwise.runtime.events.bus import log as log
from pollwise.runtime.events.controller import *  # noqa: F403
from pollwise.runtime.events.fleet import *  # noqa: F403
from pollwise.runtime.events.jobs import *  # noqa: F403
from pollwise.runtime.events.outbox import *  # noqa: F403
from pollwise.runtime.events.polling import *  # noqa: F403
from pollwise.runtime.events.schedules import *  # noqa: F403

_CLASSES = [
    value for value in vars().values() if isinstance(value, type) and issubclass(value, Event)
]
__all__ = sorted(
    ["Events", "action_of", "all_events", "log", *(each.__name__ for each in _CLASSES)]
)
