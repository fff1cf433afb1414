"""Reads JSON: one object a line, an array, or what the commands of journald and AWS print.

| what | how it is recognised |
|---|---|
| journalctl -o json, -o json-pretty | objects with `__REALTIME_TIMESTAMP` |
| access logs in JSON | objects with `time_local`, `time_iso8601`, `msec` or `@timestamp` |
| aws logs filter-log-events, get-log-events | a list `events` |
| events that CloudWatch delivers to a subscription | a list `logEvents` |
| aws logs get-query-results | a list `results` of lists of `field` and `value` |
| Loki: logcli, query_range | `data.resultType` is "streams" |
| Prometheus and CloudWatch metrics | see `metrics` |
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pollwise.durations import shown
from pollwise.lab.traces.lines import BadLine, Cell, TraceText, listed, meant, place_of

#: Keys of times that only logs have. A log may be out of order: it is written when work ends.
LOG_KEYS = ("__realtime_timestamp", "time_iso8601", "time_local", "@timestamp", "requesttime")
#: nginx has this beside one of the others, with milliseconds.
_EXACT = "msec"
_ITEM = "item"
_DECODER = json.JSONDecoder()
_EXPECTED = "expected JSON, or lines with one arrival each"


def values(text: TraceText, first: Cell, lines: Iterator[Cell]) -> Iterator[Cell]:
    """The JSON values of a file, one a line or each over several lines.

    first: the first line. lines: those after it.
    """
    try:
        value = json.loads(first.value)
    except (ValueError, RecursionError):
        whole = text.rest(first.value)
        yield from _decoded(whole, text.number)
        return
    yield Cell(first.where, value)
    for line in lines:
        try:
            yield Cell(line.where, json.loads(line.value))
        except (ValueError, RecursionError) as error:
            problem = f"not JSON: {error}; give one object a line"
            raise BadLine(line.where, problem) from None


def _decoded(whole: str, number: int) -> Iterator[Cell]:
    """The values of a text, with the line in which each begins. number: that of the first."""
    at = 0
    while True:
        begin = at
        while at < len(whole) and whole[at] in " \t\r\n\ufeff":
            at += 1
        number += whole.count("\n", begin, at)
        if at == len(whole):
            return
        try:
            value, end = _DECODER.raw_decode(whole, at)
        except json.JSONDecodeError as error:
            line = number + whole.count("\n", at, error.pos)
            raise BadLine(line, f"not JSON: {error.msg}; {_EXPECTED}") from None
        except (ValueError, RecursionError) as error:
            raise BadLine(number, f"not JSON: {error}; {_EXPECTED}") from None
        yield Cell(number, value)
        number += whole.count("\n", at, end)
        at = end


def records(documents: Iterator[Cell], names: tuple[str, ...]) -> Iterator[Cell]:
    """The records in documents: each document, or the entries of the list that is inside.

    names: keys of times. An object that has one of them is a record itself.
    """
    for place, document in enumerate(documents):
        found = document.value
        if isinstance(found, list) and not place:
            yield from (Cell(f"{_ITEM} {n}", each) for n, each in enumerate(found, 1))
            continue
        name = _list_in(found, names)
        if name is None:
            yield document
            continue
        prefix = "" if document.where == 1 else f"{place_of(document.where)}, "
        for number, entry in enumerate(found[name]):
            yield Cell(f"{prefix}{name}[{number}]", _fields(entry) if name == "results" else entry)


def is_log(document: Any, names: tuple[str, ...]) -> bool:
    """True if the first document comes from a log, which may be out of order."""
    if not isinstance(document, dict):
        return False
    return _list_in(document, names) is not None or any(key.lower() in LOG_KEYS for key in document)


def _list_in(document: Any, names: tuple[str, ...]) -> str | None:
    if not isinstance(document, dict) or any(key.lower() in names for key in document):
        return None
    lists = ("events", "logEvents", "results")
    return next((each for each in lists if isinstance(document.get(each), list)), None)


def _fields(entry: Any) -> Any:
    """A row of CloudWatch Logs Insights as an object."""
    if not isinstance(entry, list):
        return entry
    fields = [each for each in entry if isinstance(each, dict) and "field" in each]
    return {str(each["field"]): each.get("value") for each in fields}


def streamed(document: Any) -> list[Cell] | None:
    """The times in an answer of Loki, in nanoseconds; None for another document."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, dict) or data.get("resultType") != "streams":
        return None
    found: list[Cell] = []
    streams = data.get("result")
    for n, stream in enumerate(streams if isinstance(streams, list) else ()):
        values = stream.get("values") if isinstance(stream, dict) else None
        for m, entry in enumerate(values if isinstance(values, list) else ()):
            where = f"data.result[{n}].values[{m}]"
            if not isinstance(entry, list) or not entry:
                raise BadLine(where, f"{shown(entry)} is not a list of a time and a line")
            found.append(Cell(where, entry[0]))
    return found


def times(
    found: Iterator[Cell], column: str | None, names: tuple[str, ...]
) -> tuple[list[Cell], str | None]:
    """The value of this key in each record, and the key; None picks one of `names`, or the only."""
    cells: list[Cell] = []
    plain = False
    for number, each in enumerate(found):
        record = each.value
        if number == 0:
            in_array = str(each.where).startswith(_ITEM)
            plain = column is None and in_array and not isinstance(record, (dict, list))
        if plain and not isinstance(record, (dict, list)):
            cells.append(each)
            continue
        if not isinstance(record, dict):
            like = " like the lines before" if number else ", nor a time"
            raise BadLine(each.where, f"{shown(record)} is not a JSON object{like}")
        if plain:
            raise BadLine(each.where, f"{shown(record)} is an object, and those before are values")
        if column is None:
            column = _chosen_key(record, names, each)
        cells.append(Cell(each.where, _inside(record, column, each)))
    return cells, column


def _chosen_key(record: dict[str, Any], names: tuple[str, ...], at: Cell) -> str:
    by_name = {key.lower(): key for key in record}
    if _EXACT in by_name and any(key in by_name for key in LOG_KEYS):
        return by_name[_EXACT]
    for name in names:
        if name in by_name:
            return by_name[name]
    if len(record) == 1:
        return next(iter(record))
    raise BadLine(at.where, f"which column? name one of: {listed(record)}")


def _inside(record: dict[str, Any], column: str, at: Cell) -> Any:
    if column in record:
        return record[column]
    inner: Any = record
    for key in column.split("."):  # `request.sent_at` is a key inside `request`
        if not isinstance(inner, dict) or key not in inner:
            raise BadLine(
                at.where,
                f"it has no {column!r}{meant(column, record)}; it has: {listed(record)}",
            )
        inner = inner[key]
    return inner
