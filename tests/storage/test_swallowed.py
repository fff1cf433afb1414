"""A network that swallows what is sent: an idle worker notices soon, not after the timeout."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pollwise.errors import StoreUnavailable
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.queues.http.client import NoAnswer
from pollwise.queues.http.queue import HttpQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis import queue as redis_queue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.store import CONNECT_WITHIN, IDLE_WITHIN
from pollwise.storage.postgres import conninfo, work_store
from pollwise.storage.redis import connections as redis_connections
from tests.queues.benches import migrated
from tests.support.proxy import Proxy
from tests.support.servers import Postgres, Redis

#: Only a hang lasts as long.
PATIENCE = 120.0


@pytest.mark.parametrize("store", ["postgres", "redis", "outbox"])
def test_an_idle_poll_has_less_time_and_a_new_connection_too(
    store: str, postgres: Postgres, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for the timeout of the store, which is longer than the test may take."""
    for module in (work_store, redis_queue):
        monkeypatch.setattr(module, "IDLE_WITHIN", 0.5)
    monkeypatch.setattr(conninfo, "CONNECT_WITHIN", 2.0)  # the least that psycopg takes
    monkeypatch.setattr(redis_connections, "CONNECT_WITHIN", 0.5)
    dsn = migrated(postgres.dsn())
    port = redis.port if store == "redis" else postgres.port

    async def main(proxy: Proxy) -> None:
        made: Any
        if store == "redis":
            made = RedisQueue(proxy.through(redis.url()), name, timeout=2 * PATIENCE)
        elif store == "postgres":
            made = PostgresQueue(proxy.through(dsn), name, timeout=2 * PATIENCE)
        else:
            made = PostgresOutboxStore(proxy.through(dsn), name, timeout=2 * PATIENCE)
            await made.migrate()
        async with made as queue:

            async def poll() -> list[Any]:
                many = (1, 1) if store == "outbox" else (1,)
                found: list[Any] = await asyncio.wait_for(queue.claim("w", *many, 60), PATIENCE)
                return found

            assert await poll() == []
            proxy.hold()
            for said in ("answer within", "connect"):
                with pytest.raises(StoreUnavailable, match=said):
                    await poll()
            monkeypatch.undo()
            proxy.cut()
            proxy.restore()
            assert await poll() == []

    with Proxy(port) as proxy:
        asyncio.run(main(proxy))


def test_a_poll_of_an_http_queue_has_less_time_after_an_empty_one(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    limits: list[tuple[float, float]] = []
    empty: dict[str, list[str]] = {"claims": [], "limited": []}

    async def answer(request: httpx.Request) -> httpx.Response:
        limit = request.extensions["timeout"]
        limits.append((limit["read"], limit["connect"]))
        if len(limits) == 2:
            raise httpx.ReadTimeout("swallowed")
        return httpx.Response(200, content=json.dumps(empty))

    async def main() -> None:
        transport = httpx.MockTransport(answer)
        async with HttpQueue("http://farm.example", token_file=token, transport=transport) as queue:
            await queue.claim("w", 1, 60)
            with pytest.raises(NoAnswer):
                await queue.claim("w", 1, 60)
            await queue.claim("w", 1, 60)

    asyncio.run(main())
    assert limits == [(limit, CONNECT_WITHIN) for limit in (30.0, IDLE_WITHIN, 30.0)]
