"""fleet.toml: the targets of a fleet in a file.

    [group.shop]
    type = "http"
    timeout = "10s"
    headers = { Authorization = "Bearer ${SHOP_TOKEN}" }

    [[target]]
    name = "front page"
    group = "shop"
    url = "https://shop.example/"

A target inherits the keys of its group that it does not set itself. `${NAME}` in a text is replaced
by an environment variable, so that secrets need not be in the file; `$${` stands for a plain `${`.

All errors are reported at once, each with its target and key, and then no target is created.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pollwise.durations import shown
from pollwise.errors import ConfigError, PollwiseError, did_you_mean
from pollwise.fleet.actions import PutJob, Webhook
from pollwise.fleet.probes import MODULES, make_probe
from pollwise.fleet.probes.options import BadOptions, hint
from pollwise.fleet.targets import Action, Target
from pollwise.runtime.redact import hide, without_hidden

#: What a target's table may have apart from the options of its probe.
PLAN_KEYS = (
    "base_interval", "dead_after", "host", "interval", "labels", "max_interval", "min_interval",
    "priority", "quiet", "timeout", "weight",
)  # fmt: skip
ACTION_KEYS = ("put", "webhook")
_OWN_KEYS = ("group", "name", "type", *PLAN_KEYS, *ACTION_KEYS)
_BOUNDS = ("base_interval", "min_interval", "max_interval")
_ARGUMENTS = {
    "webhook": ("url", "secret", "timeout", "headers", "verify", "ca"),
    "put": ("queue", "kind", "priority", "keyed"),
}
_VARIABLE = re.compile(r"\$(\$)?\{([^{}\n]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TARGET_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*target[ \t]*\]\]", re.MULTILINE)
_AT_LINE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)")
_PRINTED_MAX = 100

#: The line where the error is, if known (that of a target is the line of its header), and the
#: error.
Problem = tuple[int | None, str]


class FleetFileError(ConfigError):
    """A file of targets that cannot be used. `problems` has each error and its line, if known."""

    def __init__(self, path: Path | str, problems: Sequence[Problem]) -> None:
        self.problems = tuple((line, without_hidden(what)) for line, what in problems)
        printed = [
            f"  {path}: {what}" if line is None else f"  {path}:{line}: {what}"
            for line, what in self.problems[:_PRINTED_MAX]
        ]
        if len(self.problems) > _PRINTED_MAX:
            printed.append(f"  … and {len(self.problems) - _PRINTED_MAX} more")
        count = f"{len(self.problems)} error{'s' if len(self.problems) > 1 else ''}"
        # The caller adds what follows from it: nothing is started, or only the store is used.
        super().__init__("\n".join([f"{path} has {count}:", *printed]))


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The targets of a file, in its order. `close()` closes the queues that `put` opened."""

    path: Path
    targets: tuple[Target, ...]
    puts: tuple[PutJob, ...] = ()
    #: All groups of the file, with and without targets.
    groups: frozenset[str] = frozenset()

    async def close(self) -> None:
        for each in self.puts:
            await each.close()


def read(path: Path | str, environment: Mapping[str, str] | None = None) -> FleetFile:
    """Read a file of targets; FleetFileError lists everything that is wrong with it."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FleetFileError(path, [(line, "is not encoded in UTF-8")]) from None
    return read_text(text, path, environment)


def read_text(
    text: str, path: Path | str = "fleet.toml", environment: Mapping[str, str] | None = None
) -> FleetFile:
    """Read the text of such a file."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FleetFileError(path, [_syntax_error(error, text)]) from None
    reader = _FileReader(text, document, os.environ if environment is None else environment)
    targets = reader.targets()
    if reader.problems:
        found = sorted(set(reader.problems), key=lambda each: (each[0] or 0, each[1]))
        raise FleetFileError(path, found)
    groups = {*reader.groups, *(each.group for each in targets if each.group is not None)}
    return FleetFile(Path(path), tuple(targets), tuple(reader.puts.values()), frozenset(groups))


def _syntax_error(error: tomllib.TOMLDecodeError, text: str) -> Problem:
    place = _AT_LINE.search(str(error))
    last = text.replace("\r\n", "\n").count("\n") + 1
    what = _AT_LINE.sub("", str(error))
    line = int(place[1]) if place is not None and place[1] is not None else last
    return line, f"is not valid TOML: {what[:1].lower()}{what[1:]}"


def _lines_of(pattern: re.Pattern[str], text: str) -> list[int]:
    return [text.count("\n", 0, found.start()) + 1 for found in pattern.finditer(text)]


