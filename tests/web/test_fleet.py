"""The pages of a fleet: what they show, and the orders that their forms give."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pollwise.fleet import Fleet, FleetRunOptions, Target
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.recent import PastReading, as_text, recorded
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events
from pollwise.web.live import _events
from tests.web.viewers import Everybody, Somebody
from tests.web.visiting import HOSTILE, Visitor, view_of

NOW = 1_700_000_000.0
Main = Callable[[Visitor, SqliteFleetStore], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Calls a function with a visitor and the store of the fleet that is shown."""

    def ran(main: Main, access: Everybody | None = None) -> None:
        clock = VirtualClock(NOW)

        async def body() -> None:
            store = SqliteFleetStore(tmp_path / "fleet.db", "pages", clock=clock)
            visitor = Visitor(access=access, clock=clock)
            visitor.sources.add_fleet(store)
            try:
                await main(visitor, store)
            finally:
                await store.close()

        clock.run(body())

    return ran


def readings(*oks: bool) -> str:
    recent = b""
    for n, ok in enumerate(oks):
        reading = PastReading(NOW - 600 + 60 * n, ok, n == 1, 0.25 + n / 100, 60.0)
        recent = recorded(recent, reading)
    return as_text(recent)


def target(
    name: str, state: str = "closed", group: str | None = "api", **more: object
) -> SavedTarget:
    failing = state != "closed"
    return SavedTarget(
        name, NOW + 30, False, state, 4 if failing else 0, "refused" if failing else None,
        NOW - 5, NOW - (900 if failing else 5), None, NOW - 300, 60.0,
        {"reading": {"summary": "200 OK", "facts": {"status": 200, "api_key": "hunter2"}},
         "recent": readings(True, True, not failing), **more}, None, "http", group,
    )  # fmt: skip


def test_targets_are_filtered_sorted_and_paged(run: Callable[..., None]) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        assert "The store has no targets yet" in await visitor.main("/fleets/pages")
        await store.save(
            [target(f"host-{n:03}", group="api" if n % 2 else "web") for n in range(120)]
        )
        await store.save([target("broken-1", "open"), target("gone-1", "dead", None)])
        visitor.sources.fleets["pages"].forget()
        page = await visitor.main("/fleets/pages")
        assert "Targets 122 Dead 1 Broken 1 Healthy 120" in page
        assert "No node polls this fleet" in page
        assert "host-047" in page
        assert "host-048" not in page
        html = await visitor.get("/fleets/pages")
        following = html.rsplit("after=", 1)[1].split("#")[0]
        assert "host-048" in await visitor.main(f"/fleets/pages?after={following}")
        assert "gone-1" not in await visitor.main("/fleets/pages?state=broken")
        assert "gone-1" in await visitor.main("/fleets/pages?group=-")
        only = await visitor.main("/fleets/pages?text=HOST-01&group=web")
        assert "host-010" in only
        assert "host-011" not in only
        stale = await visitor.get("/fleets/pages?sort=stale")
        assert stale.index("broken-1") < stale.index("gone-1") < stale.index("host-000")
        assert "is not one of" in await visitor.main("/fleets/pages?sort=size")
        assert "`next` of the page before" in await visitor.main("/fleets/pages?after=x")

    run(main)


def test_a_target_says_what_it_is_behind(run: Callable[..., None]) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("a", behind=["router", HOSTILE])])
        page = await visitor.main("/fleets/pages/targets/a")
        assert f"Behind router , {HOSTILE} its outage holds alerts of this target back" in page
        html = await visitor.get("/fleets/pages/targets/a")
        assert 'href="/fleets/pages/targets/router"' in html
        assert HOSTILE not in html

    run(main)


def test_an_idle_page_asks_the_store_about_once_per_refresh(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("a"), target("b", "open")])
        stream = _events(view_of(visitor.web, "fleet"), visitor.visit("/", slug="pages"))
        asked: Counter[str] = Counter()

        def counting(name: str, real: Any, *given: Any) -> Any:
            asked[name] += 1
            return real(*given)

        for name in ("counts", "alerts", "nodes", "page", "pending", "definitions"):
            monkeypatch.setattr(store, name, partial(counting, name, getattr(store, name)))
        for _ in range(10):
            await anext(stream)
        asked.clear()
        for _ in range(30):
            await anext(stream)
        assert sum(asked.values()) <= 50, asked
        await store.save([target("a", "open")])
        events = [await anext(stream) for _ in range(3)]
        assert any("event: main" in event for event in events)

    run(main)


