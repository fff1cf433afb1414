"""The transactional outbox: events put with the data they describe, handled in order per key.

outbox = Outbox("postgresql://app@db/shop")

with engine.begin() as connection:
    connection.execute(insert(orders).values(id=17))
    outbox.put(connection, "order.placed", {"id": 17}, key="order-17")

@outbox.handle("order.*")
async def publish(record): ...

asyncio.run(outbox.run())
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, overload

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, HandlerError, OutboxError
from pollwise.outbox.handlers import RecordHandlers, check_patterns, record_handler
from pollwise.outbox.records import DEFAULT_LANE, NewRecord
from pollwise.outbox.relay import OutboxRunOptions, Relay
from pollwise.outbox.stores.base import OnDead, OutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.outbox.writers import put as writing
from pollwise.outbox.writers.put import AsyncpgTransaction, AsyncTransaction, SyncTransaction
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.executor.background import in_background
from pollwise.runtime.executor.recycling import check_memory_limit
from pollwise.runtime.executor.starting import checked_options, own_name, refuse_if_forbidden
from pollwise.runtime.payloads.envelope import CodecChain, Codecs, chain_of
from pollwise.runtime.signals import stopping_on_signals
from pollwise.runtime.tracing import spans

F = TypeVar("F", bound=Callable[..., Any])


class Outbox:
    """Puts records into the user's own database and runs the relay that handles them.

    database: the URL of the database, or a store.
    name: the name of the outbox in its database; "default" by default.
    on_dead: what a dead record does to its key. "block", the default: the records behind it wait
        until an operator retries or drops it. "continue": they are handled without it.
    keep: how long completed records are kept; by default they are deleted at once.
    schema: the schema of the tables, on Postgres; "pollwise" by default.
    options: how the relay runs, unless `run` receives other options.
    relay: the relay's name, shown with its leases and events; by default made from host and
        process. Several relays may have the same name.
    codec: encodes payloads, such as `AesGcm("keys.txt")`; several in a list.
    """

    def __init__(
        self,
        database: str | OutboxStore,
        *,
        name: str | None = None,
        on_dead: OnDead | None = None,
        keep: Duration | None = None,
        schema: str | None = None,
        options: OutboxRunOptions | None = None,
        relay: str | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
        codec: Codecs | CodecChain | None = None,
    ) -> None:
        self._codec = chain_of(codec)
        self._given = {"name": name, "on_dead": on_dead, "keep": keep, "schema": schema}
        self.options: OutboxRunOptions = (
            checked_options(options, OutboxRunOptions) or OutboxRunOptions()
        )
        self.relay: str = relay or own_name()
        self.events: Events = events or Events()
        self._registry = RecordHandlers()
        self._run: Relay | None = None
        self._stop_asked = False
        #: Why the last run ended by itself, to be started again in a fresh process; else "".
        self.recycled: str = ""
        if isinstance(database, OutboxStore):
            asked = {**self._given, "codec": codec}
            given = [key for key, value in asked.items() if value is not None]
            if given:
                raise ConfigError(
                    f"{given[0]} was given with a store; give it to the store instead"
                )
        self._clock = clock or (database.clock if isinstance(database, OutboxStore) else Clock())
        self.database = database

    @property
    def database(self) -> str | OutboxStore:
        """The URL or the store of the outbox."""
        return self._database

    @database.setter
    def database(self, database: str | OutboxStore) -> None:
        if isinstance(database, str):
            self._store = self._open(database)  # a wrong URL is refused now
        elif isinstance(database, OutboxStore):
            self._store = database
        else:
            raise ConfigError(f"database = {database!r} must be a URL or an OutboxStore")
        self._database = database

    @property
    def codec(self) -> CodecChain | None:
        """What encodes payloads."""
        return self._store.codec

    @codec.setter
    def codec(self, codec: Codecs | CodecChain | None) -> None:
        self._codec = chain_of(codec)
        self._store.use_codec(self._codec)

    @property
    def store(self) -> OutboxStore:
        """The store of the outbox: for its views, `retry`, `drop` and `migrate`."""
        return self._store

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def handlers(self) -> Mapping[str, tuple[str, ...]]:
        """The patterns of each handler, by its name."""
        return self._registry.patterns()

    # Writing

    @overload
    def put(
        self,
        tx: SyncTransaction | sqlite3.Cursor,
        record: str | NewRecord | Iterable[NewRecord],
        payload: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        at: datetime | float | None = None,
        unique: str | None = None,
        eager: bool = False,
    ) -> list[str]: ...

    @overload
    def put(
        self,
        tx: AsyncTransaction | AsyncpgTransaction,
        record: str | NewRecord | Iterable[NewRecord],
        payload: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        at: datetime | float | None = None,
        unique: str | None = None,
        eager: bool = False,
    ) -> Coroutine[Any, Any, list[str]]: ...

    def put(
        self,
        tx: Any,
        record: str | NewRecord | Iterable[NewRecord],
        payload: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        at: datetime | float | None = None,
        unique: str | None = None,
        eager: bool = False,
    ) -> Any:
        """Put one or more records in the open transaction of `tx`; return the ids.

        tx: a connection or session: sqlite3, aiosqlite, psycopg, psycopg2, asyncpg, SQLAlchemy or
            Django. With an async one, await the result.
            A session of SQLAlchemy is flushed first.
        record: the kind, with its `payload`, `key` and `headers`; or one or more `NewRecord`.
        payload: a JSON value, also with models of pydantic, dataclasses, Decimal, datetime, UUID
            and Enum in it; or a function that returns one, called after the flush, for values
            that the database makes: `lambda: {"id": order.id}`.
        delay, at: handled at the earliest after this time, or at this moment (an aware datetime or
            seconds since 1970). Until then it holds up no other record of its key.
        unique: put once: while a record with the same `unique` is in the outbox, a second put
            returns the id of the first; with another kind or payload it raises UniqueConflict.
        eager: the relay in this process (`async with outbox.running()`) polls at once when the
            transaction is committed.

        Raises OutboxError if no transaction is open, because the record would be committed apart
        from the data, and PayloadError if the payload is not JSON; both before any statement runs.
        """
        if eager and self._run is None:
            raise ConfigError(
                "eager=True, but no relay of this outbox runs in this process; start one with "
                "`async with outbox.running():`, or leave eager out"
            )

        more = {"delay": delay, "at": at, "unique": unique}
        tracer = spans.tracer()
        span = None if tracer is None else self._store.send_span(tracer)

        def records() -> list[NewRecord]:
            value = payload() if callable(payload) else payload
            made = self._store.checked(_new_records(record, value, key, headers, **more))
            return self._store.sealed(span.begin(made) if span is not None and made else made)

        def write() -> Any:
            later = callable(payload) and isinstance(record, str)
            return writing.put(self._store.target(), tx, records if later else records())

        put = write() if span is None else span.around(write)
        if eager:
            writing.on_commit(tx, self.wake)
        return put

    def wake(self) -> None:
        """Let the relay of this process poll at once, because something was committed. Callable
        from any thread; does nothing if no relay runs here."""
        if self._run is not None:
            self._run.wake()

    # Handling

    def handle(
        self,
        *patterns: str,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        fallback: Callable[..., Any] | None = None,
        breaker: Breaker | None = None,
        lane: str = DEFAULT_LANE,
    ) -> Callable[[F], F]:
        """Register the decorated function, async or plain, for the kinds that a pattern matches.

        A record goes to every handler that matches, in the order of registration. Each handler
        has its own progress: one that is done is not called again because another failed.

        The function gets the record. A parameter that is annotated with another type, such as a
        model of pydantic, gets the payload as that type. A payload that does not fit is rejected:
        the record is dead, with the reason. `def mail(order: Order, record: Record)` gets both.

        patterns: kinds; `*` matches any text. "order.*" matches order.placed and
            order.line.added, "*" matches all.
        name: the name under which its progress is stored; by default the function's name.
        retry: how its failures are retried; by default 20 attempts, from 2 s to 60 s
            apart, which take 11 to 15 minutes.
        timeout: how long an attempt may take. A plain function runs in a thread, which cannot be
            stopped: it is called again while the old thread continues and occupies its place.
        fallback: called with the record, or with the record and the error, after the last failed
            attempt. If it returns, the record counts as handled; otherwise the record is dead.
        breaker: while the handler keeps failing, its records wait and use no attempts, and neither
            do those that try whether it works again. By default a publisher has one, in its
            attribute `breaker`, and other functions have none.
        lane: records go through each lane independently, in the order of their keys: a lane that
            fails or hangs does not hold up the others. Handlers without a lane share one.
        """
        check_patterns(patterns)  # now: `@outbox.handle` without brackets would register nothing

        def register(function: F) -> F:
            self._registry.add(
                record_handler(
                    patterns,
                    function,
                    name=name,
                    retry=retry,
                    timeout=timeout,
                    fallback=fallback,
                    breaker=breaker,
                    lane=lane,
                )
            )
            return function

        return register

    # Running

    async def run(self, options: OutboxRunOptions | None = None) -> None:
        """Relay until stopped or cancelled."""
        refuse_if_forbidden()
        await self._main(options)

    @asynccontextmanager
    async def running(self, options: OutboxRunOptions | None = None) -> AsyncIterator[Outbox]:
        """Relay in the background during the block; its end stops the relay within the grace.

        Raises at the start of the block if the outbox does not exist or is not migrated.
        """
        chosen = replace(checked_options(options, OutboxRunOptions) or self.options, signals=False)
        refuse_if_forbidden()

        def main(started: asyncio.Event) -> Coroutine[Any, Any, None]:
            return self._main(chosen, started)

        source = f"outbox:{self.name}"
        async with in_background(main, self.stop, "relay", source, self.events):
            yield self

    def stop(self) -> None:
        """Stop claiming, finish within the grace, give the rest back. A second call ends the grace.

        Handlers may call it, also from their threads. A stop before `run` begins ends that run at
        once.
        """
        self._stop_asked = True
        if self._run is not None:
            self._run.stop()

    def state(self) -> dict[str, Any]:
        """The current state of the relay as plain values; empty when it does not run."""
        return {} if self._run is None else self._run.state()

    async def close(self) -> None:
        """Close the database if views or `migrate` opened it."""
        await self._store.close()

    async def _main(
        self, options: OutboxRunOptions | None, started: asyncio.Event | None = None
    ) -> None:
        chosen = checked_options(options, OutboxRunOptions) or self.options
        if self._run is not None:
            raise ConfigError(f"the relay {self.relay} is already running; create another Outbox")
        if not self._registry.handlers:
            raise HandlerError(
                "the outbox has no handler; register one with @outbox.handle('order.*')"
            )
        check_memory_limit(chosen.max_memory)
        database = self._database
        store = self._open(database) if isinstance(database, str) else database
        try:
            self._run = Relay(store, self.relay, chosen, self._registry, self._clock, self.events)
            if started is not None:
                self._run.ready = started
            if self._stop_asked:
                self._run.stop()
            grace = seconds(chosen.grace, "grace")
            with stopping_on_signals(self.stop if chosen.signals else None, grace):
                await self._run.main()
        finally:
            run, self._run = self._run, None
            self._stop_asked = False
            self.recycled = "" if run is None else run.recycled
            if isinstance(database, str):
                await (store.close() if run is None else run.close_store())

    def _open(self, url: str) -> OutboxStore:
        return open_store(url, clock=self._clock, codec=self._codec, **self._given)


def _new_records(
    record: str | NewRecord | Iterable[NewRecord],
    payload: Any,
    key: str | None,
    headers: Mapping[str, str] | None,
    **more: Any,
) -> NewRecord | Iterable[NewRecord]:
    if isinstance(record, str):
        return NewRecord(record, payload, key, {} if headers is None else headers, **more)
    if payload is not None or key is not None or headers is not None or any(more.values()):
        raise OutboxError(
            "payload, key, headers, delay, at and unique belong to a kind, as in put(tx, "
            "'order.placed', {…}, key='order-17'); a NewRecord has its own"
        )
    return record
