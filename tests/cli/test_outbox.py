"""`pollwise outbox …`, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions, open_store
from pollwise.outbox.records import KeySettlement, Record
from pollwise.storage.sql import migrations
from tests.cli.console import Command, good, pollwise
from tests.support.daemons import wait_until
from tests.support.servers import Postgres

_names = itertools.count(1)

SHOP = """
import os, pollwise

outbox = pollwise.Outbox(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))

@outbox.handle("order.*", retry=pollwise.Retry.fixed("10ms", attempts=2))
async def publish(record):
    print("published", record.id, record.key, record.payload, flush=True)
    if record.payload == "bad":
        raise ValueError("no good")

@outbox.handle("*")
def audit(record):
    print("audited", record.id, flush=True)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database without the outbox's tables."""
    if request.param == "sqlite":
        return "sqlite:///shop.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database(f"cli_outbox_{next(_names)}")


def put(url: str, records: Iterable[NewRecord]) -> list[str]:
    async def main() -> list[str]:
        async with open_store(url) as store:
            return await store.put(records)

    return asyncio.run(main())


def kill(url: str, *keys: str | None) -> None:
    """Make the first record of each key dead."""

    async def main() -> None:
        async with open_store(url) as store:
            for claim in await store.claim("r", 100, 1, 60):
                if claim.key in keys:
                    assert not await store.settle(
                        [KeySettlement(claim, 0, "dead", error="no good")]
                    )
                else:
                    assert not await store.settle([KeySettlement(claim, 0)])

    asyncio.run(main())


@pytest.fixture
def shop(url: str) -> list[str]:
    """An outbox with a dead record that blocks its key; the ids of its records."""
    good("outbox", "migrate", url)
    orders = [NewRecord("order.placed", {"id": n}, "order-17", {"tenant": "a"}) for n in range(3)]
    ids = put(url, [*orders, NewRecord("order.paid", None, "order-18"), NewRecord("mail")])
    kill(url, "order-17", None)
    return ids


def test_migrate_makes_the_tables_once(url: str) -> None:
    refused = pollwise("outbox", "stats", url)
    assert refused.code == 2
    assert "pollwise outbox migrate" in refused.err
    folder = f"pollwise.outbox.stores.{'sqlite' if url.startswith('sqlite') else 'postgres'}"
    versions = [version for version, _ in migrations(folder)]
    assert good("outbox", "migrate", url, "--json").json() == {"applied": versions}
    assert good("outbox", "migrate", url).out == "nothing to do: the tables are up to date\n"
    assert good("outbox", "stats", url, "--json").json()["ready"] == 0


def test_the_sql_is_printed_without_touching_anything(url: str, folder: Path) -> None:
    printed = good("outbox", "migrate", url, "--sql").out
    assert "CREATE TABLE" in printed
    assert good("outbox", "migrate", url, "--sql", "--json").json()["sql"].strip() in printed
    assert not list(folder.iterdir())
    assert pollwise("outbox", "stats", url).code == 2


def test_the_sql_runs_elsewhere(postgres: Postgres) -> None:
    printed = good("outbox", "migrate", "postgresql://nobody:hunter2@127.0.0.1:1/x", "--sql").out
    assert "hunter2" not in printed
    dsn = postgres.create_database("cli_outbox_sql")
    subprocess.run(
        [postgres.programs / "psql", dsn, "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"],
        input=printed.encode(),
        check=True,
        capture_output=True,
    )
    assert good("outbox", "migrate", dsn, "--json").json() == {"applied": []}


def test_stats(url: str, shop: list[str]) -> None:
    facts = good("outbox", "stats", url, "--json").json()
    assert facts.pop("oldest_age") >= 0
    assert facts == {
        "ready": 3, "leased": 0, "waiting": 0, "dead": 2, "done": 0, "keys_blocked": 1, "behind": 2,
        "delayed": 0, "lanes": {}, "capped": [],
    }  # fmt: skip
    text = good("outbox", "stats", url).out
    assert "1 key(s) blocked, 2 record(s) behind them" in text
    assert ["dead", "2"] in [line.split() for line in text.splitlines()]


