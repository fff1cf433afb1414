"""The queue in real stores: MiniStack and SeaweedFS for S3, a local folder, and stores that are not
fit for it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from pollwise import open as open_queue
from pollwise.errors import ConfigError, StoreError, StoreUnavailable
from pollwise.queues.objects.opening import local_store
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing.conformance import CHECKS, Check, name_of, run
from tests.queues.objects.s3_stub import Stub
from tests.queues.objects.stores import Heedless, StampedBench, VirtualStore
from tests.support.clouds import CREDENTIALS, MiniStack, Weed
from tests.support.kit import virtually
from tests.support.servers import Servers

numbers = itertools.count()


@pytest.fixture(scope="module")
def weed(servers: Servers) -> Weed:
    return servers.weed()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def kept(check: Check, store: Any) -> None:
    clock = VirtualClock()
    clock.run(run(check, StampedBench(clock, store, f"check{next(numbers)}")))


# All clauses run in a folder, and on the store of `test_conformance`, which counts requests too. On
# servers run some of them, which make every kind of request.


@pytest.mark.parametrize("check", CHECKS[1::3], ids=name_of)
def test_contract_on_ministack(check: Check, ministack: MiniStack) -> None:
    kept(check, ministack.store())


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract_in_a_folder(check: Check, tmp_path: Path) -> None:
    kept(check, local_store(tmp_path / "bucket"))


@pytest.mark.parametrize("check", CHECKS[::6], ids=name_of)
def test_contract_on_seaweedfs(check: Check, weed: Weed) -> None:
    kept(check, weed.store())


def test_contract_in_obstore_memory() -> None:
    for check in CHECKS[::4]:
        try:
            kept(check, MemoryStore())
        except pytest.skip.Exception:
            continue


# Processes

CHILD = """
import asyncio, sys
import pollwise
from pollwise.runtime.jobs import Settlement

async def main(url, name, lease):
    loop = asyncio.get_running_loop()
    async with pollwise.open(url) as queue:
        await queue.claim(name, 1, lease, kinds=["none"])
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            claims = await queue.claim(name, 1, lease)
            print(",".join(claim.job.id for claim in claims) or "-", flush=True)
            await queue.settle([Settlement.done(claim) for claim in claims])

asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
"""

WORKER = """
import asyncio, sys
import pollwise
from pollwise.runtime.jobs import Settlement

async def main(url, name, lease):
    async with pollwise.open(url) as queue:
        print("up", flush=True)
        while True:
            claims = await queue.claim(name, 5, lease)
            for claim in claims:
                print(claim.job.payload, flush=True)
            await asyncio.sleep(0.02)
            await queue.settle([Settlement.done(claim) for claim in claims])

asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
"""


def child(code: str, url: str, name: str, lease: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, url, name, str(lease)],
        env={**os.environ, **CREDENTIALS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def races(url: str, rounds: int, rivals: int = 4) -> Counter[int]:
    """Rounds in which all rivals claim one job at the same time: how many won each."""
    children = [child(CHILD, url, f"rival{n}", 60) for n in range(rivals)]
    winners: Counter[int] = Counter()
    try:
        assert [said(each) for each in children] == ["ready"] * rivals

        async def main() -> None:
            async with open_queue(url) as queue:
                for n in range(rounds):
                    [job_id] = await queue.put(NewJob("job", n))
                    for each in children:
                        assert each.stdin
                        each.stdin.write("go\n")
                        each.stdin.flush()
                    results = [said(each) for each in children]
                    won = [result for result in results if result != "-"]
                    assert set(won) <= {job_id}, f"{won} were claimed, and {job_id} was put"
                    winners[len(won)] += 1

        asyncio.run(main())
    finally:
        for each in children:
            each.kill()
            each.communicate()
    return winners


MANY = pytest.param(1000, marks=pytest.mark.soak)


@pytest.mark.parametrize("rounds", [60, MANY])
def test_races_have_one_winner_each(ministack: MiniStack, credentials: None, rounds: int) -> None:
    assert races(ministack.url("races"), rounds) == {1: rounds}


def test_races_on_seaweedfs(weed: Weed, credentials: None) -> None:
    assert races(weed.url("races"), 20) == {1: 20}


@pytest.mark.parametrize("rounds", [60, MANY])
def test_races_in_a_folder(tmp_path: Path, rounds: int) -> None:
    assert races(f"file://{tmp_path / 'bucket'}", rounds) == {1: rounds}


def killed_workers(url: str, jobs: int) -> Counter[str]:
    """Workers that are killed in the middle of their work; what ran, until nothing was left."""
    ran: Counter[str] = Counter()

    async def main() -> None:
        async with open_queue(url) as queue:
            await queue.put([NewJob("job", n) for n in range(jobs // 2)])
            for n in range(jobs // 2, jobs):
                await queue.put(NewJob("job", n))
            until = time.monotonic() + 240
            for n in itertools.count():
                worker = child(WORKER, url, f"worker{n}", 1)
                with worker:
                    assert await asyncio.to_thread(said, worker) == "up"
                    ended = asyncio.get_running_loop().call_later(0.2 + n % 3 * 0.2, worker.kill)
                    lines = await asyncio.to_thread(worker.stdout.read)  # type: ignore[union-attr]
                    ended.cancel()
                ran.update(lines.split())
                stats = await queue.stats()
                if not stats.ready + stats.leased:
                    break
                assert time.monotonic() < until, f"still {stats}"

    asyncio.run(main())
    return ran


@pytest.mark.parametrize("where", ["ministack", "folder"])
def test_killed_workers_lose_nothing(
    where: str, ministack: MiniStack, tmp_path: Path, credentials: None
) -> None:
    url = ministack.url("killed") if where == "ministack" else f"file://{tmp_path / 'bucket'}"
    ran = killed_workers(url, 120)
    assert set(ran) == {str(n) for n in range(120)}


# The store's own count of requests


def test_requests_as_the_server_counts_them() -> None:
    async def main() -> None:
        async with Stub() as stub:
            queue = ObjectQueue(stub.store(), "p", "q")
            await queue.stats()
            stub.take()
            for _ in range(5):
                assert await queue.claim("w", 10, 30) == []
            assert stub.take() == {"LIST": 5}
            await queue.put([NewJob("job", n) for n in range(16)])
            assert stub.take() == {"PUT": 1}
            worker = ObjectQueue(stub.store(), "p", "q")
            await worker.stats()
            stub.take()
            claims = await worker.claim("w", 16, 30)
            assert stub.take() == {"LIST": 1, "PUT": 1, "GET": 1}
            await worker.settle([Settlement.done(claim) for claim in claims])
            await worker.close()
            assert stub.take() == {"PUT": 1, "POST": 2}  # bulk deletes
            await queue.close()
            assert stub.objects == {}

    asyncio.run(main())


def test_requests_as_a_server_logs_them(servers: Servers) -> None:
    with closing(servers.ministack(log_level="DEBUG")) as server:

        def logged(since: int) -> Counter[str]:
            return Counter(re.findall(r"\] (GET|PUT|POST|HEAD|DELETE) /jobs", server.log()[since:]))

        async def main() -> None:
            putter, worker = (ObjectQueue(server.store(), "p", "q") for _ in range(2))
            await putter.stats()
            await worker.stats()
            begun = len(server.log())
            await putter.put([NewJob("job", n) for n in range(16)])
            claims = await worker.claim("w", 16, 30)
            await worker.settle([Settlement.done(claim) for claim in claims])
            await worker.close()
            assert await putter.claim("w", 16, 30) == []
            await putter.close()
            # Of the gets, two are listings.
            assert logged(begun) == {"PUT": 3, "GET": 3, "POST": 2}

        asyncio.run(main())


# Stores that are not fit


def test_a_store_that_ignores_create_only_is_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        store = VirtualStore(clock)
        queue = ObjectQueue(Heedless(store), clock=clock)
        for call in (queue.claim("w", 1, 30), queue.put(NewJob("job")), queue.stats()):
            with pytest.raises(StoreError, match="ignores create-only writes"):
                await call
        assert store.objects == {}

    virtually(main)


def test_a_server_that_ignores_the_header_is_refused() -> None:
    async def main() -> None:
        async with Stub(heedless=True) as stub:
            queue = ObjectQueue(stub.store(), "p", "q")
            with pytest.raises(StoreError, match="ignores create-only writes"):
                await queue.put(NewJob("job"))
            await queue.close()
            assert stub.objects == {}

    asyncio.run(main())


def test_keys_and_region_come_from_a_profile(
    weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    profile = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    async def put() -> None:
        async with open_queue(weed.url("profile")) as queue:
            await queue.put(NewJob("job"))

    (tmp_path / "config").write_text("[default]\nregion = us-east-1\n")
    with pytest.raises(StoreError, match="no credentials were found"):
        asyncio.run(put())
    key, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    profile.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    asyncio.run(put())
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match=r"cannot be opened.*nobody"):
        asyncio.run(put())


def test_an_endpoint_that_does_not_answer_is_named(credentials: None) -> None:
    async def main() -> None:
        async with open_queue("s3://jobs/p?endpoint=http://127.0.0.1:1") as queue:
            with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:1 does not answer"):
                await queue.stats()

    asyncio.run(main())


def test_rclone_which_ignores_the_header_is_refused(servers: Servers, credentials: None) -> None:
    rclone = servers.rclone()

    async def main() -> None:
        async with open_queue(rclone.url("p")) as queue:
            with pytest.raises(StoreError, match="ignores create-only writes"):
                await queue.put(NewJob("job"))
        assert [*rclone.store().list("p")] == []

    asyncio.run(main())


def test_a_conflict_is_tried_again() -> None:
    """S3 answers 409 when two writes of a name meet, and neither may have come to anything."""

    async def main() -> None:
        async with Stub() as stub:
            queue = ObjectQueue(stub.store(), "p", "q")
            await queue.stats()
            stub.conflicts = 2
            await queue.put(NewJob("job", 1))
            stub.conflicts = 1
            claims = await queue.claim("w", 1, 30)
            assert [claim.job.payload for claim in claims] == [1]
            stub.conflicts = 1
            await queue.settle([Settlement.done(claims[0])])
            await queue.close()
            assert stub.objects == {}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, "NoSuchBucket"), "bucket does not exist"),
        ((403, "AccessDenied"), "somebody else"),
        ((403, "InvalidAccessKeyId"), "credentials are not accepted"),
        ((403, "SignatureDoesNotMatch"), "credentials are not accepted"),
        ((301, "PermanentRedirect"), "another region"),
        ((400, "AuthorizationHeaderMalformed"), "another region"),
    ],
)
def test_what_is_wrong_is_said(answer: tuple[int, str], message: str) -> None:
    async def main() -> None:
        async with Stub(answer=answer) as stub:
            queue = ObjectQueue(stub.store(), "p", "q", location="s3://jobs")
            for call in (queue.put(NewJob("job")), queue.stats(), queue.claim("w", 1, 30)):
                with pytest.raises(StoreError, match=message) as caught:
                    await call
                assert caught.value.permanent
                assert "testtest" not in str(caught.value)
                assert "s3://jobs" in str(caught.value)
            await queue.close()

    asyncio.run(main())


def test_a_missing_bucket_on_a_real_server(ministack: MiniStack) -> None:
    async def main() -> None:
        queue = ObjectQueue(ministack.store("no-such-bucket"), location="s3://no-such-bucket")
        with pytest.raises(StoreError, match=r"no-such-bucket: cannot .* does not exist"):
            await queue.put(NewJob("job"))
        await queue.close()

    asyncio.run(main())


def test_a_server_that_is_down_is_unavailable() -> None:
    async def main() -> None:
        async with Stub() as stub:
            store = stub.store()
        queue = ObjectQueue(store, "p", "q")
        with pytest.raises(StoreError) as caught:
            await queue.claim("w", 1, 30)
        assert not caught.value.permanent
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "does not name a bucket"),
        ("s3:///prefix", "does not name a bucket"),
        ("s3://user:hunter2@bucket/prefix", "holds credentials"),
        ("s3://bucket/a b", "prefix"),
        ("s3://bucket/../x", "prefix"),
        ("s3://bucket?endpoint=http://me:hunter2@host", r"me:\*\*\*@host' holds credentials"),
        ("s3://bucket?shards=4", r"has no shards.*\?queue=mail-0, \?queue=mail-1"),
        ("s3://bucket?endpoint=localhost:9000", "http"),
        ("s3://bucket?timeout=0", "timeout"),
        ("file://", "does not name a folder"),
        ("file://host/folder", "does not name a folder"),
    ],
)
def test_bad_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_queue(url)
    assert "hunter2" not in str(caught.value)


def test_urls_show_where_a_queue_is(tmp_path: Path, credentials: None) -> None:
    assert open_queue("s3://bucket/a/b?queue=mail").url == "s3://bucket/a/b?queue=mail"
    assert open_queue(f"file://{tmp_path}?queue=x%20y").url == f"file://{tmp_path}?queue=x%20y"
    json.dumps(open_queue("s3://bucket").url)
