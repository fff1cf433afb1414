"""Jobs that a worker has no handler for: only stores that cannot pick kinds deliver them."""

from __future__ import annotations

from pollwise.runtime.jobs import Claim, Settlement

#: How long such a job is put off, in seconds: doubled each time, for somebody else to find it.
DELAY_FIRST, DELAY_MAX = 1.0, 60.0


def turned_away(claim: Claim, foreign_kind: str | None) -> Settlement:
    """What becomes of it: it goes back for others; what is no job at all is a dead letter."""
    job = claim.job
    if job.kind == foreign_kind:
        return Settlement.dead(
            claim,
            "it is no job of Pollwise: it has no kind, or its body is not JSON. Register a handler "
            f"for the kind {job.kind!r} to take such messages",
        )
    # It goes round until somebody takes it, or the store has enough of it.
    delay = min(DELAY_FIRST * 2.0 ** min(job.attempt - 1, 10), DELAY_MAX)
    return Settlement.give_back(claim, delay)
