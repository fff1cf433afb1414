"""The events that the runtime emits, and `Events`, which sinks subscribe to."""

from typing import TYPE_CHECKING

from pollwise.runtime.events import *  # noqa: F403
from pollwise.runtime.events import __all__ as __all__

if TYPE_CHECKING:  # type checkers cannot read a list of names that is computed
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
