"""Lanes: records are handed to the lanes of their handlers, which go through them independently.

A lane is an outbox of its own in the same tables, with a copy of each record. In an outbox that has
lanes, the records themselves are only handed on: their key is leased, so the copies of a key are
made in its order, and no handler runs that could fail.
"""

from __future__ import annotations

from pollwise.outbox.handlers import RecordHandlers
from pollwise.outbox.progress import RecordProgress
from pollwise.outbox.records import KeyClaim, KeySettlement


def to_lanes(claim: KeyClaim, registry: RecordHandlers) -> KeySettlement | None:
    """The settlement that hands the records of a claim to the lanes of their handlers.

    In order, up to a record that has no handler or cannot be read; None if that is the first.
    """
    lanes = []
    for item in claim.records:
        by_lane = registry.by_lane(item.record.kind)
        if item.record.unreadable is not None or not by_lane:
            break
        progress = RecordProgress.read(item.progress, item.retried)
        lanes.append({lane: progress.part(names).text() for lane, names in by_lane.items()})
    return KeySettlement(claim, len(lanes), lanes=tuple(lanes)) if lanes else None
