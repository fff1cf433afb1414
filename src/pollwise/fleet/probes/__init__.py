"""The built-in probes, by their type.

A maker turns a target's options into a probe, or raises ConfigError with everything that is wrong
with them. The module of a probe, and the extra it needs, are imported with its first target.

All targets of a process share one pool of HTTP connections. Polls run inside
`async with connections():`, which closes them at its end.
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
    """A probe for one target, and its host, unless the target sets one."""

    probe: Probe
    host: str | None = None


def _maker(module: str) -> Callable[[Target], ReadyProbe]:
    def make(target: Target) -> ReadyProbe:
        probe = import_module(f"pollwise.fleet.probes.{module}").make(target)
        return ReadyProbe(probe, target.host or getattr(probe, "host", None))

    return make


#: The makers of probes, by type.
MAKERS: dict[str, Callable[[Target], ReadyProbe]] = {
    name.partition(".")[0]: _maker(name)
    for name in (
        "command", "dns", "feed", "function", "http.probe", "ping", "prometheus", "sql", "tcp",
    )
}  # fmt: skip


def make_probe(target: Target) -> ReadyProbe:
    """The probe of a target; ConfigError if it cannot be created."""
    if not isinstance(target.probe, str):
        try:
            return ReadyProbe(as_probe(target.probe), target.host)
        except TypeError as error:
            raise ConfigError(f"target {target.name!r}: its probe {error}") from None
    maker = MAKERS.get(target.probe)
    if maker is None:
        near = get_close_matches(target.probe.lower(), MAKERS, 1)
        known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(MAKERS))}"
        raise ConfigError(f"target {target.name!r}: {target.probe!r} is not a probe type; {known}")
    return maker(target)
