"""How log records look: plain text for people, JSON lines for machines.

The events themselves are logged by `pollux.events.log`; this only shapes the records, each with its
`action` and `fields`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from pollux.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")


def set_up(level: str = "info", style: str = "text") -> None:
    """Log Pollux's records to standard error, at `level` and above."""
    if level not in LEVELS:
        raise ConfigError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    if style not in FORMATS:
        raise ConfigError(f"log format {style!r} is none of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines()
        if style == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logger = logging.getLogger("pollux")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, action, and the event's fields.

    What is no event has the action "log" and a message.
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
            entry |= {"action": "log", "message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)
