"""Checks of rules and dependencies, before a target is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pollwise.alerts.settings import Alerts
from pollwise.durations import short
from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.probes import facts_of
from pollwise.fleet.targets import Probe, Target

#: How many targets a warning names.
NAMES_LISTED = 5


def check_rules(target: Target, alerts: Alerts, probe: Probe) -> None:
    """Refuse rules about facts that the target's readings cannot have, and unknown channels.

    probe: of the target; it knows what its store cannot tell.
    """
    check_latencies(target)
    for rule in target.alerts:
        where = f"target {target.name!r}: alert {rule.when!r}"
        if rule.condition.kind == "field":
            facts = facts_of(target.probe, probe) if isinstance(target.probe, str) else None
            rule.condition.check(facts, f"target {target.name!r}: when")
        alerts.check(rule.to, f"{where}: to")


def check_latencies(target: Target) -> None:
    """Refuse rules about a latency that no poll can have: it ends at its timeout."""
    for rule in target.alerts:
        given = rule.condition
        if given.field != "latency" or given.op not in (">", ">=") or given.number is None:
            continue
        if given.number >= target.timeout:
            meant = f"; did you mean {given.text}ms?" if given.text.isdecimal() else ""
            raise ConfigError(
                f"target {target.name!r}: alert {rule.when!r} can never open: a poll ends at its "
                f"timeout of {short(target.timeout)}{meant}"
            )


def unheard(targets: Iterable[Target], channels: Iterable[str], to: Collection[str]) -> str | None:
    """A warning that names targets whose alerts go to no channel, though there are channels; None
    without such targets.

    to: the channels of rules that name none.
    """
    listed = list(channels)
    if to or not listed:
        return None
    names = [each.name for each in targets if not all(rule.to for rule in each.alerts)]
    if not names:
        return None
    named = ", ".join(map(repr, names[:NAMES_LISTED])) + ", …" * (len(names) > NAMES_LISTED)
    return (
        f"nothing is sent for alerts of {named}: their rules name no channel; "
        f'write to = ["{listed[0]}"] under [alerts], or in the group, the target or the rule'
    )


def check_parents(targets: Mapping[str, Target]) -> None:
    """Refuse targets that are behind an unknown one, or behind each other in a circle."""
    if not any(target.behind for target in targets.values()):
        return
    for name, target in targets.items():
        for parent in target.behind:
            if parent not in targets:
                near = did_you_mean(parent, targets, "name another target of this fleet")
                raise ConfigError(
                    f"target {name!r}: behind = {parent!r} is not a target of this fleet; {near}"
                )
    done: set[str] = set()
    for name in targets:
        _check_circle(name, targets, done)


def _check_circle(name: str, targets: Mapping[str, Target], done: set[str]) -> None:
    path: dict[str, None] = {}
    todo: list[tuple[str, bool]] = [(name, False)]
    while todo:
        at, leaving = todo.pop()
        if leaving:
            path.pop(at)
            done.add(at)
        elif at in path:
            circle = [*list(path)[list(path).index(at) :], at]
            raise ConfigError(
                f"target {at!r}: behind goes in a circle: {' → '.join(map(repr, circle))}"
            )
        elif at not in done:
            path[at] = None
            todo.append((at, True))
            todo += [(parent, False) for parent in targets[at].behind]
