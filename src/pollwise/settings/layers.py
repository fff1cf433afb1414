"""Reads the layers of settings: the file, the environment and the arguments.

Each layer becomes a mapping from key to value. Problems are collected instead of raised, so that
one start reports everything that must be fixed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.runtime.variables import NO_SETTINGS
from pollwise.settings.groups import is_table, parsed_variable
from pollwise.settings.keys import (
    FILE_VARIABLE,
    MILLISECONDS,
    PREFIX,
    added_variable,
    advice_for_key,
    advice_for_table,
    advice_for_variable,
    spelling_of,
    tables,
    variables,
    variables_of,
)
from pollwise.settings.strategies import FIXED_STRATEGY
from pollwise.settings.values import quoted, read_milliseconds, shown

FILE = Path("pollwise.toml")
ARGUMENT = "argument"

# Kubernetes sets these variables in every pod if a Service's name begins with "pollwise".
_OF_KUBERNETES = re.compile(r"_(?:SERVICE_(?:HOST|PORT)|PORT_\d+_(?:TCP|UDP|SCTP))(?:_|$)")
_LINK_OF_KUBERNETES = re.compile(r"(?:tcp|udp|sctp)://")


@dataclass(frozen=True)
class GivenValue:
    """One value that was set: as written, what it means, and where it came from."""

    key: str
    written: str
    raw: object
    value: object
    origin: str

    def __str__(self) -> str:
        return f"{self.written} = {shown(self.raw, self.written)} ({self.origin})"


Layer = Mapping[str, GivenValue]
Entry = tuple[str, object, str]


class LayerReader:
    """Reads the layers, and collects problems, deprecations and notes."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.deprecations: list[str] = []
        self.notes: list[str] = []

    def file(self, file: Path | None, environ: Mapping[str, str]) -> Layer:
        """The settings file: `file`, else the one of POLLWISE_CONFIG, else ./pollwise.toml."""
        path, named_by = file, ARGUMENT
        if path is None and environ.get(FILE_VARIABLE):
            path, named_by = Path(environ[FILE_VARIABLE]), f"environment variable {FILE_VARIABLE}"
        if path is None:
            if not FILE.exists():
                return {}
            path, named_by = FILE, "found in the current directory"
        return self._layer(self._leaves(_parsed(path, named_by), str(path)))

    def tree(self, tables: Mapping[str, object], origin: str) -> Layer:
        """Values in tables, such as those that were changed while a fleet ran."""
        return self._layer(self._leaves(tables, origin))

    def environment(self, environ: Mapping[str, str], groups: Sequence[str] = ()) -> Layer:
        """The environment variables; `groups` are the groups known so far."""
        return self._layer(self._set_variables(environ, groups))

    def arguments(self, overrides: Mapping[str, object]) -> Layer:
        """The arguments. None is a flag that was not used."""
        leaves = self._leaves(overrides, ARGUMENT)
        return self._layer(leaf for leaf in leaves if leaf[1] is not None)

    def _leaves(self, tree: Mapping[str, object], origin: str, above: str = "") -> Iterator[Entry]:
        for name, value in tree.items():
            written = f"{above}{name}"
            if not isinstance(value, Mapping) or spelling_of(written) is not None:
                yield written, value, origin
            elif written in tables() or is_table(written):
                yield from self._leaves(value, origin, f"{written}.")
            else:
                advice = advice_for_table(written)
                self.problems.append(f"[{written}] ({origin}) is not a table of settings; {advice}")

    def _set_variables(self, environ: Mapping[str, str], groups: Sequence[str]) -> Iterator[Entry]:
        for name, value in sorted(environ.items()):
            if not name.startswith(PREFIX) or name == FILE_VARIABLE or name in NO_SETTINGS:
                continue
            if _of_kubernetes(name, value):
                continue
            origin = f"environment variable {name}"
            written = variables().get(name) or parsed_variable(name, groups) or added_variable(name)
            if written is None:
                advice = advice_for_variable(name)
                self.problems.append(f"{origin} = {shown(value, name)} is not a setting; {advice}")
            elif value:  # In Compose files and unit files, an empty variable means "not set".
                yield written, value, origin

    def _layer(self, entries: Iterable[Entry]) -> Layer:
        layer: dict[str, GivenValue] = {}
        for written, raw, origin in entries:
            for given in self._given(written, raw, origin):
                other = layer.setdefault(given.key, given)
                if other is not given:
                    self._refuse(f"{other} and {given} contradict each other; keep one")
        return layer

    def _given(self, written: str, raw: object, origin: str) -> Iterator[GivenValue]:
        spelling = spelling_of(written)
        if spelling is None:
            given = GivenValue(written, written, raw, raw, origin)
            self._refuse(f"{given} {advice_for_key(written)}")
            return
        given = GivenValue(spelling.key, written, raw, raw, origin)
        if spelling.milliseconds:
            try:
                given = GivenValue(spelling.key, written, raw, read_milliseconds(raw), origin)
            except ValueError as error:
                self._refuse(f"{given} {error}")
                return
        yield given
        if spelling.deprecated:
            table = spelling.key.rpartition(".")[0]
            yield GivenValue(f"{table}.strategy", written, raw, FIXED_STRATEGY, origin)
            self.deprecations.append(_deprecation(given, table, spelling.milliseconds))

    def _refuse(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _parsed(path: Path, named_by: str) -> dict[str, object]:
    """The file's tables. A broken file raises at once: further errors would only follow from it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        problem = f"there is no file {path} ({named_by}); create it or name another file"
    except tomllib.TOMLDecodeError as error:
        problem = (
            f"{path} is not valid TOML: {error}; fix that line (text needs quotes: "
            f'lease = "60s", tables need brackets: [worker.polling])'
        )
    except UnicodeDecodeError as error:
        problem = f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8"
    except (ValueError, RecursionError):  # A number of 5,000 digits, brackets 5,000 deep.
        problem = f"{path} is not a settings file: a value in it is far too large; fix it"
    except OSError as error:
        problem = f"{path} ({named_by}) cannot be read: {error.strerror}; name a readable file"
    # Raised here so that the error has no context with text of the file: it may hold a password.
    raise ConfigError(problem)


def _of_kubernetes(name: str, value: str) -> bool:
    # Even POLLWISE_WORKER_METRICS_PORT, beside a Service "pollwise-worker-metrics".
    if name.endswith("_PORT") and _LINK_OF_KUBERNETES.match(value):
        return True
    return name not in variables() and _OF_KUBERNETES.search(name) is not None


def _deprecation(given: GivenValue, table: str, milliseconds: bool) -> str:
    """How to write the setting today, in the same kind of layer."""
    strategy = f"{table}.strategy"
    interval = f"{table}.interval" + (MILLISECONDS if milliseconds else "")
    if given.origin.startswith("environment variable"):
        chosen, length = variables_of(strategy)[0], variables_of(interval)[0]
        instead = f"set {chosen}={FIXED_STRATEGY} and {length}={given.raw}"
    elif given.origin == ARGUMENT:
        instead = f"give {strategy}={FIXED_STRATEGY} and {interval}={given.raw}"
    else:
        value = quoted(given.raw) if isinstance(given.raw, str) else given.raw
        last = interval.rpartition(".")[2]
        instead = f'write [{table}] with strategy = "{FIXED_STRATEGY}" and {last} = {value}'
    bare = not milliseconds and re.fullmatch(r"[\d.]+", str(given.raw))
    unit = f" and means {given.raw} seconds, as a number without a unit does" if bare else ""
    return f"{given} is deprecated{unit}; {instead}"
