"""The keys of settings: how each can be written, its environment variable, and near misses.

A key is the one name of a value (`worker.polling.min_interval`). It has spellings: itself, a
variant in milliseconds if it is a duration, and old names. Each spelling has environment variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from pollwise.core.strategies.base import Strategy
from pollwise.settings import groups
from pollwise.settings.models import default_strategy, fields, is_polling, reader_of
from pollwise.settings.strategies import ADDED, NAMES, STRATEGIES, parameters
from pollwise.settings.values import ValueReader, is_duration

PREFIX = "POLLWISE_"
#: Names the settings file; it is not a setting.
FILE_VARIABLE = "POLLWISE_CONFIG"
MILLISECONDS = "_ms"
#: The key from before there were strategies.
OLD_KEY = "poll_interval"
#: The end of a name that says its unit is the second.
_SECONDS = re.compile(r"_(?:seconds?|secs?|s)$", re.IGNORECASE)
_NUMBERS = "A number is in seconds there"
#: What other projects call a batch size in a polling table, and the settings that decide it here.
BATCH_SIZE = "polling.batch_size"
BATCH_SIZE_IS = {
    f"outbox.{BATCH_SIZE}": "outbox.batch",
    f"worker.{BATCH_SIZE}": "worker.concurrency and worker.prefetch",
}
# Most people set the worker, so variables for its polling do not name the section.
SHORT_FOR = "worker."


@dataclass(frozen=True)
class Spelling:
    """What a written key means."""

    key: str
    milliseconds: bool = False
    deprecated: bool = False


@dataclass(frozen=True)
class DocumentedKey:
    """One line of the reference page."""

    key: str
    kind: str
    meaning: str
    default: str
    variable: str


def documented_keys() -> list[DocumentedKey]:
    """Every key except the parameters of strategies, which are the same in every polling table."""
    rows: list[DocumentedKey] = []
    for section, name, field in fields():
        key, meaning = f"{section}.{name}", field.description or ""
        if not is_polling(field):
            reader = reader_of(field)
            default = reader.text(field.default)
            rows.append(DocumentedKey(key, reader.kind, meaning, default, variables_of(key)[0]))
            continue
        chosen = f"{key}.strategy"
        kind, variable = NAMES.kind, variables_of(chosen)[0]
        rows.append(DocumentedKey(chosen, kind, meaning, default_strategy(key), variable))
    return rows


@cache
def polling_tables() -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for section, name, field in fields() if is_polling(field))


@cache
def tables() -> tuple[str, ...]:
    """Every table that a settings file can have."""
    return (*_sections(), *polling_tables())


@cache
def spellings() -> Mapping[str, Spelling]:
    """Every way to write a key, and what it means."""
    known = _spelled(_readers())
    for table in polling_tables():
        for place in (table, table.rpartition(".")[0]):
            old, new = f"{place}.{OLD_KEY}", f"{table}.interval"
            known[old] = Spelling(new, deprecated=True)
            known[old + MILLISECONDS] = Spelling(new, milliseconds=True, deprecated=True)
    return known


def added_spellings() -> Mapping[str, Spelling]:
    """The same for the parameters of strategies that packages add; those of Pollwise come first."""
    added = _spelled(
        pair for table in polling_tables() for pair in _parameters(table, ADDED.loaded())
    )
    return {written: it for written, it in added.items() if written not in spellings()}


def _spelled(readers: Iterable[tuple[str, ValueReader]]) -> dict[str, Spelling]:
    known: dict[str, Spelling] = {}
    for key, reader in readers:
        known[key] = Spelling(key)
        if is_duration(reader):
            known[key + MILLISECONDS] = Spelling(key, milliseconds=True)
    return known


def spelling_of(written: str) -> Spelling | None:
    """What a written key means, or None if there is no such key."""
    known = spellings().get(written)
    if known is None:
        group = groups.parsed_key(written)
        known = None if group is None else Spelling(*group)
    if known is None and written.rpartition(".")[0] in polling_tables():
        known = added_spellings().get(written)
    return known


@cache
def variables() -> Mapping[str, str]:
    """Every environment variable, and the spelling that it sets."""
    return {name: written for written in spellings() for name in variables_of(written)}


def added_variable(name: str) -> str | None:
    """The spelling that a variable sets, if it is a parameter of a strategy of a package."""
    return next((each for each in added_spellings() if name in variables_of(each)), None)


def variables_of(written: str) -> list[str]:
    """The environment variables of a spelling; the first is the recommended one."""
    names = [written]
    if written.startswith((f"{SHORT_FOR}polling.", f"{SHORT_FOR}{OLD_KEY}")):
        names.insert(0, written.removeprefix(SHORT_FOR))
    return [PREFIX + name.upper().replace(".", "_") for name in names]


def advice_for_key(written: str) -> str:
    """What to write instead of a key that does not exist."""
    decided_by = BATCH_SIZE_IS.get(written.replace("-", "_"))
    if decided_by:
        return f"is not a setting; how much a poll claims is decided by {decided_by}"
    if written in tables():
        return f"is a table; write [{written}] and its keys: {_keys_in(written)}"
    of_group = groups.advice(written)
    if of_group:
        return of_group
    duration = _without_seconds(written)
    if duration in spellings():
        return f"is not a setting; did you mean {spellings()[duration].key}? {_NUMBERS}"
    near = _nearest_key(written)
    if near:
        return f"is not a setting; did you mean {near}?"
    table = written.rpartition(".")[0]
    if table in tables():
        return f"is not a setting; [{table}] has {_keys_in(table)}"
    return f"is not a setting; the tables are {_listed_tables()}"


def _without_seconds(name: str) -> str:
    """A name without the unit at its end; "" if it has none, or is not that of a duration."""
    bare = _SECONDS.sub("", name)
    known = f"{bare}{MILLISECONDS}" in spellings() or bare in variables()
    return bare if known and bare != name else ""


def advice_for_table(written: str) -> str:
    """What to write instead of a table that does not exist."""
    near = _nearest(written, tables())
    return f"did you mean [{near}]?" if near else f"the tables are {_listed_tables()}"


def advice_for_variable(name: str) -> str:
    """What to set instead of a variable that does not exist."""
    for key, decided_by in BATCH_SIZE_IS.items():
        if name in variables_of(key):
            return f"how much a poll claims is decided by {decided_by}"
    duration = variables().get(_without_seconds(name), "")
    if f"{duration}{MILLISECONDS}" in spellings():
        return f"did you mean {variables_of(spellings()[duration].key)[0]}? {_NUMBERS}"
    of_worker = PREFIX + f"{SHORT_FOR}{name.removeprefix(PREFIX)}".upper().replace(".", "_")
    if of_worker in variables():
        return f"did you mean {of_worker}?"
    # Compared without the prefix, which would make all names look alike.
    current = [each.removeprefix(PREFIX) for each, at in variables().items() if not _is_old(at)]
    near = _nearest(name.removeprefix(PREFIX), current)
    if near:
        return f"did you mean {PREFIX}{near}?"
    begins = " or ".join(f"{PREFIX}{word}_" for word in ("POLLING", *map(str.upper, _sections())))
    return f"unset it; settings begin with {begins}, and {FILE_VARIABLE} names the file"


def _readers() -> Iterable[tuple[str, ValueReader]]:
    for section, name, field in fields():
        key = f"{section}.{name}"
        if not is_polling(field):
            yield key, reader_of(field)
            continue
        yield f"{key}.strategy", NAMES
        yield from _parameters(key, STRATEGIES)


def _parameters(
    table: str, strategies: Mapping[str, type[Strategy]]
) -> Iterable[tuple[str, ValueReader]]:
    for strategy in strategies.values():
        for each in parameters(strategy):
            yield f"{table}.{each.key}", each.reader


def _nearest_key(written: str) -> str | None:
    """The key that was probably meant, or None.

    First a key of the same section with the same last part, then one with a similar last part, in
    its own table before the others.
    """
    table, _, last = written.rpartition(".")
    current = [each for each in spellings() if not _is_old(each)]
    current += added_spellings()
    section = table.partition(".")[0]
    for each in current:
        if each.startswith(f"{section}.") and each.endswith(f".{last}"):
            return each
    for place in (table, None):
        by_last: dict[str, list[str]] = {}
        for each in current:
            here, _, name = each.rpartition(".")
            if place is None or here == place:
                by_last.setdefault(name, []).append(each)
        near = _nearest(last, by_last)
        if near and not table:
            return by_last[near][0]  # the worker's key, if there is one
        if near:
            return difflib.get_close_matches(written, by_last[near], 1, cutoff=0)[0]
    return None


def _nearest(word: str, words: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word.lower(), {each.lower(): 0 for each in words}, 1)
    return next((each for each in words if near and each.lower() == near[0]), None)


def _sections() -> Iterable[str]:
    return dict.fromkeys(section for section, _, _ in fields())


def _is_old(written: str) -> bool:
    return spellings()[written].deprecated


def _keys_in(table: str) -> str:
    every = [key for key, _ in _readers()]
    every += [each.key for each in added_spellings().values()]
    inside = (key for key in every if key.rpartition(".")[0] == table)
    return ", ".join(dict.fromkeys(key.rpartition(".")[2] for key in inside))


def _listed_tables() -> str:
    return ", ".join(f"[{table}]" for table in tables())