class _FileReader:
    def __init__(self, text: str, document: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._text = text
        self._document = document
        self._environment = environment
        self.problems: list[Problem] = []
        self.puts: dict[str, PutJob] = {}
        self._actions: dict[str, Action] = {}
        #: What each group sets.
        self.groups: dict[str, dict[str, Any]] = {}

    def targets(self) -> list[Target]:
        """The targets that are correct; what is wrong with the others is in `problems`."""
        for key in self._document:
            if key not in ("target", "group"):
                near = get_close_matches(key, ("target", "group"), 1)
                form = "[group.name]" if near == ["group"] else "[[target]]"
                self.wrong(None, f"{key} is not known; write {form}")
        self._read_groups()
        tables = self._document.get("target", [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            self.wrong(None, "target is not a list of tables; write [[target]]")
            return []
        if not tables and not self.problems:
            self.wrong(None, "there is no target; write [[target]] and its name, type and options")
        lines: Sequence[int | None] = _lines_of(_TARGET_HEADER, self._text)
        if len(lines) != len(tables):  # some are inline tables, or a text holds such a line
            lines = [None] * len(tables)
        names: set[str] = set()
        found: list[Target] = []
        for table, line in zip(tables, lines, strict=True):
            name = table.get("name")
            if isinstance(name, str) and name:
                if name in names:
                    self.wrong(line, f"target {name!r} already exists; names must be unique")
                names.add(name)
            target = _TargetReader(self, line, table).target()
            if target is not None:
                found.append(target)
        return found

    def _read_groups(self) -> None:
        groups = self._document.get("group", {})
        if not isinstance(groups, dict):
            self.wrong(None, "group is not a table; write [group.name]")
            return
        for name, table in groups.items():
            if not isinstance(table, dict):
                self.wrong(None, f"{name} is not in a group; write [group.name] above it")
                continue
            for key in ("name", "group"):
                if key in table:
                    self.wrong(self.group_line(name), f"group {name!r}: {key} is only for targets")
            kept = {key: each for key, each in table.items() if key not in ("name", "group")}
            self.groups[name] = self.with_variables(kept, self.group_line(name), f"group {name!r}")

    def group_line(self, name: str) -> int | None:
        header = re.compile(
            rf"^[ \t]*\[[ \t]*group\.[\"']?{re.escape(name)}[\"']?[ \t]*\]", re.MULTILINE
        )
        return next(iter(_lines_of(header, self._text)), None)

    def with_variables(self, table: dict[str, Any], line: int | None, where: str) -> dict[str, Any]:
        """A table whose `${NAME}` are replaced."""

        def replaced(value: Any, key: str) -> Any:
            if isinstance(value, str) and "${" in value:
                return _VARIABLE.sub(lambda found: variable(found, key), value)
            if isinstance(value, list):
                return [replaced(each, key) for each in value]
            if isinstance(value, dict):
                return {name: replaced(each, key) for name, each in value.items()}
            return value

        def variable(found: re.Match[str], key: str) -> str:
            escaped, name = found.groups()
            if escaped or not _NAME.fullmatch(name):  # not a variable: part of an expression, say
                return found[0].removeprefix("$") if escaped else found[0]
            value = self._environment.get(name)
            if value is None:
                what = f"the environment variable {name} is not set; set it, or write $${{ for ${{"
                self.wrong(line, f"{where}: {key}: {what}")
                return "-"
            hide(value)
            return value

        return {key: replaced(each, key) for key, each in table.items()}

    def wrong(self, line: int | None, what: str) -> None:
        self.problems.append((line, what))

    def action(self, key: str, given: Any) -> Action:
        """The action that a table asks for; equal tables share one."""
        written = f"{key} {given!r}"
        found = self._actions.get(written)
        if found is None:
            makers: dict[str, Callable[..., Action]] = {"webhook": Webhook, "put": self._put}
            needed = "url" if key == "webhook" else "queue"
            arguments = {needed: given} if isinstance(given, str) else given
            if not isinstance(arguments, dict) or needed not in arguments:
                raise ConfigError(f"needs {needed} = '…', as text or in a table")
            for name in arguments:
                if name not in _ARGUMENTS[key]:
                    raise ConfigError(f"has no {name}; {hint(name, _ARGUMENTS[key])}")
            found = self._actions[written] = makers[key](**arguments)
        return found

    def _put(self, queue: str, **given: Any) -> PutJob:
        put = PutJob(queue, **given)
        self.puts[f"{queue} {given!r}"] = put
        return put


class _TargetReader:
    """Reads one target. Errors in inherited keys are reported once, for the group."""

    def __init__(self, file: _FileReader, line: int | None, table: dict[str, Any]) -> None:
        self._file = file
        self._line = line
        name = table.get("name")
        self._where = f"target {name!r}" if isinstance(name, str) and name else "a target"
        self._own = file.with_variables(table, line, self._where)
        self._sound = True
        self._group: str | None = None
        self._given = self._merged()

    def target(self) -> Target | None:
        """The target, or None if something is wrong with it."""
        given = self._given
        if "name" not in given:
            self._wrong("", "name is missing")
        kind = given.get("type")
        if kind is None:
            self._wrong("", f"type is missing: one of {', '.join(sorted(MODULES))}")
        elif not isinstance(kind, str) or kind not in MODULES:
            known = hint(str(kind).lower(), sorted(MODULES))
            self._wrong("type", f"type = {shown(kind)} is not a probe type; {known}")
            kind = None
        actions = self._read_actions()
        plan = {key: given[key] for key in PLAN_KEYS if key in given}
        self._check_texts(plan)
        named = {"name": given.get("name", "-")}
        if kind is None:
            # Its options cannot be checked without a type; everything else can.
            self._plan(named, "http", plan)
            return None
        options = {key: each for key, each in given.items() if key not in _OWN_KEYS}
        target = self._plan(named, kind, plan, options=options, group=self._group, actions=actions)
        try:
            make_probe(target or Target("-", kind, options=options))
        except BadOptions as error:
            for key, what in error.problems:
                self._wrong(key, f"{key} {self._nearer(key, what)}")
        except (PollwiseError, ImportError) as error:
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
        groups = self._file.groups
        if groups and name not in groups:
            advice = did_you_mean(name, groups, f"write [group.{name}], empty if need be")
            self._wrong("group", f"group = {name!r} does not exist; {advice}")
            return own
        self._group = name
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
        self._sound = False
        if key and key not in self._own and self._group is not None:
            line = self._file.group_line(self._group)
            self._file.wrong(line, f"group {self._group!r}: {what}")
        else:
            self._file.wrong(self._line, f"{self._where}: {what}")


def _bare(error: BaseException) -> str:
    """The message of an error without the target's name, which is printed anyway."""
    return re.sub(r"^target '.*?': ", "", str(error))
