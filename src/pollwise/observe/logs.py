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
    logger.handlers[:] = [_handler(style, "%(message)s")]
    logger.setLevel(level.upper())
    logger.propagate = False
    if libraries:
        others = _handler(style, "%(name)s: %(message)s")
        others.addFilter(without_queries)
        root = logging.getLogger()
        root.handlers[:] = [others]
        root.setLevel(max(logging.WARNING, logger.level))


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
            ours = record.name.partition(".")[0] == "pollwise"
            entry |= {"action": "log", **({} if ours else {"logger": record.name})}
            entry["message"] = record.getMessage()
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
