"""Events for Sentry: errors such as dead jobs, and breadcrumbs of what happened before them.

They carry the kind, the attempt and the queue, never a payload: they are made from events, which
have the text of an error but no variables of its frames. What a handler itself reports, for example
with `logging.error`, gets the same tags.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from pollwise.errors import MissingExtra
from pollwise.runtime.events import Event, Events, action_of, all_events
from pollwise.runtime.executor.control.run_control import run_fields
from pollwise.runtime.redact import without_secrets_inside

#: Fields that are not sent: a key may name a person.
_LEFT_OUT = ("key", "traceback")
_TAGS = {"kind": "kind", "attempt": "attempt", "source": "queue"}
#: What is running, as a tag of a handler's own reports, and in the context of all.
_OF_RUNS, _WORK = ("kind", "attempt", "queue", "outbox"), ("job", "record")


def report_to_sentry(events: Events) -> Callable[[], None]:
    """Send events of level ERROR to Sentry, with those of INFO and WARNING as breadcrumbs.

    Call `sentry_sdk.init` before. Returns a function that ends it. Sentry no longer reports the
    records of the logger "pollwise", which tell the same.
    """
    try:
        from sentry_sdk.integrations.logging import ignore_logger
    except ImportError:
        raise MissingExtra("reports to Sentry", "sentry") from None
    ignore_logger("pollwise")
    _name_runs()
    return events.subscribe(_report, *(kind for kind in all_events() if kind.level >= logging.INFO))


def report_if_initialised(events: Events) -> None:
    """Report to Sentry if the program has called `sentry_sdk.init`."""
    sentry = sys.modules.get("sentry_sdk")
    if sentry is not None and sentry.is_initialized():
        report_to_sentry(events)


def _report(event: Event) -> None:
    import sentry_sdk

    action = action_of(type(event))
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    told = {name: _safe(value) for name, value in values.items() if name not in _LEFT_OUT}
    level = logging.getLevelName(event.level).lower()
    if event.level < logging.ERROR:
        sentry_sdk.add_breadcrumb(category="pollwise", message=action, level=level, data=told)
        return
    if values.get("traceback"):
        told["traceback"] = _safe(values["traceback"])
    name, _, text = str(told.get("error", "")).partition(": ")
    if not name.isidentifier():  # not "ValueError: …", but a sentence
        name, text = type(event).__name__, str(told.get("error") or action)
    report: Any = {
        "level": level,
        "logger": "pollwise",
        # With an exception, Sentry adds no stack of its own.
        "exception": {"values": [{"type": name, "value": text}]},
        "fingerprint": [action, str(values.get("kind", "")), name],
        "tags": {"action": action}
        | {tag: str(values[each]) for each, tag in _TAGS.items() if each in values},
        "contexts": {"pollwise": told},
    }
    sentry_sdk.capture_event(report)


@cache
def _name_runs() -> None:
    """Let every report say which run it is about; once in a process."""
    from sentry_sdk.scope import add_global_event_processor

    add_global_event_processor(_named)


def _named(report: Any, _: object) -> Any:
    """Add the run whose handler reports; leave out breadcrumbs of other runs beside it."""
    if report.get("type") == "transaction":
        return report
    known = run_fields()
    if "kind" in known:
        running = {name: known[name] for name in _WORK if name in known}
        report.setdefault("contexts", {}).setdefault("pollwise", running)
        tags = {name: str(known[name]) for name in _OF_RUNS if name in known}
        report["tags"] = tags | (report.get("tags") or {})
    told = report.get("contexts", {}).get("pollwise", {})
    work = [told[name] for name in _WORK if name in told]
    crumbs = (report.get("breadcrumbs") or {}).get("values")
    if work and crumbs:
        crumbs[:] = [each for each in crumbs if _is_about(each, work)]
    return report


def _is_about(crumb: Any, work: list[Any]) -> bool:
    """False for a breadcrumb of ours about a job or record other than this one."""
    data = crumb.get("data") or {}
    about = [data[name] for name in _WORK if name in data]
    return crumb.get("category") != "pollwise" or not about or about == work


def _safe(value: object) -> object:
    return without_secrets_inside(value) if isinstance(value, str) else value
