"""Probes of queues and outboxes: what they say of each store, and what they refuse."""

from __future__ import annotations

import asyncio
import gc
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pollwise.alerts.channels.function import FunctionChannel
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Notice
from pollwise.errors import ConfigError, ProbeError, ProbeRefused
from pollwise.fleet import Fleet, FleetRunOptions
from pollwise.fleet.probes import facts_of, make_probe
from pollwise.fleet.probes.kept import connections, shared
from pollwise.fleet.probes.work import stores
from pollwise.fleet.probes.work.stores import OpenStores
from pollwise.fleet.targets import Reading, Target
from pollwise.outbox.records import KeySettlement, NewRecord
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.rollups.points import MINUTE, HistoryPoint
from pollwise.runtime.rollups.rows import BY_WORKER, HistoryRow, encoded
from pollwise.testing.conformance.steering import INFO
from tests.fleet.probes.kit import polled, really
from tests.queues.http.stub import TOKENS, Served, make_api, make_app
from tests.support.clouds import MiniStack
from tests.support.private import write_private
from tests.support.servers import Postgres


def history_of(queue: Queue) -> HistoryRow:
    """A minute or two ago, of ten runs one failed, and of ten reports nine."""
    at = (queue.clock.epoch() // MINUTE - 1) * MINUTE
    points = [
        HistoryPoint(at, kind="mail", done=9, failed=1),
        HistoryPoint(at, kind="report", done=1, failed=9),
    ]
    return HistoryRow(BY_WORKER, int(at), INFO.note_name, encoded(points))


async def filled(url: str) -> None:
    """A queue with a dead mail, a mail that runs, two that wait, a report later, and a worker."""
    queue = open_queue(url)
    async with queue:
        await queue.migrate()
        await queue.put([NewJob("mail", n) for n in range(4)])
        first, _second = await queue.claim("w", 2, "1m")
        await queue.settle([Settlement.dead(first, "no such address")])
        await queue.put(NewJob("report", 1, delay="1h"))
        can_tell = queue.capabilities.history
        await queue.record_worker(INFO, 180, [history_of(queue)] if can_tell else ())
        await queue.pause("report")


def test_a_queue_tells_what_waits_runs_and_died(shared_url: str) -> None:
    async def main() -> None:
        await filled(shared_url)
        found = await polled("queue", url=shared_url)
        assert found.value == "1"
        assert [found.facts[name] for name in ("ready", "leased", "delayed", "dead")] == [
            2,
            1,
            1,
            1,
        ]
        assert 0 < float(found.facts["oldest"] or 0) < 600
        assert (found.facts["workers"], found.facts["paused"]) == (1, 0)
        assert found.summary.startswith("2 ready (oldest ")
        assert found.summary.endswith("1 delayed, 1 leased, 1 dead, 1 worker")
        probe = make_probe(Target("t", "queue", options={"url": shared_url}))
        tells_history = "failing" in (facts_of("queue", probe) or ())
        assert tells_history is not shared_url.startswith("file:")
        if tells_history:
            assert found.facts["failing"] == 0.5
            assert 1.6 < float(found.facts["failed_per_minute"] or 0) <= 2
        # Another look at an unchanged queue is not a change, though jobs got older.
        assert (await polled("queue", url=shared_url)).value == found.value
        reports = await polled("queue", url=shared_url, kind="report")
        assert (reports.value, reports.facts["delayed"], reports.facts["paused"]) == ("0", 1, 1)
        assert (reports.facts["workers"], reports.facts["oldest"]) == (0, 0.0)
        assert reports.facts.get("failing") == (0.9 if tells_history else None)

    really(main)


def test_a_queue_behind_a_controller_tells_the_same(tmp_path: Path, name: str) -> None:
    token = tmp_path / "token"
    write_private(token, TOKENS["admin"])
    with Served(lambda: make_app(make_api(tmp_path / "jobs.db", Clock()))) as served:
        url = f"{served.url}?queue={name}&token_file={token}"

        async def main() -> Reading:
            await filled(url)
            return await polled("queue", url=url)

        found = really(main)
    assert (found.value, found.facts["ready"], found.facts["workers"]) == ("1", 2, 1)
    assert found.facts["failing"] == 0.5


def test_sqs_tells_counts_and_says_what_it_cannot(
    ministack: MiniStack, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.clouds import CREDENTIALS

    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    url = f"sqs://{name}?endpoint={ministack.endpoint}&linger=0&region=us-east-1"

    async def main() -> None:
        queue: Any = open_queue(url)
        async with queue:
            await queue.create()
            await queue.put(NewJob("mail"))
        found = await polled("queue", url=url)
        assert (found.value, found.facts["ready"]) == ("0", 1)
        assert set(found.facts) == {"ready", "delayed", "leased", "dead", "ms"}

    really(main)
    probe = make_probe(Target("t", "queue", options={"url": url}))
    assert "oldest" not in (facts_of("queue", probe) or ())
    with pytest.raises(ConfigError, match="kind cannot be given: this store does not count jobs"):
        make_probe(Target("t", "queue", options={"url": url, "kind": "mail"}))


def test_a_store_stays_open_between_polls_and_is_closed_with_the_fleet(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def main() -> None:
        await filled(url)
        async with connections():
            opened = shared(OpenStores, OpenStores)
            await polled("queue", url=url)
            (kept,) = opened._open.values()
            await asyncio.gather(*(polled("queue", url=url, kind="mail") for _ in range(3)))
            assert [each.store for each in opened._open.values()] == [kept.store]
        assert not opened._open
        assert kept.store._thread.closed  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_store_that_no_target_polls_any_more_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))

    async def main() -> None:
        for url in (first, second):
            await filled(url)
        await polled("queue", url=first)
        monkeypatch.setattr(stores, "IDLE_SECONDS", -1.0)
        await polled("queue", url=second)
        assert [url for _, url in shared(OpenStores, OpenStores)._open] == [second]

    really(main)


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    for kind in ("queue", "outbox"):
        with pytest.raises(ProbeRefused, match=r"gone\.db"):
            really(partial(polled, kind, url=f"sqlite:///{tmp_path}/gone.db"))
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_reached_is_a_transient_failure_without_secrets() -> None:
    for kind, url in (
        ("queue", "postgresql://app:hunter2@127.0.0.1:9/shop?connect_timeout=2"),
        ("queue", "redis://:hunter2@127.0.0.1:9/0"),
        ("outbox", "postgresql://app:hunter2@127.0.0.1:9/shop?connect_timeout=2"),
    ):
        with pytest.raises(ProbeError) as raised:
            really(partial(polled, kind, url=url))
        assert not raised.value.permanent
        assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("type", "options", "said"),
    [
        ("queue", {}, "url is missing"),
        ("queue", {"url": "jobs.db"}, "url = 'jobs.db': 'jobs.db' is not a queue URL; give one"),
        ("queue", {"url": "sqlite:///a.db?kep=1"}, "do not take 'kep'; did you mean 'keep'"),
        ("queue", {"url": "memory://"}, "only its own process sees; use a function"),
        ("queue", {"url": "sqlite:///a", "kind": "m", "most": 5}, "does not apply to one kind"),
        ("queue", {"url": "sqlite:///a", "window": "5s"}, "window = 5 s must be from 1m to 24h"),
        ("outbox", {"url": "redis://:hunter2@h/0"}, "no outbox has the scheme 'redis'"),
        ("outbox", {"url": "sqlite:///a", "kind": "m"}, "kind is not an option"),
    ],
)
def test_wrong_options_are_refused(type: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", type, options=options))
    assert said in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_checking_a_target_leaves_nothing_open(tmp_path: Path, redis: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for url in (
            f"sqlite:///{tmp_path}/a.db",
            "postgresql://a@b/c",
            redis.url(),
            "http://127.0.0.1:9",
        ):
            make_probe(Target("t", "queue", options={"url": url}))
        gc.collect()


@pytest.fixture(params=["sqlite", "postgres"])
def outbox_url(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database(name)


async def settled_dead(store: OutboxStore) -> None:
    (claim,) = await store.claim("r", 1, 1, 60)
    await store.settle([KeySettlement(claim, 0, "dead", error="the broker refused it")])


def test_an_outbox_tells_its_lag_and_blocked_keys(outbox_url: str) -> None:
    async def main() -> Reading:
        if outbox_url.startswith("sqlite"):
            import sqlite3

            sqlite3.connect(outbox_url.removeprefix("sqlite:///")).close()
        async with open_store(outbox_url) as store:
            await store.migrate()
            await store.put([NewRecord("paid", 1, key="a"), NewRecord("paid", 2, key="a")])
            await settled_dead(store)
        return await polled("outbox", url=outbox_url)

    found = really(main)
    assert found.value == "1"
    assert {name: found.facts[name] for name in ("dead", "blocked", "behind", "relays")} == {
        "dead": 1,
        "blocked": 1,
        "behind": 1,
        "relays": 0,
    }
    assert float(found.facts["lag"] or 0) > 0
    assert found.facts["failing"] == 0.0
    assert "1 dead, 1 key blocked, 0 relays" in found.summary


def test_all_facts_of_a_worker_record_may_be_hostile(tmp_path: Path) -> None:
    """What another process wrote into the store does not break the probe."""
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def main() -> None:
        await filled(url)
        async with open_queue(url) as queue:
            at = int((queue.clock.epoch() // MINUTE - 1) * MINUTE)
            await queue.record_worker(
                replace(INFO, name="x"), 180, [HistoryRow(BY_WORKER, at, "a1 x", "[[1e999,{}]]")]
            )
        found = await polled("queue", url=url)
        assert found.facts["workers"] == 2

    really(main)


def test_a_dead_job_opens_an_alert_and_its_retry_closes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def main() -> list[tuple[str, str]]:
        heard: asyncio.Queue[Notice] = asyncio.Queue()
        channel = FunctionChannel("ops", heard.put)
        fleet = Fleet(FleetRunOptions(signals=False), alerts=Alerts([channel], to="ops"))
        rules = ["dead > 0", "oldest > 1h", "failing > 0.6"]
        fleet.add(Target("mail", "queue", "10ms", options={"url": url}, alerts=rules))
        await filled(url)
        running = asyncio.ensure_future(fleet.run())
        opened = await heard.get()
        async with open_queue(url) as queue:
            await queue.retry()
        closed = await heard.get()
        fleet.stop()
        await running
        return [(each.event, str(each.payload["when"])) for each in (opened, closed)]

    assert really(main) == [("opened", "dead > 0"), ("closed", "dead > 0")]
