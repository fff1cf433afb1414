"""Fleets: thousands of targets, each polled at its own pace. `engine` decides and polls, `probes`
are the ways to poll a target, and `stores` keep what must survive a restart. The other modules are
what users and operators work with.
"""

from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.options import FleetRunOptions, GroupPace
from pollwise.fleet.fleet import Fleet
from pollwise.fleet.probes.options import ProbeOptions
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.targets import Probe, ProbeContext, Reading, Target
from pollwise.fleet.views import FleetState, TargetState

__all__ = [
    "FailureRules", "Fleet", "FleetRunOptions", "FleetState", "FleetStore", "GroupPace",
    "Probe", "ProbeContext", "ProbeOptions", "Reading", "Target", "TargetState",
]  # fmt: skip
