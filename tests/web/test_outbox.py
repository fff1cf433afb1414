"""The pages of an outbox: what they show, and what their forms do to the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.runtime.clock import VirtualClock
from tests.web.viewers import Everybody
from tests.web.visiting import HOSTILE, Visitor

NOW = 1_700_000_000.0
PROGRESS = '{"publish": {"a": 3, "e": "413 too large", "x": 1}, "mail": 1}'
Main = Callable[[Visitor, OutboxStore], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Main], None]:
    """Calls a function with a visitor and the store of the outbox that is shown."""

    def ran(main: Main, access: Everybody | None = None) -> None:
        clock = VirtualClock(NOW)

        async def body() -> None:
            if request.param == "memory":
                store: OutboxStore = MemoryOutboxStore("shop", clock=clock)
            else:
                url = f"sqlite:///{tmp_path}/shop.db?outbox=shop"
                store = open_store(url, clock=clock, keep="1d")
                await store.migrate()
            async with store:
                visitor = Visitor(access=access, clock=clock)
                visitor.sources.add_outbox(store)
                await main(visitor, store)

        clock.run(body())

    return ran


async def bury(store: OutboxStore, keys: int = 10, error: str = "broker refused") -> None:
    """Make the first record of some keys dead."""
    claims = await store.claim("relay-1", keys, 1, "30s")
    ends = [KeySettlement(each, 0, "dead", error=error, progress=PROGRESS) for each in claims]
    await store.settle(ends)


async def fill(store: OutboxStore) -> None:
    records = [NewRecord("order.placed", {"n": n}, f"order-{n}") for n in range(3)]
    await store.put(records + [NewRecord("order.paid", {"n": n}, f"order-{n}") for n in range(3)])


def test_blocked_keys_come_first_with_their_reason(run: Callable[[Main], None]) -> None:
    async def main(visitor: Visitor, store: OutboxStore) -> None:
        empty = await visitor.main("/outboxes/shop")
        assert "The outbox is empty" in empty
        await fill(store)
        visitor.sources.outboxes["shop"].forget()
        assert "No relay has announced itself" in await visitor.main("/outboxes/shop")
        await store.announce_handlers("relay-1", {"publish": ["order.*"]}, 5.0)
        await bury(store, 2)
        visitor.sources.outboxes["shop"].forget()
        page = await visitor.main("/outboxes/shop")
        assert "Blocked 2 keys, 2 records behind" in page
        assert "broker refused" in page
        assert "order-0" in page
        assert "order-2" not in page
        assert "relay-1" in page
        assert "publish order.*" in page
        behind = await visitor.main("/outboxes/shop?state=all&key=order-0")
        assert "order.paid" in behind
        assert "record 1 of its key: broker refused" in behind

    run(main)


def test_records_are_retried_and_dropped(run: Callable[[Main], None]) -> None:
    async def main(visitor: Visitor, store: OutboxStore) -> None:
        await fill(store)
        await bury(store, 3)
        answer = await visitor.post("/outboxes/shop", "retry", ["1"])
        assert answer.status_code == 303
        assert (await store.stats()).dead == 2
        await visitor.post("/outboxes/shop", "drop", ["2"])
        assert (await store.stats()).dead == 1
        assert await store.get("2") == []
        await visitor.post("/outboxes/shop", "retry", of_key="order-2")
        assert (await store.stats()).keys_blocked == 0
        assert (await store.stats()).dead == 0

    run(main)


def test_all_of_a_filter_are_retried(run: Callable[[Main], None]) -> None:
    async def main(visitor: Visitor, store: OutboxStore) -> None:
        await store.put(NewRecord("a" if n % 2 else "b", n) for n in range(12))
        await bury(store, 6, "Timeout: slow")
        await bury(store, 6, "ValueError: wrong")
        assert (await store.stats()).dead == 12
        page = await visitor.main("/outboxes/shop?state=dead&error=timeout&kind=a")
        assert page.count("Timeout: slow") == 3
        assert "ValueError" not in page
        await visitor.post("/outboxes/shop", "retry", all="yes", kind="a", error="timeout")
        assert (await store.stats()).dead == 9
        await visitor.post("/outboxes/shop", "drop", all="yes", kind="b")
        assert (await store.stats()).dead == 3
        await visitor.post("/outboxes/shop", "retry")
        assert (await store.stats()).dead == 3  # nothing was chosen
        await visitor.post("/outboxes/shop", "drop", all="yes")
        assert (await store.stats()).dead == 0

    run(main)


def test_a_relays_leases_are_released(run: Callable[[Main], None]) -> None:
    async def main(visitor: Visitor, store: OutboxStore) -> None:
        await fill(store)
        await store.claim("gone", 2, 1, "10m")
        await store.claim("alive", 1, 1, "10m")
        await visitor.post("/outboxes/shop", "release")
        assert (await store.stats()).leased == 3  # nobody was named
        await visitor.post("/outboxes/shop", "release", relay="gone")
        assert (await store.stats()).leased == 1

    run(main)


def test_a_record_tells_its_story(run: Callable[[Main], None]) -> None:
    async def main(visitor: Visitor, store: OutboxStore) -> None:
        payload = {"card": {"number": 7}, "password": "hunter2"}
        await store.put([NewRecord("order.placed", payload, "order-7", {"tenant": "north"})])
        await bury(store)
        page = await visitor.main("/outboxes/shop/records/1")
        assert "publish gave up after 3 attempts 413 too large" in page
        for part in ("order.placed", "order-7", "north", "mail is done", "blocks its key"):
            assert part in page
        assert "hunter2" not in page
        assert "no record 99 in shop" in await visitor.main("/outboxes/shop/records/99", 404)
        await visitor.main("/outboxes/shop/records/x%00y", 404)
        await visitor.main("/outboxes/other", 404)
        await visitor.post("/outboxes/shop/records/1", "retry")
        assert (await store.stats()).dead == 0
        await visitor.post("/outboxes/shop/records/1", "drop")
        assert len(await store.get("1")) == 1  # it is not dead, so it stays
        await bury(store)
        answer = await visitor.post("/outboxes/shop/records/1", "drop")
        assert answer.headers["location"] == "/outboxes/shop"
        assert await store.get("1") == []

    run(main)


def test_everything_shown_is_escaped(run: Callable[[Main], None]) -> None:
    async def main(visitor: Visitor, store: OutboxStore) -> None:
        await store.announce_handlers(HOSTILE, {HOSTILE: [HOSTILE]}, 5.0)
        await store.put(
            NewRecord(HOSTILE, {HOSTILE: [HOSTILE]}, HOSTILE, {HOSTILE: HOSTILE}) for _ in range(3)
        )
        await bury(store, 1, HOSTILE)
        await store.put([NewRecord(HOSTILE, HOSTILE)])
        await store.claim(HOSTILE, 1, 1, "30s")
        for path in ("", "?state=all", "?state=dead", "?state=leased", "/records/1", "/records/4"):
            assert "&lt;script&gt;" in await visitor.get(f"/outboxes/shop{path}")
        for name in ("state", "kind", "key", "error", "after"):
            await visitor.get(f"/outboxes/shop?state=dead&{name}=%3Cscript%3Ealert(1)%3C/script%3E")

    run(main)


def test_a_viewer_who_may_only_read_gets_no_buttons(run: Callable[..., None]) -> None:
    access = Everybody()
    access.read_only = True

    async def main(visitor: Visitor, store: OutboxStore) -> None:
        await fill(store)
        await bury(store)
        for path in ("/outboxes/shop", "/outboxes/shop?state=dead", "/outboxes/shop/records/1"):
            html = await visitor.get(path)
            assert 'name="action"' not in html
            assert (await visitor.post(path, "retry", ["1"])).status_code == 403
        assert (await store.stats()).dead == 3

    run(main, access)


def test_a_store_that_does_not_answer_is_said(tmp_path: Path) -> None:
    clock = VirtualClock(NOW)

    async def main() -> None:
        async with open_store(f"sqlite:///{tmp_path}/none.db", clock=clock) as store:
            visitor = Visitor(clock=clock)
            visitor.sources.add_outbox(store)
            assert "The store does not answer" in await visitor.main("/outboxes/default")
            assert "The store does not answer" in await visitor.main("/outboxes/default/records/1")

    clock.run(main())
