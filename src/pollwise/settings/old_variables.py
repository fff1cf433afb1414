"""Variables of the projects that people come from: they have no effect, and a process says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pollwise.settings.keys import PREFIX, variables

#: Stands for every section, for commands that show settings.
EVERY = "*"


@dataclass(frozen=True, slots=True)
class OldVariable:
    """A variable, or all with a prefix.

    sections: whose processes it concerned.
    ours: the variable that replaces it, or the prefix; "" if none does.
    more: what else is different.
    """

    name: str
    owner: str
    sections: tuple[str, ...]
    ours: str
    more: str = ""


_PAGE = 'see the page "Coming from Namastack Outbox"'
_NAMASTACK = "NAMASTACK_OUTBOX_"


def _namastack(name: str, ours: str, more: str = "") -> OldVariable:
    return OldVariable(
        f"{_NAMASTACK}{name}", "Namastack", ("outbox",), ours and f"{PREFIX}OUTBOX_{ours}", more
    )


#: The first that fits counts. Spring leaves dashes out of names, and people write them as "_".
OLD_VARIABLES = (
    OldVariable("QO_POLLING_", "qo", ("worker",), f"{PREFIX}POLLING_"),
    OldVariable("ADAPTIVE_POLLING_", "Pulse", ("fleet",), f"{PREFIX}FLEET_POLLING_"),
    OldVariable("POLL_INTERVAL_SECONDS", "ADR-0007", ("agent",), f"{PREFIX}AGENT_POLL_INTERVAL"),
    OldVariable(
        "POLL_INTERVAL_SECONDS", "ADR-0007", ("controller",), f"{PREFIX}CONTROLLER_POLL_INTERVAL"
    ),
    OldVariable(
        "HEARTBEAT_TIMEOUT_SECONDS",
        "ADR-0007",
        ("agent", "controller"),
        f"{PREFIX}CONTROLLER_HEARTBEAT_TIMEOUT",
        "for the controller",
    ),
    _namastack("POLLING_TRIGGER", "POLLING_STRATEGY", "adaptive is called batch_fill here"),
    _namastack("POLLING_FIXED_INTERVAL", "POLLING_INTERVAL"),
    _namastack("POLLING_ADAPTIVE_MIN_INTERVAL", "POLLING_MIN_INTERVAL"),
    _namastack("POLLING_ADAPTIVE_MAX_INTERVAL", "POLLING_MAX_INTERVAL"),
    _namastack("POLLING_BATCH_SIZE", "BATCH"),
    _namastack("", "", _PAGE),
)


def old_variables(environ: Mapping[str, str], section: str) -> Iterator[str]:
    """What to say of each old variable that is set; none for those whose new one is set, too."""
    for name in sorted(environ):
        for old in OLD_VARIABLES:
            if section not in (EVERY, *old.sections) or not _is(old, name):
                continue
            ours = old.ours + (name.removeprefix(old.name) if old.ours.endswith("_") else "")
            if ours in environ or (ours and ours not in variables()):
                break
            instead = " ".join(filter(None, (ours and f"set {ours} instead", _in_brackets(old))))
            yield f"{old.owner}'s {name} has no effect here; {instead}"
            break


def _is(old: OldVariable, name: str) -> bool:
    if old.name.endswith("_"):
        return name.startswith(old.name)
    return name == old.name or (
        name.startswith(_NAMASTACK) and name.replace("_", "") == old.name.replace("_", "")
    )


def _in_brackets(old: OldVariable) -> str:
    return f"({old.more})" if old.more and old.ours else old.more
