"""Delivery: the relay of the outbox with a fleet's notices, which gives each to its channel.

Each channel has a lane, so that one that hangs or is down does not hold up the others. While it is
down its notices wait; a breaker keeps them from using up their attempts. A notice is sent at least
once: after a crash between sending and settling again, with the same `id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from pollwise.alerts.channels.base import Channel
from pollwise.alerts.notices import kind_of, notice_of, record_of
from pollwise.alerts.values import FindAlerts, Notice, ended_before
from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.errors import StoreError
from pollwise.outbox.outbox import Outbox
from pollwise.outbox.records import Record
from pollwise.outbox.relay import OutboxRunOptions
from pollwise.outbox.stores.base import OutboxStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Event, Events, NoticeFailed, NoticeSent, RecordDead

#: How a notice is retried: for about three hours, apart from the time that a breaker is open.
NOTICE_RETRY = Retry.exponential("2s", max_delay="5m", attempts=40)
#: After this many failures in a row, a channel is tried again with a single notice.
NOTICE_BREAKER = Breaker(failures=5, delay="10s", max_delay="2m")
#: After this many seconds, others send what a killed process had begun to send.
LEASE = 10.0
#: How long a stop waits for notices that are being sent, in seconds.
GRACE = 5.0
#: How long a stop waits for notices that only memory has, in seconds.
DRAIN_WITHIN = 5.0
#: How often dead notices are counted while there are any, in seconds: an operator may retry or
#: drop them.
COUNT_EVERY = 30.0
#: Records that one call puts.
PUT_MAX = 1000


class Delivery:
    """Sends the notices of one fleet while it is entered.

    store: the outbox. find: looks up alerts, to see whether one has closed meanwhile.
    node: the name of this process. source: the name of the fleet, for events.
    migrate: create the outbox's tables. close: close the outbox at the end.
    """

    def __init__(
        self,
        store: OutboxStore,
        channels: Mapping[str, Channel],
        find: FindAlerts,
        *,
        node: str,
        source: str,
        clock: Clock,
        events: Events,
        migrate: bool = True,
        close: bool = True,
    ) -> None:
        self._store = store
        self._channels = channels
        self._find = find
        self._source = source
        self._events = events
        self._clock = clock
        self._migrate = migrate
        self._close = close
        self._unput: list[Notice] = []
        self._putting: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        #: Number of notices that could not be sent, until an operator retries or drops them.
        self.dead: int = 0
        # A channel may have no notice for weeks: that does not make its pattern wrong.
        options = OutboxRunOptions(signals=False, grace=GRACE, lease=LEASE, check_patterns=False)
        self._outbox = Outbox(store, relay=node, clock=clock, events=events, options=options)
        self._running = AsyncExitStack()
        for channel in channels.values():
            self._outbox.handle(
                kind_of(channel.name),
                name=channel.name,
                lane=channel.name,
                retry=NOTICE_RETRY,
                breaker=NOTICE_BREAKER,
            )(self._sender(channel))

    async def __aenter__(self) -> Delivery:
        if self._migrate:
            await self._store.migrate()
        with suppress(StoreError):  # only a figure, and the store may come back
            self.dead = (await self._store.stats()).dead
        if self._channels:
            self._running.push_async_callback(self._close_channels)
            self._running.callback(self._stop_counting)
            self._count_while_dead()
            self._running.callback(self._events.subscribe(self._note_dead, RecordDead))
            await self._running.enter_async_context(self._outbox.running())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._running.aclose()
        finally:
            if self._close:
                await self._store.close()

    async def _close_channels(self) -> None:
        for channel in self._channels.values():
            with suppress(Exception):
                await channel.close()

    def wake(self) -> None:
        """Look for new notices now: some were saved."""
        self._outbox.wake()

    # Notices that no save puts

    def put(self, notices: Sequence[Notice]) -> None:
        """Put notices of a fleet without a store; they are sent soon."""
        self._unput += notices
        if self._putting is None or self._putting.done():
            self._putting = asyncio.get_running_loop().create_task(self._put())

    async def _put(self) -> None:
        while self._unput:
            some, self._unput = self._unput[:PUT_MAX], self._unput[PUT_MAX:]
            await self._store.put([record_of(each) for each in some])
        self.wake()

    async def drain(self) -> None:
        """Wait until all notices are sent that are due, for a few seconds: only memory has them."""
        if self._putting is not None:
            await self._putting
        until = self._clock.now() + DRAIN_WITHIN
        while self._channels and self._clock.now() < until:
            stats = await self._store.stats()
            if not stats.ready and not stats.leased:
                return
            await self._clock.sleep(0.05)

    # Sending

    def _sender(self, channel: Channel) -> Callable[[Record], Awaitable[None]]:
        async def send(record: Record) -> None:
            notice = notice_of(record.payload)
            if await self._is_over(notice):
                return
            kind, group = (str(notice.payload.get(key) or "") for key in ("type", "group"))
            facts = (self._source, notice.target, kind, channel.name, notice.event, notice.alert)
            try:
                await channel.send(notice)
            except Exception as error:
                self._events.emit(NoticeFailed(*facts, record.attempt, str(error), group=group))
                raise
            self._events.emit(NoticeSent(*facts, self._delay(notice), group=group))

        return send

    def _delay(self, notice: Notice) -> float:
        """Seconds from what the notice is about until now."""
        at: Any = notice.payload.get("at")
        since = max(at, notice.not_before or 0.0) if isinstance(at, (int, float)) else None
        return 0.0 if since is None else max(self._clock.epoch() - since, 0.0)

    async def _is_over(self, notice: Notice) -> bool:
        """True if an alert closed before quiet hours let its opening be sent: nobody needs to hear
        of it. Then its end is not sent either."""
        if notice.event != "opened" or notice.not_before is None:
            return False
        found = await self._find([notice.alert])
        return bool(found) and ended_before(found[0].closed_at, notice.not_before)

    # Notices that could not be sent

    def _note_dead(self, event: Event) -> None:
        if event.source == f"outbox:{self._store.name}":
            self.dead += 1
            self._count_while_dead()

    def _count_while_dead(self) -> None:
        if self.dead and (self._counting is None or self._counting.done()):
            self._counting = asyncio.get_running_loop().create_task(self._count_dead())

    def _stop_counting(self) -> None:
        if self._counting is not None:
            self._counting.cancel()

    async def _count_dead(self) -> None:
        while self.dead:
            await self._clock.sleep(COUNT_EVERY)
            with suppress(StoreError):
                self.dead = (await self._store.stats()).dead

    def problem(self) -> str | None:
        """What is wrong, for people; None if nothing is."""
        if not self.dead:
            return None
        return (
            f"{self.dead} notice(s) of alerts could not be sent; see `pollwise outbox dead "
            f"{self._store.url}`, and retry or drop them"
        )