def test_blocked_and_dead(url: str, shop: list[str]) -> None:
    (key,) = good("outbox", "blocked", url, "--json").json()
    assert (key["key"], key["record_id"], key["behind"]) == ("order-17", shop[0], 2)
    assert key["error"] == "no good"
    text = good("outbox", "blocked", url).out
    assert "order-17" in text
    assert "no good" in text
    assert good("outbox", "blocked", url, "--after", "order-17").out == "no key is blocked\n"
    dead = good("outbox", "dead", url, "--json").json()
    assert [each["id"] for each in dead] == [shop[0], shop[4]]
    assert dead[0]["payload"] == {"id": 0}
    assert dead[0]["headers"] == {"tenant": "a"}
    (of_kind,) = good("outbox", "dead", url, "--kind", "mail", "--json").json()
    assert of_kind["id"] == shop[4]
    (of_key,) = good("outbox", "dead", url, "--key", "order-17", "--json").json()
    assert of_key["id"] == shop[0]
    assert "more may follow" in good("outbox", "dead", url, "--limit", "1").out


def test_list_and_show(url: str, shop: list[str]) -> None:
    listed = good("outbox", "list", url, "--json").json()
    assert [(each["id"], each["state"]) for each in listed] == [
        (shop[0], "dead"), (shop[1], "ready"), (shop[2], "ready"), (shop[3], "ready"),
        (shop[4], "dead"),
    ]  # fmt: skip
    (paid,) = good("outbox", "list", url, "--state", "ready", "--kind", "order.paid").out.split(
        "\n"
    )[1:-1]
    assert paid.split()[:3] == [shop[3], "order.paid", "order-18"]
    page = good("outbox", "list", url, "--key", "order-17", "--limit", "2").out
    assert f"more may follow: --after {shop[1]}" in page
    rest = good("outbox", "list", url, "--key", "order-17", "--after", shop[1], "--json").json()
    assert [each["id"] for each in rest] == [shop[2]]
    assert good("outbox", "list", url, "--state", "done").out == "no such records\n"
    refused = pollwise("outbox", "list", url, "--state", "blocked")
    assert refused.code == 2
    assert "--state blocked must be one of ready, leased" in refused.err
    shown = good("outbox", "show", url, shop[0]).out
    assert ["error", "no", "good"] in [line.split() for line in shown.splitlines()]
    [facts] = good("outbox", "show", url, shop[0], "--json").json()
    assert facts["payload"] == {"id": 0}
    nobody = pollwise("outbox", "show", url, "999999")
    assert nobody.code == 1
    assert "no record 999999" in nobody.err


def test_retry_and_skip(url: str, shop: list[str]) -> None:
    assert good("outbox", "retry", url, "--key", "order-17").out == "retried 1 record(s)\n"
    assert good("outbox", "blocked", url).out == "no key is blocked\n"
    kill(url, "order-17")
    assert good("outbox", "drop", url, shop[0], "--json").json() == {"dropped": 1}
    assert good("outbox", "stats", url, "--json").json()["ready"] == 3
    again = pollwise("outbox", "drop", url, shop[0])
    assert again.code == 1
    assert "1 of 1 ids are not dead records here" in again.err
    nobody = pollwise("outbox", "retry", url, "--key", "order-99")
    assert nobody.code == 1
    assert "no dead record has the key order-99" in nobody.err
    assert good("outbox", "retry", url, "--all").out == "retried 1 record(s)\n"
    for words in ([], ["--all", "--key", "x"], ["1", "--all"]):
        refused = pollwise("outbox", "retry", url, *words)
        assert refused.code == 2
        assert "give one of: record ids, --key, --all" in refused.err


def test_prune(url: str) -> None:
    good("outbox", "migrate", url)
    put(url, [NewRecord("a", n, "k") for n in range(5)])

    async def main() -> None:
        async with open_store(url, keep="1h") as store:
            (claim,) = await store.claim("r", 10, 5, 60)
            await store.settle([KeySettlement(claim, 5)])

    asyncio.run(main())
    refused = pollwise("outbox", "prune", url)
    assert refused.code == 2
    assert "--keep 7d" in refused.err
    assert good("outbox", "prune", url, "--keep", "1h").out == "pruned 0 record(s)\n"
    assert good("outbox", "prune", url, "--keep", "1us", "--json").json() == {"pruned": 5}


