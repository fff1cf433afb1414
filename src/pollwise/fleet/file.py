"""fleet.toml: the targets of a fleet in a file.

    [group.shop]
    type = "http"
    timeout = "10s"
    headers = { Authorization = "Bearer ${SHOP_TOKEN}" }

    [[target]]
    name = "front page"
    group = "shop"
    url = "https://shop.example/"

    [channel.ops]
    type = "webhook"
    url = "${OPS_URL}"

    [alerts]
    to = ["ops"]

A target inherits the keys of its group that it does not set itself. `${NAME}` in a text is replaced
by an environment variable, so that secrets need not be in the file; `$${` stands for a plain `${`.

All errors are reported at once, each with its target and key, and then no target is created.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pollwise.alerts.settings import NO_ALERTS, Alerts
from pollwise.alerts.windows import MaintenanceWindow
from pollwise.durations import seconds
from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.alerting.checks import check_parents
from pollwise.fleet.definitions.document import Document, parse
from pollwise.fleet.definitions.sections import alerts_of, maintenance_of
from pollwise.fleet.definitions.table import Problem, TargetTables
from pollwise.fleet.probes import is_probe_type
from pollwise.fleet.targets import TIMEOUT, Target
from pollwise.runtime.redact import without_hidden

#: The sections of a file, and how each is written.
_SECTIONS = {
    "alerts": "[alerts]",
    "channel": "[channel.name]",
    "group": "[group.name]",
    "maintenance": "[[maintenance]]",
    "target": "[[target]]",
}
_AT_LINE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)")
_PRINTED_MAX = 100


#: The time of the last change, the size and the inode of a file.
Signature = tuple[int, int, int]


class FleetFileError(ConfigError):
    """A file of targets that cannot be used. `problems` has each error and its line, if known."""

    def __init__(self, path: Path | str, problems: Sequence[Problem]) -> None:
        self.problems: tuple[tuple[int | None, str], ...] = tuple(
            (line, without_hidden(what)) for line, what in problems
        )
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
    """The targets of a file, in its order.

    groups: all groups of the file, with and without targets.
    tables, group_tables: the tables of the targets and groups by name, with `${NAME}` as written.
    maintenance: the maintenance windows of the file.
    alerts: its channels, and who hears of what; empty if it was read for views.
    alert_tables: the tables that these were made of, to tell whether they changed.
    signature: tells whether the file was changed since; None if it was not read from a file.
    """

    path: Path
    targets: tuple[Target, ...]
    groups: frozenset[str] = frozenset()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    group_tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    signature: Signature | None = None
    maintenance: tuple[MaintenanceWindow, ...] = ()
    alerts: Alerts = NO_ALERTS
    alert_tables: Mapping[str, Any] = field(default_factory=dict, repr=False)
    parts: FileParts = field(default_factory=lambda: FileParts(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class FileParts:
    """What was read, for the next time: targets whose text and surroundings are the same are not
    read again.

    targets: the targets and their tables, by the text of each table.
    around: what the targets depend on besides their own tables.
    """

    targets: Mapping[str, tuple[dict[str, Any], Target]] = field(default_factory=dict)
    around: object = None


def signature(path: Path) -> Signature | None:
    """A value that differs after a change of the file; None if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read(
    path: Path | str,
    environment: Mapping[str, str] | None = None,
    *,
    for_views: bool = False,
    before: FleetFile | None = None,
) -> FleetFile:
    """Read a file of targets; FleetFileError lists everything that is wrong with it.

    before: the file as it was read before: its targets are used again where nothing changed.
    environment: the variables that `${NAME}` stands for; those of the process by default.
    for_views: the targets are shown and not polled. Then variables that only probes need, such as
        passwords, may be unset.
    """
    path = Path(path)
    signed = signature(path)  # first: a change while it is read is then noticed
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FleetFileError(path, [(line, "is not encoded in UTF-8")]) from None
    found = read_text(text, path, environment, for_views=for_views, before=before)
    return replace(found, signature=signed)


def read_text(
    text: str,
    path: Path | str = "fleet.toml",
    environment: Mapping[str, str] | None = None,
    *,
    for_views: bool = False,
    before: FleetFile | None = None,
) -> FleetFile:
    """Read the text of such a file; the arguments are those of `read`."""
    try:
        parts = FileParts() if before is None else before.parts
        document = parse(text, {piece: table for piece, (table, _) in parts.targets.items()})
    except tomllib.TOMLDecodeError as error:
        raise FleetFileError(path, [_syntax_error(error, text)]) from None
    reader = _FileReader(text, document, environment, parts, for_views=for_views)
    alerts = reader.alerts()
    targets = reader.targets()
    maintenance = reader.maintenance(targets)
    if reader.problems:
        found = sorted(set(reader.problems), key=lambda each: (each[0] or 0, each[1]))
        raise FleetFileError(path, found)
    groups = {*reader.groups, *(each.group for each in targets if each.group is not None)}
    return FleetFile(
        Path(path),
        tuple(targets),
        frozenset(groups),
        {each["name"]: each for each in document.tables.get("target", ())},
        document.tables.get("group", {}),
        maintenance=maintenance,
        alerts=alerts,
        alert_tables=reader.alert_tables,
        parts=reader.parts(),
    )


