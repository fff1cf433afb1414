"""Reads the table of one target: its own keys, those of its group, and the options of its probe.

The same for a table of fleet.toml, for the body of a request, and for the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

from pollwise.alerts.rules import AlertRule
from pollwise.durations import shown
from pollwise.errors import ConfigError, PollwiseError, did_you_mean
from pollwise.fleet.alerting.checks import check_latencies
from pollwise.fleet.definitions.sections import names_of, rules_of
from pollwise.fleet.definitions.shown import digests_of, fingerprint
from pollwise.fleet.definitions.variables import replaced
from pollwise.fleet.probes import facts_of, is_probe_type, make_probe, probe_types
from pollwise.fleet.probes.options import BadOptions, hint
from pollwise.fleet.targets import Probe, Target
from pollwise.runtime.redact import without_hidden

#: What a target's table may have apart from the options of its probe.
PLAN_KEYS = (
    "base_interval", "confirm_from", "dead_after", "detect_within", "host", "interval", "labels",
    "max_interval", "min_interval", "priority", "quiet", "timeout", "weight",
)  # fmt: skip
_OWN_KEYS = ("group", "name", "type", *PLAN_KEYS, "alerts", "behind", "to")
#: Keys of earlier versions, and what to write instead.
_CHANNELS = {
    "webhook": '[channel.hook] with type = "webhook" and the url',
    "put": '[channel.jobs] with type = "put" and the queue',
}
#: What views use of a target.
_VIEWED_KEYS = ("group", "name", "type", *PLAN_KEYS)
_BOUNDS = ("base_interval", "min_interval", "max_interval")

#: The line where the error is, if known (that of a target is the line of its header), and the
#: error.
Problem = tuple[int | None, str]


class WrongDefinition(ConfigError):
    """A definition of a target that cannot be used. `problems` has everything that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(map(without_hidden, problems))
        super().__init__("; ".join(self.problems))