def test_lanes(url: str, shop: list[str]) -> None:
    async def main() -> None:
        async with open_store(url) as store:
            claims = await store.claim("r", 10, 10, 60)
            lanes = {"mail": "", "bill": ""}
            await store.settle([KeySettlement(c, 1, lanes=(lanes,)) for c in claims])
            await store.claim("r", 1, 1, 60)
            mail = [c for c in await store.claim("r", 10, 10, 60) if c.lane == "mail"]
            await store.settle([KeySettlement(c, 0, "dead", error="no post") for c in mail])

    asyncio.run(main())
    assert "lane mail" in good("outbox", "stats", url).out
    facts = good("outbox", "stats", url, "--json").json()
    assert {lane: of["dead"] for lane, of in facts["lanes"].items()} == {
        "": 2, "bill": 0, "mail": 1,
    }  # fmt: skip
    blocked = good("outbox", "blocked", url).out
    assert ["order-18", "mail", shop[3]] in [line.split()[:3] for line in blocked.splitlines()]
    assert "lane" in good("outbox", "dead", url).out
    shown = good("outbox", "show", url, shop[3], "--json").json()
    assert [each["lane"] for each in shown] == ["bill", "mail"]
    refused = pollwise("outbox", "drop", url, "--all", "--lane", "post")
    assert refused.code == 2
    assert "lane = 'post' is not a lane of this outbox; it has: bill, mail" in refused.err
    assert good("outbox", "retry", url, "--all", "--lane", "mail", "--json").json() == {
        "retried": 1
    }


def test_replay(url: str) -> None:
    good("outbox", "migrate", url)
    kept = f"{url}{'&' if '?' in url else '?'}keep=1h"

    async def handle_all() -> list[object]:
        async with open_store(kept) as store:
            claims = await store.claim("r", 10, 10, 60)
            await store.settle([KeySettlement(c, len(c.records)) for c in claims])
        return [held.record.payload for claim in claims for held in claim.records]

    put(url, [NewRecord("a", n, "k") for n in range(3)] + [NewRecord("b", 3, "l")])
    assert sorted(map(str, asyncio.run(handle_all()))) == ["0", "1", "2", "3"]
    assert good("outbox", "replay", url, "--kind", "a", "--dry-run").out == (
        "would replay 3 record(s)\n"
    )
    assert asyncio.run(handle_all()) == []
    assert good("outbox", "replay", url, "--kind", "a", "--json").json() == {"replayed": 3}
    assert asyncio.run(handle_all()) == [0, 1, 2]
    assert good("outbox", "replay", url, "--key", "l", "--since", "2020-01-01").out == (
        "replayed 1 record(s)\n"
    )
    assert asyncio.run(handle_all()) == [3]
    assert good("outbox", "replay", url, "--until", "2020-01-01").out == "replayed 0 record(s)\n"
    for words in ([], ["--all", "--kind", "a"], ["--since", "yesterday"]):
        refused = pollwise("outbox", "replay", url, *words)
        assert refused.code == 2
        assert "--since" in refused.err


def test_run(url: str, folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    good("outbox", "migrate", url)
    ids = put(url, [NewRecord("order.placed", n, "order-1") for n in range(3)])
    with Command(
        "outbox", "run", "shop:outbox", "--log-format", "json", env={"SHOP_DATABASE": url}
    ) as command:
        for number in range(3):
            command.out.until(f"published {ids[number]} order-1 {number}")
            command.out.until(f"audited {ids[number]}")
        (relay,) = good("outbox", "relays", url, "--json").json()
        assert relay["handlers"] == {"publish": ["order.*"], "audit": ["*"]}
        assert "publish: order.*; audit: *" in good("outbox", "relays", url).out
        (bad,) = put(url, [NewRecord("order.placed", "bad", "order-2")])
        dead = json.loads(command.err.until('"record_dead"').string)
        assert (dead["record"], dead["error"]) == (bad, "publish: ValueError: no good")
        assert dead["source"] == "outbox:default"
        assert command.stopped() == 0
    (key,) = good("outbox", "blocked", url, "--json").json()
    assert key["key"] == "order-2"
    assert "no relay runs" in good("outbox", "relays", url).out


def test_run_takes_the_settings(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    url = "sqlite:///other.db"
    good("outbox", "migrate", url)
    put(url, [NewRecord("order.placed", 1, "order-1")])
    (folder / "pollwise.toml").write_text(
        f"[outbox]\ndatabase = '{url}'\nmetrics_port = 0\n[outbox.polling]\nstrategy = 'fixed'\n"
    )
    with Command("outbox", "run", "shop:outbox", "--batch", "7") as command:
        command.err.until("metrics on http")
        command.err.until("relay_started source=outbox:default .*Fixed")
        command.out.until("published 1 order-1 1")
        assert command.stopped() == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "'shop' is not module:outbox; write for example shop.events:outbox"),
        ("shop:publish", "write shop:outbox"),
        ("shop:empty", "write shop:outbox"),
        ("bare:outbox", "has no handler; register one with @outbox.handle"),
        ("runs:outbox", "`pollwise outbox run` imports the module and runs the outbox itself"),
    ],
)
def test_what_cannot_be_run_is_refused(target: str, said: str, folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    bare = "import pollwise\noutbox = pollwise.Outbox('sqlite:///x.db')\n"
    (folder / "bare.py").write_text(bare)
    (folder / "runs.py").write_text(
        bare + "outbox.handle('*', name='p')(print)\nimport asyncio\nasyncio.run(outbox.run())\n"
    )
    refused = pollwise("outbox", "run", target)
    assert refused.code == 2
    assert said in refused.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.db", "is not an outbox URL; give one like sqlite:///shop.db"),
        ("redis://x/0", "no outbox has the scheme 'redis'; known: sqlite, postgresql"),
        ("sqlite:///shop.db?queue=a", "outbox URLs of sqlite do not take 'queue'"),
        ("sqlite:///shop.db?on_dead=stop", "on_dead = 'stop' must be 'block' or 'continue'"),
        ("sqlite://", "names no file"),
    ],
)
def test_a_wrong_url_is_refused(url: str, said: str) -> None:
    refused = pollwise("outbox", "stats", url)
    assert refused.code == 2
    assert said in refused.err


