"""The calls of `SqliteOutboxStore` about the relays of an outbox, and about its lanes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pollwise.outbox.records import RelayInfo, outbox_of
from pollwise.outbox.stores.base import RELAY_LIVE
from pollwise.runtime.rollups.rows import HistoryRow
from pollwise.storage.sqlite.file import SqliteFile, transaction
from pollwise.storage.sqlite.history import SqliteHistory

#: A clock that was set back by less than this many seconds is not followed.
SET_BACK_MIN = 1.0


class RelayCalls(SqliteFile):
    """The part of the calls that is about relays and lanes."""

    history: SqliteHistory
    _outbox: str

    @contextmanager
    def _in_lane(self, lane: str) -> Iterator[None]:
        """Within this, statements are about the copies of a lane; "" for the outbox itself."""
        if not lane:
            yield
            return
        before = self._bound
        self._bound = {"outbox": outbox_of(self._outbox, lane)}
        try:
            yield
        finally:
            self._bound = before

    def lanes(self) -> tuple[str, ...]:
        return tuple(lane for (lane,) in self._rows("lanes"))

    def announce(
        self,
        now: float,
        relay: str,
        handlers: Mapping[str, list[str]],
        age: float,
        history: Sequence[HistoryRow],
    ) -> list[RelayInfo]:
        gone, began = now - RELAY_LIVE, now - age
        with transaction(self.connect()):
            self._follow_clock(now)
            self._change("withdraw", relay=relay, leaves=not handlers, gone=gone)
            if handlers:
                values = {"relay": relay, "handlers": json.dumps(handlers), "now": now}
                [(began,)] = self._rows("announce", started_at=began, **values)
            self.history.write(history)
            found = self._relays(relay, gone)
        return [
            replace(each, newer=(each.started_at, each.relay) > (began, relay)) for each in found
        ]

    def _follow_clock(self, now: float) -> None:
        """After the machine's clock was set back, set leases, retries and relays back too.

        Otherwise the lease of a relay that died before would last until the clock has caught up.
        """
        [(seen,)] = self._rows("newest")
        ahead = 0.0 if seen is None else seen - now
        if ahead > SET_BACK_MIN:
            for lane in ("", *self.lanes()):
                with self._in_lane(lane):
                    self._change("keys_set_back", now=now, ahead=ahead)
            self._change("relays_set_back", now=now, ahead=ahead)

    def relays(self, now: float) -> list[RelayInfo]:
        return self._relays("", now - RELAY_LIVE)

    def _relays(self, besides: str, gone: float) -> list[RelayInfo]:
        return [
            RelayInfo(
                name,
                {each: tuple(patterns) for each, patterns in json.loads(sets).items()},
                float(started),
                float(seen),
                False,
            )
            for name, sets, started, seen in self._rows("relays", relay=besides, gone=gone)
        ]
