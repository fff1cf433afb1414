"""The terms of a job: what a controller's job has beside the fields of the queue's record.

They are headers whose names begin with `pollwise-`. The requirement is also in the kind, so that a
claim matches it (see `matching`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pollwise.controller.workers import matching
from pollwise.runtime.decoding import decode
from pollwise.runtime.jobs import Job, NewJob

OURS = "pollwise-"
REQUIRES = "pollwise-requires"
TIMEOUT = "pollwise-timeout"
ATTEMPTS = "pollwise-attempts"
#: Who put it.
BY = "pollwise-by"
#: The folder of the files that came with it.
INPUTS = "pollwise-inputs"


@dataclass(frozen=True, slots=True)
class JobTerms:
    """Under which terms a job runs: what the controller adds to the queue's record.

    kind: without the mark of the requirement. headers: those of the user.
    """

    kind: str
    requires: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    attempts: int = 3
    created_by: str = ""
    inputs: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job | NewJob, attempts: int = 3) -> JobTerms:
        """The terms of a job in the queue. `attempts` is for one that was not put here."""
        given = job.headers
        timeout = given.get(TIMEOUT)
        try:
            return cls(
                job.kind.partition(matching.MARK)[0],
                dict(decode(given.get(REQUIRES, "{}"))),
                None if timeout is None else float(timeout),
                int(given.get(ATTEMPTS, attempts)),
                given.get(BY, ""),
                given.get(INPUTS),
                {name: value for name, value in given.items() if not name.startswith(OURS)},
            )
        except (ValueError, TypeError):  # somebody else wrote them
            return cls(job.kind, attempts=attempts)

    def all_headers(self) -> dict[str, str]:
        """The headers of the queue's job."""
        ours = {ATTEMPTS: str(self.attempts)}
        if self.requires:
            ours[REQUIRES] = json.dumps(self.requires, ensure_ascii=False)
        if self.timeout_s is not None:
            ours[TIMEOUT] = repr(self.timeout_s)
        if self.created_by:
            ours[BY] = self.created_by
        if self.inputs is not None:
            ours[INPUTS] = self.inputs
        return {**self.headers, **ours}