def test_a_relay_runs_until_it_is_stopped_by_its_handler(url: str) -> None:
    """A blocking program writes `asyncio.run(outbox.run())`."""
    good("outbox", "migrate", url)
    outbox = Outbox(url, options=OutboxRunOptions(grace="5s"))
    seen = []

    @outbox.handle("order.*")
    def publish(record: Record) -> None:
        seen.append(record.payload)
        if len(seen) == 10:
            outbox.stop()

    put(url, [NewRecord("order.placed", n, "k") for n in range(10)])
    asyncio.run(outbox.run())
    assert seen == list(range(10))
    assert good("outbox", "stats", url, "--json").json()["ready"] == 0


def test_release(url: str, shop: list[str]) -> None:
    async def claimed() -> int:
        async with open_store(url) as store:
            return len(await store.claim("web-1:4711", 10, 10, 3600))

    held = asyncio.run(claimed())
    assert held
    assert good("outbox", "stats", url, "--json").json()["leased"] == held
    refused = pollwise("outbox", "release", url)
    assert refused.code == 2
    assert "give one of: --key, --relay, --all" in refused.err
    missing = pollwise("outbox", "release", url, "--relay", "other")
    assert missing.code == 1
    assert "no lease of other: see pollwise outbox list --state leased" in missing.err
    assert (
        good("outbox", "release", url, "--relay", "web-1:4711").out == f"released {held} key(s)\n"
    )
    assert good("outbox", "release", url, "--all", "--json").json() == {"released": 0}
    assert good("outbox", "stats", url, "--json").json()["leased"] == 0


def test_export_measures_without_a_relay(url: str, shop: list[str]) -> None:
    refused = pollwise("outbox", "export", url)
    assert refused.code == 2
    assert "--metrics-port 9092" in refused.err
    with Command("outbox", "export", url, "--metrics-port", 0, "--every", "50ms") as command:
        url_served = command.err.until(r"metrics on (http\S+)")[1]

        def scraped() -> dict[str, float]:
            text = urllib.request.urlopen(url_served, timeout=30).read().decode()
            rows = re.findall(r"^pollwise_outbox_(\S+) (\S+)$", text, re.MULTILINE)
            return {name: float(value) for name, value in rows}

        measured = 'measured_timestamp_seconds{outbox="default"}'
        wait_until(lambda: measured in scraped(), "the first measure")
        first = scraped()
        assert first['relays{outbox="default"}'] == 0, "nobody relays"
        assert first['records{lane="",outbox="default",state="dead"}'] == 2
        assert first['keys_blocked{lane="",outbox="default"}'] == 1
        assert first['oldest_age_seconds{lane="",outbox="default"}'] > 0

        async def announced() -> None:
            async with open_store(url) as store:
                await store.announce_handlers("web-1", {"publish": ["*"]}, 0.0)

        asyncio.run(announced())
        wait_until(lambda: scraped()['relays{outbox="default"}'] == 1, "the relay is counted")
        wait_until(lambda: scraped()[measured] > first[measured], "measured again")
        assert command.stopped() == 0


def test_export_of_an_outbox_that_is_not_migrated_is_refused(url: str) -> None:
    refused = pollwise("outbox", "export", url, "--metrics-port", "0")
    assert refused.code == 2
    assert "pollwise outbox migrate" in refused.err
