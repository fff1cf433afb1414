"""Probes that are ready made, by the name of their type.

A maker turns a target's options into a probe, or raises ConfigError with all that is wrong with
them. What a probe needs besides Pollwise is imported by its module, when the first target names it.

Probes share connections: one pool of HTTP connections for all targets of a process. Whoever polls
does so within `async with connections():`, at whose end they are closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from pollwise.errors import ConfigError
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.probes.http.connections import connections
from pollwise.fleet.targets import Probe, Target

__all__ = ["MAKERS", "ReadyProbe", "connections", "made"]


@dataclass(frozen=True, slots=True)
class ReadyProbe:
    """A probe for one target, and the host it asks, where the target names none."""

    probe: Probe
    host: str | None = None


def _maker(module: str) -> Callable[[Target], ReadyProbe]:
    def make(target: Target) -> ReadyProbe:
        probe = import_module(f"pollwise.fleet.probes.{module}").make(target)
        return ReadyProbe(probe, target.host or getattr(probe, "host", None))

    return make


#: How a probe is made from a target's options, by the name of its type.
MAKERS: dict[str, Callable[[Target], ReadyProbe]] = {
    name.partition(".")[0]: _maker(name)
    for name in (
        "command", "dns", "feed", "function", "http.probe", "ping", "prometheus", "sql", "tcp",
    )
}  # fmt: skip


def make_probe(target: Target) -> ReadyProbe:
    """The probe of a target that names its probe by type; ConfigError when it cannot be made."""
    if not isinstance(target.probe, str):
        try:
            return ReadyProbe(as_probe(target.probe), target.host)
        except TypeError as error:
            raise ConfigError(f"target {target.name!r}: its probe: {error}") from None
    maker = MAKERS.get(target.probe)
    if maker is None:
        near = get_close_matches(target.probe.lower(), MAKERS, 1)
        known = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(MAKERS))}"
        raise ConfigError(
            f"target {target.name!r}: there is no probe of type {target.probe!r}; {known}"
        )
    return maker(target)
