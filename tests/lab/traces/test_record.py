"""Recording a live queue: every arrival once, through restarts and crashes."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pollwise import Adaptive, NewJob
from pollwise.errors import ConfigError, StoreUnavailable
from pollwise.lab.replay.engine import replay
from pollwise.lab.traces.reading import read
from pollwise.lab.traces.record import record
from pollwise.outbox import Outbox
from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from tests.outbox.stores.benches import migrated
from tests.support.kit import make_queue, virtually
from tests.support.servers import Postgres


async def put_at(queue: MemoryQueue | SqliteQueue, moments: list[float]) -> None:
    for moment in moments:
        left = moment - queue.clock.now()
        await asyncio.sleep(max(left, 0))
        await queue.put(NewJob("k", moment))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_arrivals_are_recorded_when_they_were_put(store: str, tmp_path: Path) -> None:
    moments = [1.0, 1.0, 2.5, 30.0, 31.0]
    told: list[int] = []

    async def main(clock: VirtualClock) -> int:
        queue = make_queue(store, tmp_path, clock)
        putting = asyncio.ensure_future(put_at(queue, moments))  # type: ignore[arg-type]
        count = await record(
            queue, tmp_path / "trace.csv", every="1s", until="60s", progress=told.append
        )
        await putting
        assert clock.now() == pytest.approx(60)
        await queue.close()
        return count

    assert virtually(main) == 5
    assert told[-1] == 5
    trace = read(tmp_path / "trace.csv")
    assert trace.arrivals.tolist() == pytest.approx([m - 1 for m in moments], abs=1e-5)
    assert replay(trace, Adaptive()).found == 5


def test_a_backlog_is_recorded_page_by_page_at_once(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put(NewJob("k") for _ in range(2500))
        assert await record(queue, tmp_path / "t.csv", every="10s", until="1s") == 2500

    virtually(main)
    assert len(read(tmp_path / "t.csv").arrivals) == 2500


def test_a_restart_goes_on_after_the_last_job(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put([NewJob("k"), NewJob("k")])
        assert await record(queue, path, until="1s") == 2
        await queue.put(NewJob("k"))
        assert await record(queue, path, until="1s") == 1
        assert await record(queue, path, until="1s") == 0

    virtually(main)
    assert np.diff(read(path).arrivals).tolist() == [0, 1]


def test_half_a_line_of_a_crash_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put([NewJob("k"), NewJob("k"), NewJob("k")])
        await record(queue, path, until="1s")
        whole = path.read_text()
        line = len(whole.splitlines(keepends=True)[-1])
        for cut in range(1, 2 * line + 1):
            path.write_text(whole[:-cut])
            assert await record(queue, path, until="1s") == (1 if cut <= line else 2)
            assert path.read_text() == whole

    virtually(main)


def test_cancelled_it_has_kept_what_it_saw(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put(NewJob("k"))
        recording = asyncio.ensure_future(record(queue, path))
        await clock.advance(100)
        recording.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recording

    virtually(main)
    assert len(read(path).arrivals) == 1


def test_it_backs_off_while_nothing_arrives_and_takes_no_hints(tmp_path: Path) -> None:
    class Watched(MemoryQueue):
        looks = 0

        async def _arrivals(self, *given):  # type: ignore[no-untyped-def]
            self.looks += 1
            return await super()._arrivals(*given)

    async def main(clock: VirtualClock) -> None:
        queue = Watched(clock=clock)
        recording = asyncio.ensure_future(record(queue, tmp_path / "t.csv", until="800s"))
        await clock.advance(100)
        before = queue.looks
        await queue.put(NewJob("k"))
        await asyncio.sleep(0)
        assert queue.looks == before
        await recording
        assert 90 < queue.looks < 130  # every 8 s, ± 10 %

    virtually(main)


def test_a_store_that_fails_for_a_while_is_retried(tmp_path: Path) -> None:
    class Shaky(MemoryQueue):
        failures = 3

        async def _arrivals(self, *given):  # type: ignore[no-untyped-def]
            self.failures -= 1
            if self.failures >= 0:
                raise StoreUnavailable("not now")
            return await super()._arrivals(*given)

    async def main(clock: VirtualClock) -> None:
        queue = Shaky(clock=clock)
        await queue.put(NewJob("k"))
        assert await record(queue, tmp_path / "t.csv", until="60s") == 1

    virtually(main)


def test_clocks_that_went_back_do_not_unsort_the_trace(tmp_path: Path) -> None:
    class Wound(VirtualClock):
        back = 0.0

        def epoch(self) -> float:
            return super().epoch() - self.back

    clock = Wound()

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put(NewJob("k"))
        clock.back = 10.0
        await queue.put(NewJob("k"))
        await record(queue, tmp_path / "t.csv", until="1s")

    clock.run(main())
    assert read(tmp_path / "t.csv").arrivals.tolist() == [0, 0]


# Outboxes


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_records_of_an_outbox_are_recorded_while_a_relay_runs(store: str, tmp_path: Path) -> None:
    moments = [1.0, 1.0, 2.5, 30.0, 31.0]
    path = tmp_path / "t.csv"

    async def main(clock: VirtualClock) -> None:
        kept: OutboxStore = MemoryOutboxStore(clock=clock, keep="1m")
        if store == "sqlite":
            kept = SqliteOutboxStore(tmp_path / "shop.db", clock=clock, keep="1m")
        await kept.migrate()

        async def put() -> None:
            for moment in moments:
                await asyncio.sleep(max(moment - clock.now(), 0))
                await kept.put([NewRecord("k", moment)])

        async def relay() -> None:
            for _ in range(40):
                claims = await kept.claim("relay", 10, 10, "10s")
                await kept.settle(KeySettlement(claim, len(claim.records)) for claim in claims)
                await asyncio.sleep(1)

        others = [asyncio.ensure_future(each()) for each in (put, relay)]
        assert await record(kept, path, every="100ms", until="60s") == 5
        await asyncio.gather(*others)
        assert await record(kept, path, until="1s") == 0  # it goes on after the last
        await kept.put([NewRecord("k")])
        assert await record(kept, path, until="1s") == 1
        await kept.close()

    virtually(main)
    assert read(path).arrivals[:5].tolist() == pytest.approx([m - 1 for m in moments], abs=1e-5)


def test_a_record_that_becomes_visible_late_is_not_missed(tmp_path: Path) -> None:
    """Its transaction ended after that of a record that was put later."""
    hidden: set[str] = set()

    class Late(MemoryOutboxStore):
        async def _records(self, *given):  # type: ignore[no-untyped-def]
            page = await super()._records(*given)
            return [info for info in page if info.record.id not in hidden]

    async def main(clock: VirtualClock) -> None:
        store = Late(clock=clock)
        hidden.update(await store.put([NewRecord("late")]))
        await store.put([NewRecord("k") for _ in range(3)])
        recording = asyncio.ensure_future(record(store, tmp_path / "t.csv", until="20s"))
        await clock.advance(3)
        hidden.clear()
        assert await recording == 4

    virtually(main)
    ids = [line.split(",")[1] for line in (tmp_path / "t.csv").read_text().splitlines()[2:]]
    assert sorted(ids) == ["1", "2", "3", "4"]


def test_a_transaction_of_postgres_that_ends_late(postgres: Postgres, tmp_path: Path) -> None:
    dsn, path = migrated(postgres.dsn()), tmp_path / "t.csv"
    name = f"late-{uuid.uuid4().hex}"

    def recorded() -> int:
        return len(path.read_text().splitlines()) - 2 if path.exists() else 0

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while recorded() < count:
                await asyncio.sleep(0.01)

    async def main() -> None:
        outbox = Outbox(dsn, name=name)
        connect = psycopg.AsyncConnection.connect
        async with PostgresOutboxStore(dsn, name) as store, await connect(dsn) as late:
            await outbox.put(late, "order.placed", 1)  # it has the lower number
            async with await connect(dsn) as soon:
                await outbox.put(soon, "order.placed", 2)
            recording = asyncio.ensure_future(record(store, path, every="10ms"))
            await until(1)
            await late.commit()
            await until(2)
            recording.cancel()

    asyncio.run(main())
    assert recorded() == 2


def test_the_records_of_an_outbox_come_page_by_page(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        store = MemoryOutboxStore(clock=clock)
        for _ in range(3):  # more in the last seconds than a page holds
            await store.put([NewRecord("k") for _ in range(900)])
        assert await record(store, tmp_path / "t.csv", every="10s", until="1s") == 2700

    virtually(main)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("t.csv.gz", None, "compress it later"),
        ("none/t.csv", None, "cannot be written: No such file"),
        ("t.csv", "1\n2\n3\n", "not a recording to continue"),
        ("t.csv", "# recorded from memory://?queue=other\ncreated_at,id\n", "records memory://"),
        (
            "t.csv",
            "# recorded from memory://?queue=default\ncreated_at,id\nx\n",
            "ends in 'x', which is not an arrival",
        ),
    ],
)
def test_a_file_that_cannot_be_recorded_to(
    tmp_path: Path, name: str, content: str | None, match: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=match):
        virtually(lambda clock: record(MemoryQueue(clock=clock), path, until="1s"))
    if content is not None:
        assert path.read_text() == content


@pytest.mark.parametrize("given", [{"every": 0}, {"every": "often"}, {"until": -1}])
def test_times_that_are_none(tmp_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        virtually(lambda clock: record(MemoryQueue(clock=clock), tmp_path / "t.csv", **given))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
