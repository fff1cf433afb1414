"""Measuring queues for metrics: cheap, bounded, and through the loss of a store."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from pollwise import Concurrency, Rate
from pollwise.core.strategies.worth import Worth
from pollwise.errors import ConfigError, Unsupported
from pollwise.observe.prometheus import PrometheusSink
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import (
    ChoreFailed,
    Event,
    Events,
    KindTally,
    QueueGone,
    QueueMeasured,
    QueuesLeftOut,
)
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker, WorkerRunOptions, measuring
from pollwise.worker.measuring import KINDS_SHOWN, OTHER, QueueExporter, QueueMeasurer
from tests.queues.http.stub import Served, make_api, make_app
from tests.support.kit import Seen, options, virtually, working
from tests.support.private import write_private

HOSTILE = 'a"} 1\\n# {b="'


def depths(event: QueueMeasured, state: str = "ready") -> dict[str, int]:
    return {each.kind: dict(each.counts)[state] for each in event.kinds}


async def kinds_beyond_the_limit_are_summed_and_empty_ones_stay_at_zero() -> None:
    queue = MemoryQueue("q")
    measurer = QueueMeasurer("q")
    [first] = await queue.put(NewJob("first"))
    assert depths(await measurer.measured(queue)) == {"first": 1}
    await queue.cancel([first])
    assert depths(await measurer.measured(queue)) == {"first": 0}
    await queue.put([NewJob(f"k{n}") for n in range(KINDS_SHOWN + 5)])
    found = depths(await measurer.measured(queue))
    assert len(found) == KINDS_SHOWN + 1
    assert found[OTHER] == 5
    assert sum(found.values()) == KINDS_SHOWN + 5


async def pauses_and_workers_are_measured() -> None:
    queue = MemoryQueue("q")
    await queue.put(NewJob("mail"))
    await queue.pause("mail")
    await queue.pause()
    event = await QueueMeasurer("q").measured(queue)
    assert (event.paused, event.pauses_known, event.workers) == (("", "mail"), True, 0)


async def _until(stop: asyncio.Event, exporter: QueueExporter, enough: asyncio.Event) -> None:
    running = asyncio.create_task(exporter.run(stop))
    async with asyncio.timeout(60):
        await enough.wait()
        stop.set()
        await running


async def every_queue_of_a_store_is_scraped_with_hostile_kinds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for name in ("default", "mail"):
        async with open_queue(f"{url}?queue={name}") as queue:
            await queue.put([NewJob(HOSTILE), NewJob("late", delay="1h")])
    events, stop, enough = Events(quiet=True), asyncio.Event(), asyncio.Event()
    sink = PrometheusSink()
    sink.subscribe(events)
    seen: list[Event] = []

    def count(event: Event) -> None:
        seen.append(event)
        if len(seen) == 2:
            enough.set()

    events.subscribe(count, QueueMeasured)
    await _until(stop, QueueExporter([url], events), enough)
    served = sink.serve(0)
    try:
        with urllib.request.urlopen(served.url, timeout=60) as answer:
            text = answer.read().decode()
    finally:
        served.close()
    for name in ("default", "mail"):
        labels = {"queue": name, "kind": HOSTILE, "state": "ready"}
        assert sink.registry.get_sample_value("pollwise_queue_depth", labels) == 1
        assert f'pollwise_queue_depth{{kind="late",queue="{name}",state="delayed"}} 1.0' in text
    assert len([line for line in text.splitlines() if line.startswith("# HELP")]) > 10


async def a_store_that_is_lost_is_told_once_and_asked_again(tmp_path: Path) -> None:
    events, stop, enough = Events(quiet=True), asyncio.Event(), asyncio.Event()
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with open_queue(url) as queue:
        await queue.put(NewJob("mail"))
    exporter = QueueExporter([url], events, 0.01)
    [(_, asked)] = exporter._queues
    right, seen, calls = asked.stats_by_kind, [], 0

    async def broken(*limits: int) -> object:
        nonlocal calls
        calls += 1
        if 2 <= calls <= 4:
            raise OSError("the store is away")
        return await right(*limits)

    asked.stats_by_kind = broken  # type: ignore[assignment, method-assign]

    def note(event: Event) -> None:
        seen.append(type(event))
        if seen.count(QueueMeasured) == 2:
            enough.set()

    events.subscribe(note, QueueMeasured, ChoreFailed)
    await _until(stop, exporter, enough)
    assert seen[:3] == [QueueMeasured, ChoreFailed, QueueMeasured]


@pytest.mark.parametrize(
    ("urls", "error", "text"),
    [
        (["memory://"], ConfigError, "no other process"),
        (["sqs://jobs?region=eu-west-1"], Unsupported, "cannot be exported by kind"),
        (["sqlite:///a.db", "sqlite:///b.db"], ConfigError, "one exporter for each store"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    urls: list[str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        QueueExporter(urls, Events(quiet=True))


def test_a_kind_that_is_gone_takes_its_series_along() -> None:
    sink = PrometheusSink()
    mail = KindTally("mail", (("ready", 3),), 4.0)
    for kinds in ((mail,), ()):
        sink(QueueMeasured("q", kinds, (), True, 1))
    names = {s.name for f in sink.registry.collect() for s in f.samples if s.labels.get("kind")}
    assert names == set()


def test_kinds_beyond_the_limit_are_summed_and_empty_ones_stay_at_zero() -> None:
    asyncio.run(kinds_beyond_the_limit_are_summed_and_empty_ones_stay_at_zero())


def test_pauses_and_workers_are_measured() -> None:
    asyncio.run(pauses_and_workers_are_measured())


def test_late_schedules_are_measured_and_go_when_they_are_removed() -> None:
    sink = PrometheusSink()

    async def main(clock: VirtualClock) -> None:
        queue, measurer = MemoryQueue("q", clock=clock), QueueMeasurer("q")
        await queue.schedules.set("often", NewJob("mail"), every="1m")
        await queue.schedules.set(HOSTILE, NewJob("mail"), every="1d")
        await clock.advance(90)
        event = await measurer.measured(queue)
        [(first, late), (second, none)] = event.schedules
        assert (first, second, none) == ("often", HOSTILE, 0.0)
        assert 30 <= late <= 90
        sink(event)
        text = sink.exposed()[0].decode()
        assert 'pollwise_queue_schedule_late_seconds{queue="q",schedule="often"}' in text
        await queue.schedules.remove("often")
        sink(await measurer.measured(queue))
        assert 'schedule="often"' not in sink.exposed()[0].decode()

    virtually(main)


def test_limits_are_measured_and_go_when_they_are_removed() -> None:
    sink = PrometheusSink()

    async def main(clock: VirtualClock) -> None:
        queue, measurer = MemoryQueue("q", clock=clock), QueueMeasurer("q")
        await queue.limits.set("mail", Concurrency(2))
        await queue.limits.set("call", Rate(1, per="1h"))
        await queue.put([NewJob(kind) for kind in ("mail", "call") for _ in range(5)])
        assert len(await queue.claim("w", 10, 30)) == 3
        event = await measurer.measured(queue)
        assert event.limits == (("call", 1, 4, None), ("mail", 2, 3, 2))
        sink(event)
        text = sink.exposed()[0].decode()
        assert 'pollwise_queue_limit_running{kind="mail",queue="q"} 2.0\n' in text
        assert 'pollwise_queue_limit_waiting{kind="mail",queue="q"} 3.0\n' in text
        assert 'pollwise_queue_limit_most{kind="mail",queue="q"} 2.0\n' in text
        assert 'pollwise_queue_limit_running{kind="call",queue="q"} 1.0\n' in text
        assert 'limit_most{kind="call"' not in text
        await queue.limits.remove("mail")
        sink(await measurer.measured(queue))
        text = sink.exposed()[0].decode()
        shown = [line for line in text.splitlines() if line.startswith("pollwise_queue_limit_")]
        assert shown
        assert not [line for line in shown if "mail" in line or "limit_most" in line]

    virtually(main)


async def startable(queue: MemoryQueue) -> dict[str, tuple[int, bool]]:
    """How many jobs of each kind may start now, and whether they have an age."""
    event = await QueueMeasurer("q").measured(queue)
    return {each.kind: (each.startable, each.startable_age > 0) for each in event.kinds}


def test_only_jobs_that_may_start_now_wait_for_a_worker() -> None:
    """What a pause or a limit holds back is neither late nor a reason for more workers."""
    sink = PrometheusSink()

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue("q", clock=clock)
        await queue.limits.set("few", Concurrency(2))
        await queue.limits.set("slow", Rate(2, per="1h", burst=2))
        kinds = ("free", "few", "slow", "off")
        await queue.put([NewJob(kind) for kind in kinds for _ in range(5)])
        await queue.pause("off")
        await clock.advance(900)
        both = {"few": (2, True), "slow": (2, True), "off": (0, False)}
        assert await startable(queue) == {"free": (5, True), **both}
        assert len(await queue.claim("w", 10, 3600, kinds=("few", "slow"))) == 4
        none = {"few": (0, False), "slow": (0, False), "off": (0, False)}
        assert await startable(queue) == {"free": (5, True), **none}
        await clock.advance(3000)  # the rate has room again, and nobody takes it
        assert (await startable(queue))["slow"] == (2, True)  # at most its burst
        sink(await QueueMeasurer("q").measured(queue))
        text = sink.exposed()[0].decode()
        assert 'pollwise_queue_startable{kind="free",queue="q"} 5.0\n' in text
        assert 'pollwise_queue_startable_age_seconds{kind="off",queue="q"} 0.0\n' in text
        assert 'pollwise_queue_oldest_age_seconds{kind="off",queue="q"} 3900.0\n' in text
        await queue.pause()
        assert not any(count for count, _ in (await startable(queue)).values())

    virtually(main)


def test_jobs_behind_open_breakers_may_not_start() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue("q", clock=clock)
        await queue.put([NewJob(kind) for kind in ("mail", "call") for _ in range(2)])
        assert await startable(queue) == {"mail": (2, False), "call": (2, False)}
        await queue.record_worker(worker_info("w1", ("mail", "call"), ("mail",)), 180)
        assert await startable(queue) == {"mail": (0, False), "call": (2, False)}
        await queue.record_worker(worker_info("w2", None, ()), 180)
        assert await startable(queue) == {"mail": (2, False), "call": (2, False)}

    virtually(main)


def test_jobs_that_are_not_counted_by_kind_may_start_in_proportion() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue("q", clock=clock)
        await queue.put([NewJob(f"k{n}") for n in range(KINDS_SHOWN + 4)])
        for n in range(KINDS_SHOWN, KINDS_SHOWN + 2):
            await queue.pause(f"k{n}")
        found = await startable(queue)
        assert sum(count for count, _ in found.values()) == KINDS_SHOWN + 2
        await queue.pause()
        whole = replace(await queue.stats(), ready=1_000, capped=frozenset({"ready"}))
        measured = await QueueMeasurer("q").measured(queue)
        tallies = measuring._completed(list(measured.kinds), whole, frozenset({"ready"}))
        assert sum(dict(each.counts)["ready"] for each in tallies) == 1_000
        assert sum(each.startable for each in tallies) == 0

    virtually(main)


def worker_info(name: str, kinds: tuple[str, ...] | None, breakers: tuple[str, ...]) -> WorkerInfo:
    return WorkerInfo(
        name=name, instance=name, host="h", pid=1, version="1", kinds=kinds, concurrency=1, busy=0,
        waiting=0, running=(), started_at=0.0, seen_at=0.0, strategy="", interval=1.0, hints=False,
        breakers=breakers,
    )  # fmt: skip


def test_every_queue_of_a_store_is_scraped_with_hostile_kinds(tmp_path: Path) -> None:
    asyncio.run(every_queue_of_a_store_is_scraped_with_hostile_kinds(tmp_path))


def test_a_store_that_is_lost_is_told_once_and_asked_again(tmp_path: Path) -> None:
    asyncio.run(a_store_that_is_lost_is_told_once_and_asked_again(tmp_path))


async def measure_a_store(url: str, name: str) -> None:
    async with open_queue(url) as queue:
        await queue.migrate()
        await queue.put([NewJob(HOSTILE), NewJob("mail"), NewJob("mail", delay="1h")])
        await queue.pause("mail")
    events, stop, enough = Events(quiet=True), asyncio.Event(), asyncio.Event()
    seen: list[QueueMeasured] = []

    def note(event: QueueMeasured) -> None:
        seen.append(event)
        enough.set()

    events.subscribe(note, QueueMeasured)
    await _until(stop, QueueExporter([url], events), enough)
    assert seen[0].source == name
    assert depths(seen[0]) == {HOSTILE: 1, "mail": 1}
    assert depths(seen[0], "delayed") == {HOSTILE: 0, "mail": 1}
    assert (seen[0].paused, seen[0].workers) == (("mail",), 0)


async def measure_many(url: str) -> None:
    async with open_queue(url) as queue:
        await queue.migrate()
        kinds = [NewJob(f"k{n}") for n in range(60)]
        await queue.put([*kinds, *[NewJob("k0")] * 700, *[NewJob("late", delay="1h")] * 40])
        found = await QueueMeasurer("q").measured(queue)
        assert depths(found)["k0"] == 701  # by default, each of 60 kinds is counted up to 333
        assert depths(found, "delayed")["late"] == 40
        assert OTHER not in depths(found)
        few = await queue.stats_by_kind(20, 200)
        assert few["k0"].capped == {"ready", "delayed", "leased"}
        assert few["k0"].ready == 100


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_kind_with_most_of_the_jobs_is_counted_wholly(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    if store == "postgres":
        url = request.getfixturevalue("postgres").create_database(name)
    asyncio.run(measure_many(url))


def test_each_kind_of_store_is_measured(shared_url: str, name: str) -> None:
    asyncio.run(measure_a_store(shared_url, name))


async def queues_come_and_go(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    jobs = {}
    for name in ("a", "b", "c", "default"):
        async with open_queue(f"{url}?queue={name}") as queue:
            jobs[name] = await queue.put(NewJob("mail"))
    seen, stop, both, enough = Seen(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    sink = PrometheusSink()
    sink.subscribe(seen.events)

    def shown() -> set[str]:
        samples = [s for f in sink.registry.collect() for s in f.samples]
        return {s.labels["queue"] for s in samples if s.name.startswith("pollwise_queue_")}

    def look(event: Event) -> None:
        both.set() if shown() == {"default", "a"} else None
        enough.set() if shown() == {"default", "b"} else None

    async def finish_a() -> None:
        await both.wait()
        async with open_queue(f"{url}?queue=a") as queue:
            await queue.cancel(jobs["a"])

    seen.events.subscribe(look, QueueMeasured)
    finishing = asyncio.create_task(finish_a())
    await _until(stop, QueueExporter([url], seen.events, 0.01), enough)
    await finishing
    assert [event.source for event in seen.of(QueueGone)] == ["a"]
    [left_out] = seen.of(QueuesLeftOut)
    assert (left_out.names, left_out.count) == (("b", "c"), 2)


def test_queues_beyond_the_limit_are_named_once_and_one_that_is_gone_has_no_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "QUEUES_SHOWN", 2)
    asyncio.run(queues_come_and_go(tmp_path))


def test_a_queue_of_a_controller_is_measured_over_http(tmp_path: Path) -> None:
    write_private(tmp_path / "token", "admin")
    with Served(lambda: make_app(make_api(tmp_path / "jobs.db", Clock()))) as served:
        url = f"{served.url}?queue=q&token_file={tmp_path}/token"
        asyncio.run(measure_a_store(url, "q"))


def test_the_forecast_of_worth_is_a_metric() -> None:
    async def main(clock: VirtualClock) -> float:
        queue, events, sink = MemoryQueue("q", clock=clock), Events(quiet=True), PrometheusSink()
        sink.subscribe(events)
        worker = Worker(queue, events=events)
        worker.handle("mail")(lambda job: None)
        async with working(worker, options(polling=Worth(poll_cost=1e-6, wait_cost=1e-5))):
            for _ in range(300):
                await queue.put(NewJob("mail"))
                await clock.sleep(2.0)
            name = "pollwise_worker_poll_forecast_per_second"
            found: float | None = sink.registry.get_sample_value(name, {"queue": "q"})
            return found or 0.0

    assert virtually(main) == pytest.approx(0.5, rel=0.4)


def test_a_worker_measures_its_queue_if_it_is_asked_to() -> None:
    async def main() -> list[QueueMeasured]:
        queue, events, seen = MemoryQueue("q"), Events(quiet=True), []
        worker = Worker(queue, events=events)

        @worker.handle("mail")
        async def mail(job: Job) -> None: ...

        def note(event: QueueMeasured) -> None:
            seen.append(event)
            worker.stop()

        events.subscribe(note, QueueMeasured)
        await queue.put(NewJob("later", delay="1h"))
        async with asyncio.timeout(60):
            await worker.run(WorkerRunOptions(signals=False, export_queue=True))
        return seen

    [event] = asyncio.run(main())
    assert depths(event, "delayed") == {"later": 1}
