"""fleet.toml: the targets of a fleet in a file.

    [group.shop]
    type = "http"
    timeout = "10s"
    headers = { Authorization = "Bearer ${SHOP_TOKEN}" }

    [[target]]
    name = "front page"
    group = "shop"
    url = "https://shop.example/"

A target takes what its group says and it does not. `${NAME}` in a text is the environment's, so
that secrets need not be in the file; `$${` writes a plain `${`.

Everything that is wrong is told at once, with its line, and then no target is made at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pollwise.durations import shown
from pollwise.errors import ConfigError, PollwiseError
from pollwise.fleet.actions import Put, Webhook
from pollwise.fleet.probes import MAKERS, made
from pollwise.fleet.probes.options import BadOptions
from pollwise.fleet.secrets import hide, without_hidden
from pollwise.fleet.targets import Action, Target
from pollwise.fleet.toml_lines import Lines, Problem, Table, parsed

#: What a target's table may have besides the options of its probe.
PLAN_KEYS = (
    "base_interval", "dead_after", "host", "interval", "labels", "max_interval", "min_interval",
    "priority", "quiet", "timeout", "weight",
)  # fmt: skip
ACTION_KEYS = ("put", "webhook")
_OWN_KEYS = ("group", "name", "type", *PLAN_KEYS, *ACTION_KEYS)
_BOUNDS = ("base", "min_interval", "max_interval")
_VARIABLE = re.compile(r"\$(\$)?\{([^{}\n]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOLD_MAX = 100


class FleetFileError(ConfigError):
    """A file of targets that cannot be used. `problems` has each with its line."""

    def __init__(self, path: Path | str, problems: Sequence[Problem]) -> None:
        self.problems = tuple((line, without_hidden(what)) for line, what in problems)
        lines = [f"  {path}:{line}: {what}" for line, what in self.problems[:_TOLD_MAX]]
        if len(self.problems) > _TOLD_MAX:
            lines.append(f"  … and {len(self.problems) - _TOLD_MAX} more")
        count = f"{len(self.problems)} error{'s' if len(self.problems) > 1 else ''}"
        # What follows (nothing is started, only the store is known) is the caller's to tell.
        super().__init__("\n".join([f"{path} has {count}:", *lines]))


@dataclass(frozen=True, slots=True)
class FleetFile:
    """What a file says: the targets, in its order. `close()` closes queues that it put into."""

    path: Path
    targets: tuple[Target, ...]
    puts: tuple[Put, ...] = ()
    #: Those it has, be there a target in them or not.
    groups: frozenset[str] = frozenset()

    async def close(self) -> None:
        for each in self.puts:
            await each.close()


def read(path: Path | str, environment: Mapping[str, str] | None = None) -> FleetFile:
    """Read a file of targets; FleetFileError tells all that is wrong with it."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FleetFileError(path, [(line, "is not written in UTF-8")]) from None
    return read_text(text, path, environment)


def read_text(
    text: str, path: Path | str = "fleet.toml", environment: Mapping[str, str] | None = None
) -> FleetFile:
    """Read the text of such a file."""
    reader = _Reader(text.replace("\r\n", "\n"), os.environ if environment is None else environment)
    targets = reader.targets()
    if reader.problems:
        raise FleetFileError(path, sorted(set(reader.problems)))
    groups = {*reader.groups, *(each.group for each in targets if each.group is not None)}
    return FleetFile(Path(path), tuple(targets), tuple(reader.puts.values()), frozenset(groups))


