"""The command line: `pollwise --help`."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from pollwise.errors import ContextFailed, PollwiseError

_URL = re.compile(r"(?:--[\w-]+=)?[a-z][a-z0-9+.-]*://", re.IGNORECASE)
OURS = str(Path(__file__).parent.parent)
#: The commands that run until a signal stops them.
LONG_RUNNING = (
    *(("worker",), ("agent",), ("serve",), ("web",), ("poll",)),
    *(("outbox", "run"), ("fleet", "run")),
)


def main() -> None:
    """Run a command. Exit code 0: done; 1: not found, or a check failed; 2: bad input."""
    if any(tuple(sys.argv[1 : 1 + len(words)]) == words for words in LONG_RUNNING):
        from pollwise.platforms import signals

        with signals.ending_the_start():
            _run()
    else:
        _run()


def _run() -> None:
    # Imported here, because that takes some tenths of a second in which a signal may come.
    from pollwise.cli.app import app
    from pollwise.cli.output import Unread, fail
    from pollwise.runtime.redact import without_secrets_of

    warnings.showwarning = _show_warning
    warnings.filterwarnings("default", category=DeprecationWarning, module=r"pollwise\..*")
    try:
        app()
    except PollwiseError as error:
        # An error may quote any argument, so also a URL in the wrong place.
        fail(without_secrets_of(filter(_URL.match, sys.argv[1:]), str(error)))
        sys.exit(1 if isinstance(error, ContextFailed) else 2)
    except Unread:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard the rest
        sys.exit(0)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """Show a warning; for Pollwise's own warnings without file and line."""
    from pollwise.cli.output import warn

    where = "" if filename.startswith(OURS) else f"{filename}:{lineno}: {category.__name__}: "
    warn(f"{where}{message}")
