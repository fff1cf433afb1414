"""Fleets: thousands of targets, each polled at its own pace. `engine` decides and polls, `probes`
are the ways to poll a target, `stores` keep what must survive a restart; the rest is what people
use.
"""

from pollwise.fleet.engine.pace import Pace
from pollwise.fleet.engine.states import Rules
from pollwise.fleet.fleet import Fleet
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.targets import Changed, Probe, ProbeContext, Reading, Target
from pollwise.fleet.views import FleetHealth, TargetState

__all__ = [
    "Changed", "Fleet", "FleetHealth", "FleetStore", "Pace", "Probe", "ProbeContext", "Reading",
    "Rules", "Target", "TargetState",
]  # fmt: skip