class TargetTables:
    """Reads the tables of targets, with what they have in common. Errors go to `problems`.

    for_views: the targets are shown and not polled, so the secrets in their options may be unset.
    """

    #: The `origin` of the targets.
    origin: ClassVar[str] = "code"

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        for_views: bool = False,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._for_views = for_views
        #: The keys whose variables are unset, by target or group: nothing else is wrong with them.
        self._unset: dict[str, set[str]] = {}
        self.problems: list[Problem] = []
        #: What each group sets, and the same as written.
        self.groups: dict[str, dict[str, Any]] = {}
        self.written_groups: dict[str, Mapping[str, Any]] = {}
        #: The names of the channels; None if they are not known here.
        self.channels: Collection[str] | None = None
        #: What many targets have in common: digests of groups, and rules by how they are written.
        self.digests: dict[str | None, dict[str, str]] = {None: {}}
        self.rules: dict[str, tuple[AlertRule, ...]] = {}

    def add_group(self, name: str, table: Mapping[str, Any]) -> None:
        """Let targets inherit from this group."""
        line = self.group_line(name)
        for key in ("name", "group"):
            if key in table:
                self.wrong(line, f"group {name!r}: {key} is only for targets")
        kept = {key: each for key, each in table.items() if key not in ("name", "group")}
        self.written_groups[name] = kept
        self.groups[name] = self.with_variables(kept, line, f"group {name!r}")
        self.digests[name] = digests_of(kept)

    def target(self, table: Mapping[str, Any], line: int | None = None) -> Target | None:
        """The target of a table, or None if something is wrong with it."""
        return _TargetReader(self, line, table).target()

    def group_line(self, name: str) -> int | None:
        """The line of a group in its file, if there is one."""
        return None

    def with_variables(
        self, table: Mapping[str, Any], line: int | None, where: str
    ) -> dict[str, Any]:
        """A table whose `${NAME}` are replaced. where: whose table it is, for errors."""

        unset = self._unset[where] = set()

        def missing(key: str, name: str) -> None:
            unset.add(key)
            if self._for_views and self.may_be_unset(name) and key not in _VIEWED_KEYS:
                return
            self.wrong(line, f"{where}: {key}: {self.unset_variable(name)}")

        return replaced(table, self._environment, missing)

    def unset(self, where: str) -> frozenset[str]:
        """The keys of a table whose values are not known, so that nothing is wrong with them."""
        return frozenset(self._unset.get(where, ()))

    def may_be_unset(self, name: str) -> bool:
        """True if a variable need not have a value here, where targets are only shown."""
        return True

    def unset_variable(self, name: str) -> str:
        """What is wrong with a variable that has no value."""
        return f"the environment variable {name} is not set; set it, or write $${{ for ${{"

    def refused(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The keys of a target that are not allowed here, and why."""
        return iter(())

    def wrong(self, line: int | None, what: str) -> None:
        self.problems.append((line, what))

    def check_group(self, name: str) -> None:
        """Report what is wrong with a group from which no target inherits."""
        _UnusedGroup(self, None, {"name": "-", "group": name}).target()


class _TargetReader:
    """Reads one target. Errors in inherited keys are reported once, for the group."""

    def __init__(self, tables: TargetTables, line: int | None, table: Mapping[str, Any]) -> None:
        self._tables = tables
        self._line = line
        name = table.get("name")
        self._where = f"target {name!r}" if isinstance(name, str) and name else "a target"
        self._raw = table
        self._own = tables.with_variables(table, line, self._where)
        self._sound = True
        self._group: str | None = None
        self._unset = tables.unset(self._where)
        self._given = self._merged()

    def target(self) -> Target | None:
        """The target, or None if something is wrong with it."""
        given = self._given
        if "name" not in given:
            self._wrong("", "name is missing")
        kind = given.get("type")
        if kind is None:
            self._wrong("", f"type is missing: one of {', '.join(probe_types())}")
        elif not isinstance(kind, str) or not is_probe_type(kind):
            known = hint(str(kind).lower(), probe_types())
            self._wrong("type", f"type = {shown(kind)} is not a probe type; {known}")
            kind = None
        refused = dict(self._tables.refused(given))
        for key, what in refused.items():
            self._wrong(key, what)
        self._refuse_actions()
        # A type that is refused is not used in any way: that may import a module.
        rules = self._rules(None if refused else kind)
        plan = {key: given[key] for key in (*PLAN_KEYS, "behind") if key in given}
        self._check_texts(plan)
        named = {"name": given.get("name", "-")}
        if kind is None:
            # Its options cannot be checked without a type; everything else can.
            self._plan(named, "http", plan)
            return None
        own = (*_OWN_KEYS, *_CHANNELS)
        options = {key: each for key, each in given.items() if key not in own}
        target = self._plan(
            named,
            kind,
            plan,
            options=options,
            group=self._group,
            origin=self._tables.origin,
            alerts=rules,
            written=fingerprint(
                self._tables.written_groups.get(self._group or "", {}),
                self._raw,
                self._tables.digests.get(self._group, {}),
            ),
        )
        if refused:
            return None
        if target is not None and rules:
            try:
                check_latencies(target)
            except ConfigError as error:
                self._wrong("alerts", _bare(error))
        try:
            probe = make_probe(target or Target("-", kind, options=options))
            if rules and getattr(probe, "lacks", None):
                self._check_facts(rules, kind, probe)
        except BadOptions as error:
            for key, what in error.problems:
                self._wrong(key, f"{key} {self._nearer(key, what)}")
        except (PollwiseError, ImportError) as error:
            if not self._unset:
                self._wrong("type", f"type = {kind!r}: {_bare(error)}")
        return target if self._sound else None

    def _merged(self) -> dict[str, Any]:
        own = self._own
        name = own.get("group")
        if name is None:
            return own
        if not isinstance(name, str) or not name:
            self._wrong("group", f"group = {shown(name)} must be text")
            return own
        groups = self._tables.groups
        if groups and name not in groups:
            advice = did_you_mean(name, groups, f"write [group.{name}], empty if need be")
            self._wrong("group", f"group = {name!r} does not exist; {advice}")
            return own
        self._group = name
        self._unset |= self._tables.unset(f"group {name!r}") - own.keys()
        merged = dict(groups.get(name, {}))
        # An interval and bounds exclude each other: the target's own replace the group's.
        if "interval" in own:
            merged = {key: each for key, each in merged.items() if key not in _BOUNDS}
        elif any(key in own for key in _BOUNDS):
            merged.pop("interval", None)
        for key, each in own.items():
            before = merged.get(key)
            if isinstance(each, dict) and isinstance(before, dict):
                each = {**before, **each}
            merged[key] = each
        return merged

    def _refuse_actions(self) -> None:
        for key, instead in _CHANNELS.items():
            if key in self._given:
                name = instead.partition("]")[0].removeprefix("[channel.")
                self._wrong(
                    key,
                    f"{key} is a channel now: write {instead}, and for the target "
                    f'alerts = [{{ when = "changed", to = ["{name}"] }}]',
                )

    def _rules(self, kind: str | None) -> tuple[AlertRule, ...]:
        """The rules of its alerts. Those of the target replace those of its group."""
        to: list[str] = []
        try:
            to = names_of(self._given.get("to", []), "to", self._tables.channels)
        except ConfigError as error:
            self._wrong("to", str(error))
        if "to" in self._given and "alerts" not in self._given:
            self._wrong("to", "to has no effect without alerts; add alerts = ['down']")
        if "alerts" not in self._given:
            return ()
        # Many targets have the same rules: they are read once, if nothing is wrong with them.
        written = f"{kind} {to} {self._given['alerts']!r}"
        known = self._tables.rules.get(written)
        if known is not None:
            return known
        problems: list[str] = []
        channels = self._tables.channels
        rules = rules_of(self._given["alerts"], to, kind, channels, problems.append)
        for what in problems:
            self._wrong("alerts", what)
        if not problems:
            self._tables.rules[written] = rules
        return rules

    def _check_facts(self, rules: Iterable[AlertRule], kind: str, probe: Probe) -> None:
        """Refuse rules about facts that this probe cannot have, unlike others of its type."""
        for rule in rules:
            if rule.condition.kind == "field":
                try:
                    rule.condition.check(facts_of(kind, probe), "alerts: when")
                except ConfigError as error:
                    self._wrong("alerts", str(error))

    def _check_texts(self, plan: dict[str, Any]) -> None:
        """Check what `Target` does not check."""
        if "host" in plan and not isinstance(plan["host"], str):
            self._wrong("host", f"host = {shown(plan.pop('host'))} must be text")
        labels = plan.get("labels", {})
        if not isinstance(labels, dict) or not all(isinstance(e, str) for e in labels.values()):
            self._wrong("labels", "labels must be a table of texts")
            del plan["labels"]

    def _plan(
        self, named: dict[str, Any], kind: str, plan: dict[str, Any], **more: Any
    ) -> Target | None:
        try:
            return Target(**named, probe=kind, **plan, **more)
        except (ConfigError, TypeError, ValueError) as error:
            together = error
        alone = 0
        for key, each in (*named.items(), *plan.items()):
            try:
                Target(**{"name": "-", "probe": kind, key: each})
            except (ConfigError, TypeError, ValueError) as error:
                alone += 1
                self._wrong(key, _bare(error))
        if not alone:
            contradicting = [key for key in ("interval", *_BOUNDS) if key in plan]
            self._wrong(contradicting[0] if contradicting else "", _bare(together))
        return None

    def _nearer(self, key: str, what: str) -> str:
        """An unknown option of a probe may have been meant as a key of the target itself."""
        near = get_close_matches(key, _OWN_KEYS, 1, 0.75)
        if what.startswith("is not an option") and "did you mean" not in what and near:
            return f"is not an option; did you mean {near[0]}?"
        return what

    def _wrong(self, key: str, what: str) -> None:
        if key in self._unset:
            return
        self._sound = False
        if key and key not in self._own and self._group is not None:
            line = self._tables.group_line(self._group)
            self._tables.wrong(line, f"group {self._group!r}: {what}")
        else:
            self._tables.wrong(self._line, f"{self._where}: {what}")


class _UnusedGroup(_TargetReader):
    """Reads a group as a target that has only what the group sets."""

    def _wrong(self, key: str, what: str) -> None:
        # A target may add what the group lacks.
        if self._group is not None and key in self._tables.groups[self._group]:
            super()._wrong(key, what)


def _bare(error: BaseException) -> str:
    """The message of an error without the target's name, which is printed anyway."""
    return re.sub(r"^target '.*?': ", "", str(error))
