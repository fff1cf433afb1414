"""The formats of log records: text or JSON lines.

The runtime logs its events as records with `action` and `fields`; this module only formats them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

from pollwise.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")


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
_QUERY = re.compile(r"(/[^\s?\"']*)\?[^\s\"']+")


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


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "pollwise"


def _is_users(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] not in LIBRARIES


def without_queries(record: logging.LogRecord) -> bool:
    """Remove the queries of URLs from a record of another library."""
    text = record.getMessage()
    record.msg, record.args = _QUERY.sub(r"\1?…", text), ()
    return True


def _handler(style: str, text: str) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(f"%(asctime)s %(levelname)s {text}")
    handler.setFormatter(JsonLines() if style == "json" else plain)
    return handler


class JsonLines(logging.Formatter):
    """One JSON object for each record: time, level, action, and the event's fields.

    A record that is not an event has the action "log" and a message, and the name of its logger if
    that is not Pollwise.
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
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
