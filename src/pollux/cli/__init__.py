"""The command line: `pollux --help`."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from pollux.cli.app import app
from pollux.cli.output import fail, warn
from pollux.errors import PolluxError


def main() -> None:
    """Run a command. Exit code 0: done; 1: not so (not found, a check failed); 2: bad input."""
    warnings.showwarning = _show_warning
    warnings.filterwarnings("default", category=DeprecationWarning, module=r"pollux\..*")
    try:
        app()
    except PolluxError as error:
        fail(str(error))
        sys.exit(2)
    except BrokenPipeError:  # `pollux queue list … | head` is no error
        sys.stderr.close()
        sys.exit(0)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning is for the person at the keyboard: what to change, not where it was raised."""
    warn(str(message))
