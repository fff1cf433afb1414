"""The probes, by their type.

`make` of a probe's module turns a target's options into a probe, or raises ConfigError with all
that is wrong. The module, and the extra it needs, are imported with the first target. Its `FACTS`
names the facts that its readings can have, for conditions and the docs; a module without FACTS
allows any.

Packages add types by entry points (`ADDED`): each is a function or a class like `make`, and may
have an attribute `FACTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pollwise.errors import ConfigError, PollwiseError, did_you_mean
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.targets import Probe, Target
from pollwise.plugins import PluginGroup

#: The modules of the probes, by type.
MODULES = {
    "certificate": "net.certificate",
    "command": "command",
    "dns": "net.dns",
    "feed": "feed",
    "function": "function",
    "grpc": "net.grpc",
    "html": "html.probe",
    "http": "http.probe",
    "imap": "net.imap",
    "outbox": "work.outbox",
    "ping": "net.ping",
    "prometheus": "prometheus",
    "queue": "work.queue",
    "smtp": "net.smtp",
    "sql": "sql",
    "steps": "http.steps",
    "systemd": "systemd",
    "tcp": "net.tcp",
    "websocket": "net.websocket",
}


#: Types that packages add.
ADDED = PluginGroup(
    "pollwise.probes",
    "probe type",
    lambda: MODULES,
    lambda _, thing: "" if callable(thing) else "is not a function that makes a probe of a Target",
)


def probe_types() -> list[str]:
    """All types, those of packages included."""
    return sorted([*MODULES, *ADDED.names()])


def is_probe_type(name: str) -> bool:
    """True if there is such a type; that of a package need not work."""
    return name in MODULES or name in ADDED.names()


def make_probe(target: Target) -> Probe:
    """The probe of a target; ConfigError if it cannot be created."""
    if not isinstance(target.probe, str):
        try:
            return as_probe(target.probe)
        except TypeError as error:
            raise ConfigError(f"target {target.name!r}: its probe {error}") from None
    module = MODULES.get(target.probe)
    if module is not None:
        probe: Probe = import_module(f"pollwise.fleet.probes.{module}").make(target)
        return probe
    make = ADDED.get(target.probe)
    if make is None:
        known = did_you_mean(target.probe.lower(), probe_types())
        raise ConfigError(f"target {target.name!r}: {target.probe!r} is not a probe type; {known}")
    try:
        return as_probe(make(target))
    except PollwiseError:
        raise
    except Exception as error:  # code of others may raise anything
        raise ConfigError(
            f"target {target.name!r}: making a probe of the type {target.probe!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error


def facts_of(type: str, probe: Probe | None = None) -> Mapping[str, str] | None:
    """The facts that readings of a probe type can have, each with its meaning.

    A fact may be missing in a reading, such as `days_left` without TLS. `value` stands for the
    reading's value. None if any fact is possible: for functions, and types of packages that have no
    FACTS.
    probe: leave out the facts that this probe cannot have, such as the workers of an SQS queue.
    """
    module = MODULES.get(type)
    source = import_module(f"pollwise.fleet.probes.{module}") if module else ADDED.get(type)
    found: Mapping[str, str] | None = getattr(source, "FACTS", None)
    lacks = getattr(probe, "lacks", None)
    if found and lacks:
        return {name: about for name, about in found.items() if name not in lacks}
    return found


def host_of(target: Target, probe: Probe) -> str | None:
    """The host whose polls are limited: the target's own, else that of its probe."""
    return target.host if target.host is not None else getattr(probe, "host", None)
