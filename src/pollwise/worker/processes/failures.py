"""Errors that a handler raised in a process, as JSON, and raised again in the worker.

Nothing is unpickled. The worker raises an error of the same class if it knows that class. So
`Retry(include=..., exclude=...)` and middleware treat it as if it had been raised here.
"""

from __future__ import annotations

import sys
from typing import Any

from pollwise.errors import Cancelled, Reject, Snooze
from pollwise.runtime.executor.handlers import text_of, traceback_of
from pollwise.worker.declared.unfit import PayloadUnfit
from pollwise.worker.processes.places import MAIN

#: The longest text and traceback that are passed on, in characters.
TEXT_MAX = 10_000


class RaisedInProcess(Exception):
    """An error that a handler raised in another process. Its class is named as that error's."""

    def __init__(self, text: str, traceback: str) -> None:
        self.args = (text,)
        self.text = text
        #: Where it was raised, as text.
        self.remote_traceback = traceback

    def __str__(self) -> str:
        return self.text


def failure_of(error: BaseException, *, secret: bool = False) -> dict[str, Any]:
    """An error as JSON values; see `text_of` for `secret`."""
    if isinstance(error, Snooze):
        return {"snooze": error.delay}
    if isinstance(error, PayloadUnfit):
        return {"unfit": error.reason}
    if isinstance(error, Reject):
        return {"reject": error.reason}
    if isinstance(error, Cancelled):
        return {"cancelled": error.reason}
    classes = [f"{each.__module__}:{each.__qualname__}" for each in type(error).__mro__]
    return {
        "name": type(error).__name__,
        "classes": classes,
        "permanent": getattr(error, "permanent", False) is True,
        "text": text_of(error, bare=True, secret=secret)[:TEXT_MAX],
        "traceback": traceback_of(error, secret=secret)[-TEXT_MAX:],
    }


def error_of(failure: dict[str, Any]) -> Exception:
    """The error to raise in the worker."""
    if "snooze" in failure:
        return Snooze(failure["snooze"])
    if "unfit" in failure:
        return PayloadUnfit(failure["unfit"])
    if "reject" in failure:
        return Reject(failure["reject"])
    if "cancelled" in failure:
        return Cancelled(failure["cancelled"])
    name, text, traceback = str(failure["name"]), str(failure["text"]), str(failure["traceback"])
    base = next(filter(None, map(_known, failure["classes"])), Exception)
    try:
        kind = type(name, (RaisedInProcess, base), {"__module__": RaisedInProcess.__module__})
        error: Exception = kind(text, traceback)
    except Exception:  # the class does not allow it
        error = type(name, (RaisedInProcess,), {})(text, traceback)
    error.remote_type = str(failure["classes"][0]).replace(":", ".")  # type: ignore[attr-defined]
    if failure["permanent"]:
        error.permanent = True  # type: ignore[attr-defined]
    return error


def _known(place: str) -> type[Exception] | None:
    """A class of errors, if this process has imported it."""
    module, _, name = place.partition(":")
    found: Any = sys.modules.get("__main__" if module == MAIN else module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
