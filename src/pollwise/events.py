"""The events that the runtime emits, and `Events`, which sinks subscribe to."""

from pollwise.runtime.events import *  # noqa: F403
from pollwise.runtime.events import __all__ as __all__