def test_a_target_shows_its_readings(run: Callable[..., None]) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        odd = "https://x.example/a b?c=d&e#f"
        await store.save([target(odd, "dead"), target("new", more={})])
        page = await visitor.main(f"/fleets/pages/targets/{quote(odd)}")
        for part in ("Last 3 polls", "refused", "200 OK", "Failures in a row 4"):
            assert part in page
        assert "Latency of polls" in page
        assert "Time until the next poll" in page
        assert "hunter2" not in page
        html = await visitor.get("/fleets/pages?state=dead")
        link = html.split('<th scope="row"')[1].split('href="')[1].split('"')[0]
        assert "Failures in a row 4" in await visitor.main(link)
        assert "has no target 'none'" in await visitor.main("/fleets/pages/targets/none", 404)
        await visitor.main("/fleets/none", 404)

    run(main)


def test_orders_wait_in_the_store_and_are_audited(run: Callable[..., None]) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("a", "dead"), target("b", "dead"), target("c")])
        await visitor.post("/fleets/pages/targets/a", "poll-now")
        assert await store.pending() == [("a", "poll-now", "web: test")]
        assert "poll now…" in await visitor.main("/fleets/pages/targets/a")
        assert "poll now…" in await visitor.main("/fleets/pages")
        await visitor.post("/fleets/pages/targets/none", "pause")
        await visitor.post("/fleets/pages", "pause")
        assert len(await store.pending()) == 1  # no such target, and nothing chosen
        await visitor.post("/fleets/pages", "retry", all="yes", state="dead")
        assert [(each.name, each.what) for each in await store.orders()] == [
            ("a", "poll-now"), ("a", "retry"), ("b", "retry"),
        ]  # fmt: skip
        assert "poll now…" not in await visitor.main("/fleets/pages/targets/a")
        actions = [(entry.who, entry.action) for entry in await store.list_audit(10)]
        assert actions == [("web: test", "target.retry"), ("web: test", "target.poll-now")]
        assert (await visitor.post("/fleets/pages", "explode")).status_code == 400

    run(main, Somebody())


def test_everything_shown_is_escaped(run: Callable[..., None]) -> None:
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        hostile = {"reading": {"summary": HOSTILE, "facts": {HOSTILE: HOSTILE}}}
        await store.save([
            SavedTarget(HOSTILE, NOW, False, state, failures, HOSTILE, NOW, NOW, NOW, NOW, 5.0,
                        hostile, None, HOSTILE, HOSTILE)
            for state, failures in (("open", 4),)
        ])  # fmt: skip
        await store.save([target("other")])
        await store.order(HOSTILE, [HOSTILE], HOSTILE)
        for path in ("", f"?text={quote(HOSTILE)}", f"?group={quote(HOSTILE)}", "?state=broken"):
            assert "&lt;script&gt;" in await visitor.get(f"/fleets/pages{path}")
        page = await visitor.get(f"/fleets/pages/targets/{quote(HOSTILE, safe='')}")
        assert "&lt;script&gt;" in page

    run(main)


def test_a_viewer_who_may_only_read_gets_no_buttons(run: Callable[..., None]) -> None:
    access = Everybody()
    access.read_only = True

    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("a", "dead")])
        for path in ("/fleets/pages?state=dead", "/fleets/pages/targets/a"):
            assert 'name="action"' not in await visitor.get(path)
            assert (await visitor.post(path, "retry", name="a")).status_code == 403
        assert await store.pending() == []

    run(main, access)


def test_a_fleet_of_this_process_carries_orders_out_at_once() -> None:
    clock = VirtualClock(NOW)

    async def probe(target: Target) -> str:
        if target.name == "bad":
            raise ConnectionError("refused")
        return "fine"

    async def main() -> None:
        fleet = Fleet(
            FleetRunOptions(signals=False, seed=1, budget=5), name="mine", node="me", clock=clock,
            events=Events(quiet=True),
        )  # fmt: skip
        fleet.add(Target("good", as_probe(probe), group="api"), Target("bad", as_probe(probe)))
        visitor = Visitor(clock=clock)
        visitor.sources.add_fleet(fleet)
        assert "No node polls this fleet" in await visitor.main("/fleets/mine")
        running = asyncio.ensure_future(fleet.run())
        await clock.advance(3 * 3600.0)
        page = await visitor.main("/fleets/mine")
        assert "Dead 1" in page
        assert "polls/s of 5" in page
        assert "me" in page
        answer = await visitor.post("/fleets/mine/targets/good", "pause")
        assert answer.status_code == 303
        assert fleet.target("good").paused
        assert "paused" in await visitor.main("/fleets/mine/targets/good")
        assert "refused" in await visitor.main("/fleets/mine/targets/bad")
        fleet.stop()
        await running

    clock.run(main())
