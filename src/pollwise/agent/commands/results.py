"""Reads the progress and the result that a command wrote to its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pollwise.agent.commands.files import open_inside, read_at_most
from pollwise.errors import PayloadError
from pollwise.runtime.jobs import encode

#: The largest result, in bytes of JSON.
RESULT_MAX = 256 * 1024
#: How much of the progress file is read, in bytes.
PROGRESS_MAX = 1000


class CannotRun(Exception):
    """The job cannot be done; the message is for its report."""


def read_progress(folder: Path, owner: int | None = None) -> dict[str, Any]:
    """The progress of the command: the last line of its file, such as `0.4 linking`."""
    try:
        with open_inside(folder, "progress", owner=owner) as file:
            size = os.fstat(file.fileno()).st_size
            data = os.pread(file.fileno(), PROGRESS_MAX, max(size - PROGRESS_MAX, 0))
    except OSError:
        return {}
    lines = data.decode("utf-8", "replace").splitlines()
    line = next((each.strip() for each in reversed(lines) if each.strip()), "")
    number, _, message = line.partition(" ")
    try:
        share = float(number.rstrip("%"))
    except ValueError:
        share, message = -1.0, line
    report: dict[str, Any] = {}
    if 0 <= share <= 100:
        report["progress"] = share
    if message:
        report["message"] = "".join(c if c.isprintable() else " " for c in message)[:500]
    return report


def read_result(folder: Path, kind: str, owner: int | None = None) -> Any:
    """The JSON in result.json; None if there is none."""
    try:
        with open_inside(folder, "result.json", owner=owner) as file:
            size = os.fstat(file.fileno()).st_size
            if size > RESULT_MAX:
                raise CannotRun(
                    f"result.json has {size} bytes, more than {RESULT_MAX}; put large results "
                    "into the folder `out`"
                )
            text = read_at_most(file, RESULT_MAX).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRun(f"result.json cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CannotRun(f"result.json cannot be read: {error}") from None
    if not text.strip():
        return None
    try:
        result = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise CannotRun("result.json is nested too deep; make it flatter") from None
    except ValueError as error:
        raise CannotRun(f"result.json is not JSON: {error}") from None
    try:
        encode(result, kind, "result")  # as the controller does: it would refuse the report
    except PayloadError as error:
        raise CannotRun(str(error)) from None
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
