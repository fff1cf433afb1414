"""The formats of log records: text or JSON lines; and what records of handlers carry.

The runtime logs its events as records with `action` and `fields`; this module only formats them.
What a handler itself logs carries its job, for a program's own logging and structlog too.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

from pollwise.errors import ConfigError
from pollwise.runtime.events.bus import shown_value
from pollwise.runtime.executor.control.run_control import run_fields
from pollwise.runtime.redact import OPEN_OPTIONS

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")


#: What the log records of handlers carry, as far as it is known.
RUN_FIELDS = ("job", "queue", "record", "outbox", "kind", "attempt", "trace_id", "span_id")
#: The libraries that Pollwise itself uses: only their warnings are logged with the user's records,
#: because some of them log every poll.
LIBRARIES = frozenset(
    {
        *("aio_pika", "aiobotocore", "aiokafka", "aiormq", "apprise", "asyncio", "asyncpg"),
        *("botocore", "httpcore", "httpx", "nats", "opentelemetry", "psycopg", "redis"),
        *("sqlalchemy", "urllib3", "uvicorn", "websockets"),
    }
)
#: The query of a URL or path, which may hold secrets.
_QUERY = re.compile(r"(/[^\s?\"']*)\?([^\s\"']+)")


def set_up(level: str = "info", style: str = "text", *, libraries: bool = False) -> None:
    """Log Pollwise's records to standard error, at `level` and above.

    libraries: also log warnings and errors of other libraries, in the same format; for a process
        that runs only Pollwise.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    if style not in FORMATS:
        raise ConfigError(f"log format {style!r} is not one of {', '.join(FORMATS)}")
    logger = logging.getLogger("pollwise")
    for each in (logger, *logger.manager.loggerDict.values()):
        if isinstance(each, logging.Logger) and _is_ours(each.name):
            each.__class__ = _KeptLogger
    logger.handlers[:] = [_handler(style, "%(message)s")]
    logger.setLevel(level.upper())
    logger.propagate = False
    if libraries:
        others = _handler(style, "%(name)s: %(message)s")
        others.addFilter(without_queries)
        root = logging.getLogger()
        root.handlers[:] = [others]
        root.setLevel(max(logging.WARNING, logger.level))


class _KeptLogger(logging.Logger):
    """A logger that `dictConfig` cannot disable.

    It disables all loggers that it does not name, and users' modules call it after `set_up`.
    """

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, _: bool) -> None:
        pass


def show_users_records(level: str, style: str) -> None:
    """Log what handlers log themselves, from `level` on, if the user configured nothing."""
    root = logging.getLogger()
    known = [each for each in root.manager.loggerDict.items() if not _is_ours(each[0])]
    configured = [
        handler
        for logger in (root, *(logger for _, logger in known))
        for handler in getattr(logger, "handlers", ())
        if not isinstance(handler, logging.NullHandler)
    ]
    if configured:
        return
    for name in LIBRARIES:
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            library.setLevel(logging.WARNING)
    shown = _handler(style, "%(name)s: %(message)s")
    shown.addFilter(lambda record: _is_users(record) or without_queries(record))
    root.addHandler(shown)
    root.setLevel(level.upper())


class RunFields(logging.Filter):
    """Adds the job or record of the handler that logs, and the current span, to log records.

    Add it to a handler of your own logging. Each name of RUN_FIELDS becomes an attribute of the
    record, "" if it is unknown, so that a format may have `%(job)s`. What the record has stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        known = run_fields()
        for name in RUN_FIELDS:
            if not hasattr(record, name):
                setattr(record, name, known.get(name, ""))
        return True


def add_run_fields(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor of structlog that adds the same fields, as far as they are known."""
    for name, value in run_fields().items():
        event.setdefault(name, value)
    return event


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of the run in a record; none for an event, which has fields of its own."""
    if hasattr(record, "action"):
        return {}
    found = ((name, getattr(record, name, "")) for name in RUN_FIELDS)
    return {name: value for name, value in found if value != ""}


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "pollwise"


def _is_users(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] not in LIBRARIES


def without_queries(record: logging.LogRecord) -> bool:
    """Remove the queries of URLs from a record of another library, except OPEN_OPTIONS."""
    record.msg, record.args = _QUERY.sub(_without_query, record.getMessage()), ()
    return True


def _without_query(found: re.Match[str]) -> str:
    pieces = found[2].split("&")
    kept = [each for each in pieces if each.partition("=")[0] in OPEN_OPTIONS]
    return f"{found[1]}?{'&'.join(kept)}{'…' if len(kept) < len(pieces) else ''}"


def _handler(style: str, text: str) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    plain = TextLines(f"%(asctime)s %(levelname)s {text}")
    handler.setFormatter(JsonLines() if style == "json" else plain)
    handler.addFilter(RunFields())
    return handler


class TextLines(logging.Formatter):
    """A line for each record, whose time has its difference to UTC; behind what a handler logs is
    its job, as job=… kind=…."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        return moment.isoformat(" ", "milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        fields = _fields_of(record)
        text = super().formatMessage(record)
        return " ".join([text, *(f"{name}={shown_value(fields[name])}" for name in fields)])


class JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, action, and the event's fields.

    A record that is not an event has the action "log" and a message, the name of its logger if that
    is not Pollwise, and the fields of the job whose handler logged it.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        if hasattr(record, "action"):
            entry |= {"action": record.action, **getattr(record, "fields", {})}
        else:
            logger = {} if _is_ours(record.name) else {"logger": record.name}
            entry |= {"action": "log", **logger}
            entry["message"] = record.getMessage()
            entry |= _fields_of(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
