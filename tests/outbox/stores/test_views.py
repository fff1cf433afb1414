"""What every store of an outbox does: the suite. Dead records, views, relays; and a model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord, OutboxStats
from pollwise.outbox.stores.base import RELAY_LIVE, OutboxStore
from tests.outbox.stores.benches import STORES, StoreBench, bench_of
from tests.outbox.stores.test_stores import by_key, claim, ids, payloads, put


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBench:
    return bench_of(request.param, request, tmp_path)


async def kill(store: OutboxStore, *keys: str | None, error: str = "bad") -> None:
    """Make the first records of these keys dead."""
    ends = [
        KeySettlement(each, 0, "dead", error=error, progress="P")
        if each.key in keys
        else KeySettlement(each, 0)
        for each in await claim(store)
    ]
    assert await store.settle(ends) == []


def counts(stats: OutboxStats) -> dict[str, int]:
    names = ("ready", "leased", "waiting", "dead", "done", "keys_blocked", "behind")
    return {name: getattr(stats, name) for name in names if getattr(stats, name)}


# Dead records


def test_a_dead_record_blocks_its_key(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        first, *_ = await put(store, "a", "a", "b")
        await kill(store, "a")
        await put(store, "a")
        assert [each.key for each in await claim(store)] == ["b"]
        assert counts(await store.stats()) == {
            "ready": 2, "leased": 1, "dead": 1, "keys_blocked": 1, "behind": 2,
        }  # fmt: skip
        [blocked] = await store.blocked()
        assert (blocked.key, blocked.record_id, blocked.kind) == ("a", first, "e")
        assert (blocked.error, blocked.behind) == ("bad", 2)
        assert blocked.since == bench.clock.epoch()

    bench.run(main())


def test_a_dead_record_lets_its_key_pass(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(on_dead="continue")
        await put(store, "a", "a", "a")
        [held] = await claim(store)
        await store.settle([KeySettlement(held, 1, "dead", error="bad")])
        [held] = await claim(store)
        assert payloads(held) == [2]
        await store.settle([KeySettlement(held, 1)])
        assert counts(await store.stats()) == {"dead": 1}
        assert await store.blocked() == []
        [dead] = await store.records("dead")
        assert (dead.record.payload, dead.error) == (1, "bad")

    bench.run(main())


@pytest.mark.parametrize("on_dead", ["block", "continue"])
def test_a_dead_record_without_a_key_blocks_nobody(bench: StoreBench, on_dead: str) -> None:
    async def main() -> None:
        store = await bench.store(on_dead=on_dead)
        [first] = await put(store, None)
        await kill(store, None)
        assert counts(await store.stats()) == {"dead": 1}
        assert await store.blocked() == []
        assert await store.retry([first]) == 1
        [held] = await claim(store)
        assert (held.key, ids(held), held.records[0].retried) == (None, [first], True)
        assert await store.settle([KeySettlement(held, 1)]) == []
        assert await store.records() == []

    bench.run(main())


def test_retry_takes_a_dead_record_up_again_in_its_place(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "a", "b")
        await kill(store, "a", "b")
        assert await store.retry(keys=["a", "nobody"]) == 1
        assert await store.retry(keys=["a"]) == 0
        [held] = await claim(store)
        assert payloads(held) == [0, 1]
        assert [(each.progress, each.retried) for each in held.records] == [
            ("P", True),
            ("", False),
        ]
        await store.settle([KeySettlement(held, 0, "retry")])
        [held] = await claim(store)
        assert held.records[0].retried, "until progress is written"
        await store.settle([KeySettlement(held, 0, "retry", progress="Q")])
        [held] = await claim(store)
        assert (held.records[0].progress, held.records[0].retried) == ("Q", False)
        assert counts(await store.stats()) == {
            "ready": 1, "leased": 1, "dead": 1, "keys_blocked": 1,
        }  # fmt: skip

    bench.run(main())


def test_skip_deletes_a_dead_record_and_its_key_goes_on(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        made = await put(store, "a", "a", "b", None)
        await kill(store, "a", "b", None)
        assert await store.drop([made[0], made[1]]) == 1, "what is not dead is left"
        [held] = await claim(store)
        assert (held.key, payloads(held)) == ("a", [1])
        await store.settle([KeySettlement(held, 1)])
        assert await store.drop() == 2
        assert counts(await store.stats()) == {}
        await put(store, "b")
        assert [each.key for each in await claim(store)] == ["b"]

    bench.run(main())


def test_retry_of_all_and_what_is_put_behind(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        keys = [f"k{n}" for n in range(20)]
        await put(store, *keys, None, None)
        await kill(store, *keys, None)
        await put(store, *keys)
        assert counts(await store.stats())["behind"] == 20
        assert await store.retry() == 22
        claims = await claim(store)
        assert len(claims) == 22
        assert sorted(len(each.records) for each in claims) == [1, 1, *[2] * 20]
        assert await store.settle([KeySettlement(each, len(each.records)) for each in claims]) == []
        assert counts(await store.stats()) == {}

    bench.run(main())


def test_a_retry_while_the_key_is_held_is_seen_when_it_is_free(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(on_dead="continue")
        await put(store, "a", "a")
        [held] = await claim(store, per_key=1)
        await store.settle([KeySettlement(held, 0, "dead", error="bad")])
        [held] = await claim(store)
        assert payloads(held) == [1]
        assert await store.retry() == 1
        assert await claim(store) == []
        await store.settle([KeySettlement(held, 1)])
        [held] = await claim(store)
        assert payloads(held) == [0]

    bench.run(main())


def test_blocked_keys_are_shown_in_pages(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        keys = sorted(["z", "ä", "Z", "a b", "k1", "k10", "k2"])
        await put(store, *keys)
        await kill(store, *keys)
        seen: list[str] = []
        while page := await store.blocked(3, after=seen[-1] if seen else None):
            assert len(page) <= 3
            seen += [each.key for each in page]
        assert seen == keys

    bench.run(main())


# Views


def test_done_records_are_kept_as_long_as_was_said(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(keep="1h")
        await put(store, "a", "a", None)
        claims = await claim(store)
        await store.settle([KeySettlement(each, len(each.records)) for each in claims])
        assert counts(await store.stats()) == {"done": 3}
        assert [each.state for each in await store.records()] == ["done"] * 3
        await bench.elapse(3599)
        assert await store.prune() == 0
        await bench.elapse(2)
        assert await store.prune() == 3
        assert await store.records() == []
        assert await claim(store) == []

    bench.run(main())


def test_done_records_are_gone_at_once_unless_kept(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        [held] = await claim(store)
        await store.settle([KeySettlement(held, 1)])
        assert await store.records() == []
        assert await store.prune() == 0

    bench.run(main())


def test_records_are_shown_by_state_kind_and_key_in_pages(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store(keep="1h")
        await put(store, "a", "b", "c", "d", "a", "b", None, kind="one")
        await put(store, "e", "a", kind="two")
        claims = await by_key(store)
        await store.settle(
            [
                KeySettlement(claims["b"], 0, "retry", delay=5.0),
                KeySettlement(claims["c"], 0, "dead", error="bad"),
                KeySettlement(claims["d"], 1),
                KeySettlement(claims[None], 0),
                KeySettlement(claims["e"], 0),
            ]
        )
        found = {}
        for state in ("ready", "leased", "waiting", "dead", "done"):
            page = await store.records(state)
            found[state] = [(info.record.kind, info.record.key) for info in page]
        assert found == {
            "ready": [("one", "a"), ("one", "b"), ("one", None), ("two", "e"), ("two", "a")],
            "leased": [("one", "a")],
            "waiting": [("one", "b")],
            "dead": [("one", "c")],
            "done": [("one", "d")],
        }
        assert len(await store.records(kind="two")) == 2
        assert len(await store.records(key="a")) == 3
        assert len(await store.records("ready", kind="one", key="a")) == 1
        assert len(await store.records("dead", kind="two")) == 0
        [leased] = await store.records("leased")
        assert (leased.relay, leased.since) == ("relay", bench.clock.epoch() + 30)
        first = await store.records(limit=4)
        rest = await store.records(limit=50, after=first[-1].record.id)
        assert [i.record.payload for i in first + rest] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
        await bench.elapse(31)
        assert counts(await store.stats()) == {"ready": 7, "dead": 1, "done": 1, "keys_blocked": 1}

    bench.run(main())


def test_the_oldest_age_is_of_what_is_to_be_handled(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a")
        await bench.elapse(10)
        await put(store, "b")
        assert (await store.stats()).oldest_age == pytest.approx(10)
        await kill(store, "a")
        await bench.elapse(5)
        assert (await store.stats()).oldest_age == pytest.approx(5)

    bench.run(main())


def test_relays_know_of_each_other_while_they_live(bench: StoreBench) -> None:
    async def main() -> None:
        one, two = await bench.store(), await bench.store()
        now = bench.clock.epoch()
        assert await one.announce_handlers("r1", {"mail": ["order.*"]}, 7.0) == []
        [other] = await two.announce_handlers("r2", {"mail": ["*"], "bill": ["a", "b"]}, 2.0)
        assert (other.relay, dict(other.handlers)) == ("r1", {"mail": ("order.*",)})
        assert other.started_at == pytest.approx(now - 7)
        assert other.seen_at == pytest.approx(now)
        assert not other.newer
        await bench.elapse(RELAY_LIVE - 1)
        [other] = await one.announce_handlers("r1", {"mail": ["x"]}, RELAY_LIVE + 6)
        assert dict(other.handlers) == {"mail": ("*",), "bill": ("a", "b")}
        assert other.newer
        await bench.elapse(2)
        assert await one.announce_handlers("r1", {"mail": ["x"]}, RELAY_LIVE + 8) == [], "r2 left"
        assert await one.announce_handlers("r1", {}, RELAY_LIVE + 8) == []
        assert await two.announce_handlers("r2", {"mail": ["*"]}, 2.0) == [], "r1 said goodbye"

    bench.run(main())


def test_the_live_relays_are_listed(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        assert await store.relays() == []
        await store.announce_handlers("b", {"mail": ["order.*"]}, 7.0)
        await bench.elapse(RELAY_LIVE - 1)
        await store.announce_handlers("a", {"bill": ["a", "b"]}, 0.0)
        old, new = await store.relays()
        assert (old.relay, dict(old.handlers), old.newer) == ("b", {"mail": ("order.*",)}, False)
        assert (new.relay, dict(new.handlers), new.newer) == ("a", {"bill": ("a", "b")}, False)
        assert new.started_at == new.seen_at == pytest.approx(bench.clock.epoch())
        await bench.elapse(2)
        assert [each.relay for each in await store.relays()] == ["a"]

    bench.run(main())


@pytest.mark.parametrize("chosen", [{"keys": ["a"]}, {"relay": "gone"}, {}])
def test_leases_are_released(bench: StoreBench, chosen: dict[str, Any]) -> None:
    async def main() -> None:
        store = await bench.store()
        await put(store, "a", "a")
        [held] = await store.claim("gone", 10, 10, 3600)
        await put(store, "b", None)
        others = await store.claim("lives", 10, 10, 3600)
        assert await store.release(["nobody"]) == await store.release(relay="nobody") == 0
        assert await store.release(**chosen) == (1 if chosen else 3)
        assert counts(await store.stats()).get("leased", 0) == (2 if chosen else 0)
        again = await claim(store)
        [of_a] = [each for each in again if each.key == "a"]
        assert (payloads(of_a), of_a.lapses) == (payloads(held), 0)
        assert await store.settle([KeySettlement(held, 2)]) == [held], "it was taken away"
        assert await store.settle([KeySettlement(of_a, 2)]) == []
        lost = await store.settle([KeySettlement(each, 1) for each in others])
        assert len(lost) == (0 if chosen else 2)

    bench.run(main())


def test_one_record_is_found_by_its_id(bench: StoreBench) -> None:
    async def main() -> None:
        store = await bench.store()
        first, second = await put(store, "a", "b")
        for record_id, payload in ((first, 0), (second, 1)):
            [found] = await store.get(record_id)
            assert found.record.payload == payload
        for nobody in (str(int(second) + 1), "0", "nonsense", ""):
            assert await store.get(nobody) == []

    bench.run(main())


def test_which_relay_is_newer_goes_by_its_first_announcement(bench: StoreBench) -> None:
    """Whatever their own clocks make of their age later, a moment that stood still included."""

    async def main() -> None:
        store, one = await bench.store(), {"mail": ["*"]}
        await store.announce_handlers("a", one, 0.0)
        await bench.elapse(5)
        [other] = await store.announce_handlers("b", one, 0.0)
        assert not other.newer
        for relay, newer in (("a", True), ("b", False), ("a", True)):
            await bench.elapse(5)
            [other] = await store.announce_handlers(relay, one, 0.0)
            assert other.newer is newer
        await bench.elapse(5)
        [_] = await store.announce_handlers("b", {}, 0.0)
        [other] = await store.announce_handlers("b", one, 1000.0)
        assert other.newer, "b is another run, which began before"

    bench.run(main())


# The model: whatever is done, every store does what the one in memory does.

KEYS = ("a", "b", "c", "d", None, None)


def without_ages(stats: OutboxStats) -> OutboxStats:
    """The age is by the first records of keys, or by all; with delays these differ."""
    lanes = {lane: without_ages(counts) for lane, counts in stats.lanes.items()}
    return replace(stats, oldest_age=None, lanes=lanes)


class Twins:
    """A store and the model, told the same; ids and tokens are theirs."""

    def __init__(
        self, store: OutboxStore, model: OutboxStore, rng: random.Random, laned: bool
    ) -> None:
        self._both = (model, store)
        self._laned = laned
        self._rng = rng
        self._names: tuple[dict[str, str], dict[str, str]] = ({}, {})  # the ids of each, as ours
        self._claims: list[tuple[KeyClaim, KeyClaim]] = []
        self._put = 0

    async def step(self, clock: Any) -> str:
        does = self._rng.choices(
            (self.put, self.claim, self.settle, self.renew, self.retry, self.look),
            (4, 4, 6, 1, 1, 2),
        )[0]
        if self._rng.random() < 0.3:
            await clock.advance(self._rng.choice((0.5, 3.0, 12.0, 31.0)))
        await does()
        return does.__name__

    async def put(self) -> None:
        keys = self._rng.choices(KEYS, k=self._rng.randrange(1, 8))
        new = [
            NewRecord("e", self._put + n, key, delay=self._rng.choice((0, 0, 0, 5)))
            for n, key in enumerate(keys)
        ]
        for store, names in zip(self._both, self._names, strict=True):
            for n, made in enumerate(await store.put(new)):
                names[made] = str(self._put + n)
        self._put += len(keys)

    async def claim(self) -> None:
        run = self._rng.randrange(1, 5)
        pairs = [{self._named(c, i): c for c in await each.claim("r", 1000, run, 30.0)}
                 for i, each in enumerate(self._both)]  # fmt: skip
        assert pairs[0].keys() == pairs[1].keys()
        self._claims += [(pairs[0][name], pairs[1][name]) for name in pairs[0]]

    def _named(self, claim: KeyClaim, which: int) -> tuple[Any, ...]:
        run = [(self._names[which][h.record.id], h.progress, h.retried) for h in claim.records]
        return (claim.lane, claim.key, claim.until, claim.lapses, tuple(run))

    async def settle(self) -> None:
        some = [each for each in self._claims if self._rng.random() < 0.6]
        if self._rng.random() < 0.8:  # else they are settled once more
            self._claims = [each for each in self._claims if each not in some]
        drawn = []
        for pair in some:
            length = len(pair[0].records)
            action = self._rng.choice(("give_back", "give_back", "retry", "dead"))
            most = length if action == "give_back" else length - 1
            done = self._rng.randint(0, most)
            progress = None if done == length else self._rng.choice((None, "p", "q"))
            delay = self._rng.choice((0.0, 2.0, 20.0))
            lanes = self._lanes(done) if self._laned and not pair[0].lane else ()
            error = self._rng.choice((None, "E"))
            drawn.append((pair, done, action, delay, error, progress, lanes))
        lost = []
        for which, store in enumerate(self._both):
            ends = [KeySettlement(pair[which], *rest) for pair, *rest in drawn]  # type: ignore[arg-type]
            gone = await store.settle(ends)
            lost.append([place for place, end in enumerate(ends) if end.claim in gone])
        assert lost[0] == lost[1]

    def _lanes(self, count: int) -> tuple[dict[str, str], ...]:
        return tuple(
            {lane: lane[0] for lane in self._rng.choice((["mail"], ["bill", "mail"]))}
            for _ in range(count)
        )

    async def renew(self) -> None:
        lost = []
        for which, store in enumerate(self._both):
            held = [pair[which] for pair in self._claims]
            gone = await store.renew(held, 30.0)
            lost.append([place for place, claim in enumerate(held) if claim in gone])
        assert lost[0] == lost[1]

    async def retry(self) -> None:
        keys = self._rng.choice((None, ["a", "b"]))
        name = self._rng.choice(("retry", "drop"))
        one, two = [await getattr(store, name)(None, keys) for store in self._both]
        if self._rng.random() < 0.3:
            assert await self._both[0].replay(key="a") == await self._both[1].replay(key="a")
        assert one == two

    async def look(self) -> None:
        stats, records, states, blocked = [], [], [], []
        for which, store in enumerate(self._both):
            names = self._names[which]
            stats.append(without_ages(await store.stats()))
            page = await store.records(limit=1000)
            # Copies of one record for several lanes are made in any order.
            page.sort(key=lambda info: (int(info.record.id), info.lane))
            records.append([(names[i.record.id], i.lane, i.error, i.progress) for i in page])
            # By key: what is retried while its key is held stands before what is held, or not.
            states.append(
                sorted((i.record.key or "", i.lane, i.state, i.relay or "") for i in page)
            )
            blocked.append(
                [(b.key, b.lane, names[b.record_id], b.behind) for b in await store.blocked()]
            )
        assert stats[0] == stats[1]
        assert records[0] == records[1]
        assert states[0] == states[1]
        assert blocked[0] == blocked[1]


@pytest.mark.parametrize("on_dead", ["block", "continue"])
@pytest.mark.parametrize("keep", [None, "1h"])
@pytest.mark.parametrize("laned", [False, True])
@pytest.mark.parametrize("steps", [80, pytest.param(2_000, marks=pytest.mark.soak)])
def test_a_store_does_as_the_model_does(
    bench: StoreBench, on_dead: Any, keep: str | None, laned: bool, steps: int
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails

    async def main() -> None:
        store = await bench.store(on_dead=on_dead, keep=keep)
        model = StoreBench(None)
        model.clock = bench.clock
        rng = random.Random(seed)
        twins = Twins(store, await model.store(on_dead=on_dead, keep=keep), rng, laned)
        for _ in range(steps):
            await twins.step(bench.clock)
        await twins.look()

    bench.run(main())


# Pages


async def paged(store: OutboxStore, **asked: Any) -> list[str]:
    """The ids on all pages."""
    found: list[str] = []
    after = None
    while True:
        page = await store.page(**asked, limit=3, after=after)
        assert len(page.records) <= 3
        found += [info.record.id for info in page.records]
        after = page.next
        if after is None:
            return found


@pytest.mark.parametrize("lanes", [False, True])
def test_pages_have_what_the_list_has(bench: StoreBench, lanes: bool) -> None:
    async def main() -> None:
        store = await bench.store(keep="1d")
        keys = ("a", None, "b", "a", "c", "a", None, "d", "e", "f", "b")
        await store.put(NewRecord(f"kind-{n % 2}", n, key) for n, key in enumerate(keys))
        await store.put([NewRecord("kind-0", n, delay=60.0 - n) for n in range(5)])
        ends = []
        for place, each in enumerate(await store.claim("r", 6, 1, "30s")):
            if place < 3:
                error = "Bad: lost" if place else "Timeout"
                ends.append(KeySettlement(each, 0, "dead", error=error))
            elif lanes and place == 3:
                ends.append(KeySettlement(each, 1, lanes=({"mail": "", "log": ""},)))
            elif place == 4:
                ends.append(KeySettlement(each, 0, "retry", delay=20.0, error="Bad"))
            elif place == 5:
                ends.append(KeySettlement(each, 1))
        for end in ends:
            assert await store.settle([end]) == []
        for state in (None, "ready", "leased", "waiting", "dead", "done", "delayed"):
            for kind in (None, "kind-0"):
                for key in (None, "a") if state is not None else (None,):
                    asked: dict[str, Any] = {"state": state, "kind": kind, "key": key}
                    listed = [info.record.id for info in await store.records(**asked)]
                    found = await paged(store, **asked)
                    assert sorted(found) == sorted(listed), asked
                    if state in (None, "dead"):
                        assert found == listed
        dead = [info.record.id for info in await store.records("dead")]
        assert await paged(store, state="dead", error="bAD") == dead[1:]
        behind = await paged(store, key="a")
        assert behind == [info.record.id for info in await store.records(key="a")]
        with pytest.raises(ConfigError, match="after = 'x"):
            await store.page(after="x!")

    bench.run(main())


def test_the_work_of_a_page_is_bounded(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    from pollwise.outbox.stores import viewed, walks

    for module in (viewed, walks):
        monkeypatch.setattr(module, "EXAMINED_MAX", 8)
    monkeypatch.setattr(walks, "LISTED_AT_ONCE", 4)

    async def main() -> None:
        store = await bench.store()
        if type(store).__name__.startswith("Memory"):
            return  # it reads its list
        await store.put(NewRecord("rare" if n == 11 else "common", n, "k") for n in range(12))
        first = await store.page("ready", kind="rare")
        assert (first.records, first.examined) == ([], 8)
        second = await store.page("ready", kind="rare", after=first.next)
        assert [info.record.payload for info in second.records] == [11]
        assert second.next is None

    bench.run(main())
