"""The optional parts of a job's record as JSON text, as the stores with columns keep them."""

from __future__ import annotations

import json

from pollwise.runtime.jobs import JobFailure, Progress


def encoded_progress(progress: Progress | None, now: float) -> str | None:
    """`[fraction, note, at]`; None if there is none."""
    if progress is None:
        return None
    return json.dumps([progress.fraction, progress.note, now], ensure_ascii=False)


def progress_from(text: str | None) -> Progress | None:
    return None if text is None else Progress(*json.loads(text))


def errors_from(text: str | None) -> tuple[JobFailure, ...]:
    """From `[[at, attempt, error], …]`, the newest last."""
    return () if text is None else tuple(JobFailure(*each) for each in json.loads(text))
