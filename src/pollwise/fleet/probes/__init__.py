"""The built-in probes, by their type.

`make` of a probe's module turns a target's options into a probe, or raises ConfigError with all
that is wrong. The module, and the extra it needs, are imported with the first target. Its `FACTS`
names the facts that its readings can have, for conditions and the docs; a module without FACTS
allows any.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.targets import Probe, Target

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


def make_probe(target: Target) -> Probe:
    """The probe of a target; ConfigError if it cannot be created."""
    if not isinstance(target.probe, str):
        try:
            return as_probe(target.probe)
        except TypeError as error:
            raise ConfigError(f"target {target.name!r}: its probe {error}") from None
    module = MODULES.get(target.probe)
    if module is None:
        known = did_you_mean(target.probe.lower(), sorted(MODULES))
        raise ConfigError(f"target {target.name!r}: {target.probe!r} is not a probe type; {known}")
    probe: Probe = import_module(f"pollwise.fleet.probes.{module}").make(target)
    return probe


def facts_of(type: str, probe: Probe | None = None) -> Mapping[str, str] | None:
    """The facts that readings of a probe type can have, each with its meaning.

    A fact may be missing in a reading, such as `days_left` without TLS. `value` stands for the
    reading's value. None if any fact is possible: for functions, and types that are not built in.
    probe: leave out the facts that this probe cannot have, such as the workers of an SQS queue.
    """
    module = MODULES.get(type)
    if module is None:
        return None
    found: Mapping[str, str] | None = getattr(
        import_module(f"pollwise.fleet.probes.{module}"), "FACTS", None
    )
    lacks = getattr(probe, "lacks", None)
    if found and lacks:
        return {name: about for name, about in found.items() if name not in lacks}
    return found


def host_of(target: Target, probe: Probe) -> str | None:
    """The host whose polls are limited: the target's own, else that of its probe."""
    return target.host if target.host is not None else getattr(probe, "host", None)