class _Reader:
    def __init__(self, text: str, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._document, self.problems, self._lines = parsed(text)
        self.puts: dict[str, Put] = {}
        self._actions: dict[str, Action] = {}
        self._groups: dict[str, dict[str, Any]] = {}

    def targets(self) -> list[Target]:
        """The targets that are right; what is wrong with the others is in `problems`."""
        for key in self._document:
            if key not in ("target", "group"):
                near = get_close_matches(key, ("target", "group"), 1)
                hint = "[[target]]" if not near or near[0] == "target" else "[group.name]"
                self._wrong(self._lines.tops.get(key, 1), f"{key} is not known; write {hint}")
        self._read_groups()
        tables = self._document.get("target", [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            line = self._lines.tops.get("target", 1)
            self._wrong(line, "target is not a list of tables; write [[target]]")
            return []
        if not tables and not self.problems:
            self._wrong(1, "there is no target; write [[target]] and its name, type and options")
        names: dict[str, int] = {}
        made_ones: list[Target] = []
        for number, table in enumerate(tables):
            place: Table = ("target", number)
            line = self._lines.table(place)
            name = table.get("name")
            if isinstance(name, str) and name:
                if name in names:
                    at = self._lines.key(place, "name")
                    self._wrong(at, f"there is a target {name!r} already, in line {names[name]}")
                names.setdefault(name, line)
            target = _TargetReader(self, place, self._plain(table, place)).target()
            if target is not None:
                made_ones.append(target)
        return made_ones

    def _read_groups(self) -> None:
        groups = self._document.get("group", {})
        if not isinstance(groups, dict):
            self._wrong(self._lines.tops.get("group", 1), "group is no table; write [group.name]")
            return
        for name, table in groups.items():
            place: Table = ("group", name)
            if not isinstance(table, dict):
                line = self._lines.tops.get("group", 1)
                self._wrong(line, f"{name} is not in a group; write [group.name] above it")
                continue
            for key in ("name", "group"):
                if key in table:
                    line = self._lines.key(place, key)
                    self._wrong(line, f"a group has no {key}; only a target does")
            kept = {key: each for key, each in table.items() if key not in ("name", "group")}
            self._groups[name] = self._plain(kept, place)

    def _plain(self, table: dict[str, Any], place: Table) -> dict[str, Any]:
        return {
            key: self._with_variables(each, self._lines.key(place, key))
            for key, each in table.items()
        }

    def _with_variables(self, value: Any, line: int) -> Any:
        if isinstance(value, str) and "${" in value:
            return _VARIABLE.sub(lambda found: self._variable(found, line), value)
        if isinstance(value, list):
            return [self._with_variables(each, line) for each in value]
        if isinstance(value, dict):
            return {key: self._with_variables(each, line) for key, each in value.items()}
        return value

    def _variable(self, found: re.Match[str], line: int) -> str:
        escaped, name = found.groups()
        if escaped or not _NAME.fullmatch(name):  # ${ is no variable in, say, an expression
            return found[0].removeprefix("$") if escaped else found[0]
        value = self._environment.get(name)
        if value is None:
            self._wrong(line, f"the environment has no {name}; set it, or write $${{ for ${{")
            return "-"
        hide(value)
        return value

    def _wrong(self, line: int, what: str) -> None:
        self.problems.append((line, what))

    def action(self, key: str, given: Any) -> Action:
        """The action that a table asks for; the same one for all that ask for the same."""
        written = f"{key} {given!r}"
        found = self._actions.get(written)
        if found is None:
            makers: dict[str, Callable[..., Action]] = {"webhook": Webhook, "put": self._put}
            needed = "url" if key == "webhook" else "queue"
            arguments = {needed: given} if isinstance(given, str) else given
            if not isinstance(arguments, dict) or needed not in arguments:
                raise ConfigError(f"needs {needed} = '…', as text or in a table")
            known = _ARGUMENTS[key]
            for name in arguments:
                if name not in known:
                    near = get_close_matches(name, known, 1)
                    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                    raise ConfigError(f"has no {name}; {hint}")
            found = self._actions[written] = makers[key](**arguments)
        return found

    def _put(self, queue: str, **given: Any) -> Put:
        put = Put(queue, **given)
        self.puts[f"{queue} {given!r}"] = put
        return put

    def group(self, name: str) -> dict[str, Any] | None:
        """What a group says; None if the file has groups, but not this one."""
        return self._groups.get(name, None if self._groups else {})

    @property
    def groups(self) -> list[str]:
        return list(self._groups)

    @property
    def lines(self) -> Lines:
        return self._lines


_ARGUMENTS = {
    "webhook": ("url", "secret", "timeout", "headers", "verify", "ca"),
    "put": ("queue", "kind", "priority", "keyed"),
}


class _TargetReader:
    """Reads one target; every mistake is told where it stands, in the target or in its group."""

    def __init__(self, file: _Reader, place: Table, own: dict[str, Any]) -> None:
        self._file = file
        self._place = place
        self._own = own
        self._sound = True
        self._name = own["name"] if isinstance(own.get("name"), str) else ""
        self._group: str | None = None
        self._given = self._merged()

    def target(self) -> Target | None:
        """The target, or None when something was wrong with it."""
        given = self._given
        if "name" not in given:
            self._wrong("", "a target needs a name")
        kind = given.get("type")
        if kind is None:
            self._wrong("", f"a target needs a type: one of {', '.join(sorted(MAKERS))}")
        elif not isinstance(kind, str) or kind not in MAKERS:
            near = get_close_matches(str(kind).lower(), MAKERS, 1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(MAKERS))}"
            )
            self._wrong("type", f"there is no probe of type {shown(kind)}; {hint}")
            kind = None
        actions = self._read_actions()
        plan = {key: given[key] for key in PLAN_KEYS if key in given}
        self._check_texts(plan)
        options = {key: each for key, each in given.items() if key not in _OWN_KEYS}
        if kind is None:
            # What its options may be is not known; its plan is checked all the same.
            self._plan({"name": given.get("name", "-")}, "http", plan)
            return None
        target = self._plan(
            {"name": given.get("name", "-")},
            kind,
            plan,
            options=options,
            group=self._group,
            actions=actions,
        )
        probed = target or Target("-", kind, options=options)
        try:
            made(probed)
        except BadOptions as error:
            for key, what in error.problems:
                self._wrong(key, f"{key} {self._nearer(key, what)}")
        except (PollwiseError, ImportError) as error:
            self._wrong("type", _bare(error))
        return target if self._sound else None

    def _merged(self) -> dict[str, Any]:
        own = self._own
        name = own.get("group")
        if name is None:
            return own
        if not isinstance(name, str) or not name:
            self._wrong("group", f"group = {shown(name)} must be text")
            return own
        group = self._file.group(name)
        if group is None:
            near = get_close_matches(name, self._file.groups, 1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"write [group.{name}], empty if need be"
            )
            self._wrong("group", f"there is no group {name!r}; {hint}")
            return own
        self._group = name
        merged = dict(group)
        # An interval and bounds exclude each other: what the target says replaces either.
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

    def _read_actions(self) -> tuple[Action, ...]:
        found: list[Action] = []
        for key in ACTION_KEYS:
            if key in self._given:
                try:
                    found.append(self._file.action(key, self._given[key]))
                except (PollwiseError, TypeError) as error:
                    self._wrong(key, f"{key}: {error}")
        return tuple(found)

    def _check_texts(self, plan: dict[str, Any]) -> None:
        """What `Target` takes on trust."""
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
        """A key that is no option of a probe may have been meant for the target itself."""
        near = get_close_matches(key, _OWN_KEYS, 1, 0.75)
        if what.startswith("is no option") and "did you mean" not in what and near:
            return f"is no option; did you mean {near[0]}?"
        return what

    def _wrong(self, key: str, what: str) -> None:
        self._sound = False
        lines, place = self._file.lines, self._place
        if key and key not in self._own and self._group is not None:
            self._file.problems.append(
                (lines.key(("group", self._group), key), f"group {self._group!r}: {what}")
            )
            return
        named = f"target {self._name!r}: " if self._name else ""
        self._file.problems.append((lines.key(place, key), f"{named}{what}"))


def _bare(error: BaseException) -> str:
    """What an error says, without the name of the target, which is told already."""
    return (
        re.sub(r"^target '.*?': ", "", str(error))
        if isinstance(error, PollwiseError)
        else str(error)
    )
