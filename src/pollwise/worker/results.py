"""Keeps the results of a worker's runs, and the tracebacks of dead jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollwise.errors import PayloadError, Reject
from pollwise.queues.base import Queue
from pollwise.queues.flows.view import FLOW_SHOWN
from pollwise.runtime.executor.control.pruning import Pruning
from pollwise.runtime.executor.handlers import Handler
from pollwise.runtime.jobs import Claim, Settlement
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.runtime.redact import without_secrets


class ResultRetention:
    """How long the results of each kind are kept. The worker's pruning deletes them."""

    def __init__(self, queue: Queue, handlers: Mapping[str, Handler], pruning: Pruning) -> None:
        able = queue.capabilities.results
        self._ttls = {
            kind: handler.result_ttl
            for kind, handler in handlers.items()
            if able and handler.result_ttl is not None
        }
        self._pruning = pruning
        pruning.results = bool(self._ttls)

    def ttl(self, kind: str) -> float | None:
        return self._ttls.get(kind)

    def settlement(self, claim: Claim, value: Any) -> Settlement | None:
        """The settlement that keeps a result; None if results of this kind are not kept."""
        if FLOW_HEADER in claim.job.headers:  # the queue keeps it for a while in any case
            self._pruning.results = True
            self._pruning.stored(FLOW_SHOWN)
        ttl = self._ttls.get(claim.job.kind)
        if ttl is None:
            return None
        try:
            end = Settlement.done(claim, value, keep=ttl)
        except PayloadError as error:  # it ran; to run it again would not help
            raise Reject(str(error)) from None
        self._pruning.stored(ttl)
        return end


def safe_traceback(traceback: str) -> str | None:
    """A traceback without the passwords that its lines of code may contain; None if it is empty."""
    return "\n".join(without_secrets(line) for line in traceback.splitlines()) or None