@dataclass(frozen=True, slots=True)
class ListedTarget:
    """What views show of a target's definition."""

    name: str
    type: str
    group: str | None
    timeout: float
    behind: tuple[str, ...]
    origin: str = "file"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """What views show of a file: its targets, and its groups as written."""

    targets: tuple[ListedTarget, ...] = ()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def list_file(path: Path | str) -> ListedFile | None:
    """The targets of a file for views, which show a hundred thousand of them in seconds: the
    options of their probes and everything else that is not shown are not checked.

    None if something that is shown is wrong; then `read` says what.
    """
    try:
        tables = parse(Path(path).read_bytes().decode("utf-8-sig")).tables
        groups = tables.get("group", {})
        found = tuple(_listed(each, groups) for each in tables["target"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError):
        return None
    names = {each.name for each in found}
    sound = len(names) == len(found) and all(map(is_probe_type, {each.type for each in found}))
    return ListedFile(found, groups) if sound else None


def _listed(table: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> ListedTarget:
    group = table.get("group")
    inherited = groups[group] if group is not None and groups else {}
    name, type = table["name"], table.get("type") or inherited["type"]
    behind = table.get("behind", inherited.get("behind", ()))
    if not name or not isinstance(name, str) or "${" in f"{name}{type}{group}{behind}":
        raise ValueError(name)
    timeout = table.get("timeout", inherited.get("timeout", TIMEOUT))
    listed = (behind,) if isinstance(behind, str) else tuple(behind)
    return ListedTarget(name, type, group, seconds(timeout), listed)


def _syntax_error(error: tomllib.TOMLDecodeError, text: str) -> Problem:
    place = _AT_LINE.search(str(error))
    last = text.replace("\r\n", "\n").count("\n") + 1
    what = _AT_LINE.sub("", str(error))
    line = int(place[1]) if place is not None and place[1] is not None else last
    return line, f"is not valid TOML: {what[:1].lower()}{what[1:]}"


def _lines_of(pattern: re.Pattern[str], text: str) -> list[int]:
    found, line, counted = [], 1, 0
    for each in pattern.finditer(text):
        line += text.count("\n", counted, each.start())
        counted = each.start()
        found.append(line)
    return found


class _FileReader(TargetTables):
    origin = "file"

    def __init__(
        self,
        text: str,
        document: Document,
        environment: Mapping[str, str] | None,
        before: FileParts | None = None,
        *,
        for_views: bool,
    ) -> None:
        super().__init__(environment, for_views=for_views)
        self._text = text
        self._document = document.tables
        self._pieces = document.pieces
        self._before = before or FileParts()
        self._read: dict[str, tuple[dict[str, Any], Target]] = {}
        #: What the file says about alerts, with `${NAME}` replaced.
        self.alert_tables: dict[str, Any] = {}

    def alerts(self) -> Alerts:
        """The channels, and the routes of [alerts]. Called first: targets name channels."""
        channels, given = self._document.get("channel", {}), self._document.get("alerts", {})
        if not isinstance(channels, dict):
            self.wrong(None, "channel is not a table; write [channel.name]")
            channels = {}
        if not isinstance(given, dict):
            self.wrong(None, "alerts is not a table; write [alerts]")
            given = {}
        tables: dict[str, Any] = {}
        # Keys whose variable is not set, which is reported: nothing else is wrong with them.
        unset: dict[str | None, tuple[str, ...]] = {}
        for name, table in channels.items():
            if not isinstance(table, dict):
                self.wrong(None, f"{name} is not in a channel; write [channel.name] above it")
                continue
            line = self._header_line(f"channel.{name}")
            where, before = f"channel {name!r}", len(self.problems)
            tables[name] = self.with_variables(table, line, where)
            said = [what.removeprefix(f"{where}: ") for _, what in self.problems[before:]]
            unset[name] = tuple(f"{each.partition(':')[0]}:" for each in said)
            for key, start in (("url:", "the URL "), ("secret:", "a secret ")):
                if key in unset[name]:
                    unset[name] += (start,)
        self.channels = tables
        routes = self.with_variables(given, self._header_line("alerts"), "alerts")
        self.alert_tables = {"channel": tables, "alerts": routes}

        def wrong(name: str | None, what: str) -> None:
            if what.startswith(unset.get(name, ())):
                return
            where = "alerts" if name is None else f"channel {name!r}"
            header = "alerts" if name is None else f"channel.{name}"
            self.wrong(self._header_line(header), f"{where}: {what}")

        return alerts_of(tables, routes, wrong, for_views=self._for_views)

    def targets(self) -> list[Target]:
        """The targets that are correct; what is wrong with the others is in `problems`."""
        for key in self._document:
            if key == "fleet":
                self.wrong(None, "settings of the fleet do not belong here; write [fleet] in "
                           "pollwise.toml")  # fmt: skip
            elif key not in _SECTIONS:
                near = get_close_matches(key, _SECTIONS, 1)
                form = _SECTIONS[near[0] if near else "target"]
                self.wrong(None, f"{key} is not known; write {form}")
        self._read_groups()
        tables = self._document.get("target", [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            self.wrong(None, "target is not a list of tables; write [[target]]")
            return []
        if not tables and not self.problems:
            self.wrong(None, "there is no target; write [[target]] and its name, type and options")
        lines = self._lines("target", len(tables))
        names: set[str] = set()
        known = self._before.targets if self._before.around == self._around() else {}
        pieces: Iterable[str] = self._pieces or [""] * len(tables)
        found: list[Target] = []
        lined: dict[str, int | None] = {}
        for table, line, piece in zip(tables, lines, pieces, strict=True):
            name = table.get("name")
            if isinstance(name, str) and name:
                if name in names:
                    self.wrong(line, f"target {name!r} already exists; names must be unique")
                names.add(name)
            target = known[piece][1] if piece in known else self.target(table, line)
            if target is not None:
                found.append(target)
                if piece:
                    self._read[piece] = table, target
                lined[target.name] = line
        self._check_parents(found, names, lined)
        heard = not self.channels and next((each for each in found if each.alerts), None)
        if heard:
            self.wrong(
                lined[heard.name],
                f"target {heard.name!r}: nobody hears of its alerts, as the file has no channel; "
                "write [channel.ops] with a type, and to = ['ops'] under [alerts], or leave out "
                "alerts",
            )
        used = {str(table.get("group")) for table in tables}
        for group in self.groups.keys() - used:
            self.check_group(group)
        return found

    def parts(self) -> FileParts:
        """What was read, for the next time."""
        return FileParts(self._read, self._around())

    def _around(self) -> object:
        """What targets depend on besides their tables: groups, variables, channels."""
        environment = dict(self._environment)
        return self._for_views, self.written_groups, environment, sorted(self.channels or ())

    def _check_parents(
        self, targets: Sequence[Target], names: Collection[str], lines: Mapping[str, int | None]
    ) -> None:
        """Report targets that are behind an unknown one, or behind each other in a circle."""
        unknown = False
        for each in targets:
            for parent in each.behind:
                if parent not in names:
                    unknown = True
                    near = did_you_mean(parent, names, "name another target of the file")
                    what = f"behind: there is no target {parent!r}; {near}"
                    self.wrong(lines[each.name], f"target {each.name!r}: {what}")
        if not unknown and not self.problems:
            try:
                check_parents({each.name: each for each in targets})
            except ConfigError as error:
                self.wrong(None, str(error))

    def maintenance(self, targets: Iterable[Target]) -> tuple[MaintenanceWindow, ...]:
        """The maintenance windows that are correct, for these targets and all groups."""
        names = {each.name for each in targets} | set(self._written_names())
        tables = self._document.get("maintenance")
        lines = self._lines("maintenance", len(tables) if isinstance(tables, list) else 0)

        def wrong(number: int | None, what: str) -> None:
            self.wrong(None if number is None else lines[number], what)

        groups = self._known_groups()
        return maintenance_of(self._document, names, groups, time.time(), wrong)

    def _written_names(self) -> Iterator[str]:
        """The names in the tables of targets, also of those with errors."""
        tables = self._document.get("target", ())
        for each in tables if isinstance(tables, list) else ():
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                yield each["name"]

    def _known_groups(self) -> set[str]:
        tables = self._document.get("target", ())
        listed = tables if isinstance(tables, list) else ()
        used = [each.get("group") for each in listed if isinstance(each, dict)]
        return {*self.groups, *(each for each in used if isinstance(each, str))}

    def _lines(self, section: str, count: int) -> Sequence[int | None]:
        """The lines of the headers of a list of tables."""
        header = re.compile(rf"^[ \t]*\[\[[ \t]*{section}[ \t]*\]\]", re.MULTILINE)
        lines = _lines_of(header, self._text)
        # Some may be inline tables, or a text may hold such a line.
        return lines if len(lines) == count else [None] * count

    def _read_groups(self) -> None:
        groups = self._document.get("group", {})
        if not isinstance(groups, dict):
            self.wrong(None, "group is not a table; write [group.name]")
            return
        for name, table in groups.items():
            if not isinstance(table, dict):
                self.wrong(None, f"{name} is not in a group; write [group.name] above it")
                continue
            self.add_group(name, table)

    def group_line(self, name: str) -> int | None:
        return self._header_line(f"group.{name}")

    def _header_line(self, header: str) -> int | None:
        """The line of the header of a table, such as "group.shop"."""
        section, dot, name = header.partition(".")
        named = rf"\.[\"']?{re.escape(name)}[\"']?" if dot else ""
        found = re.compile(rf"^[ \t]*\[[ \t]*{section}{named}[ \t]*\]", re.MULTILINE)
        return next(iter(_lines_of(found, self._text)), None)
