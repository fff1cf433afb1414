"""Payloads and progress as text of one line."""

from __future__ import annotations

import json
from typing import Any

from pollwise.cli.output import moment
from pollwise.queues.views import Stats
from pollwise.runtime.decoding import CutText
from pollwise.runtime.jobs import Progress, State
from pollwise.runtime.payloads.envelope import describe
from pollwise.runtime.payloads.envelope_fields import is_envelope


def encoded(payload: Any) -> str:
    """A payload or a result as JSON, or a description of one that is encrypted."""
    if isinstance(payload, CutText):  # of a list
        return f"{payload}…"
    return describe(payload) if is_envelope(payload) else json.dumps(payload, ensure_ascii=False)


def counted(stats: Stats, state: State) -> str:
    """The number of jobs in a state, with a plus if there may be more."""
    number: int = getattr(stats, state)
    return f"{number}+" if state in stats.capped else str(number)


def shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def progress_text(progress: Progress) -> str:
    fraction = "" if progress.fraction is None else f"{progress.fraction:.0%}"
    parts = (fraction, progress.note or "", f"at {moment(progress.at)}")
    return "  ".join(part for part in parts if part)
