"""URLs of every kind of store, each fresh."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from pollwise.outbox.stores.urls import open_store
from pollwise.queues.sqs.queue import SqsQueue
from pollwise.runtime.clock import Clock
from tests.queues.benches import migrated
from tests.queues.http.stub import Served, make_api, make_app
from tests.support.clouds import CREDENTIALS
from tests.support.private import write_private


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"forks-{uuid.uuid4().hex}"
    ends: list[Served] = []

    def url(store: str) -> str:
        if store == "folder":
            return f"file://{tmp_path}/queue"
        if store == "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db?synchronous=off"
        if store == "postgres":
            return f"{migrated(request.getfixturevalue('postgres').dsn())}?queue={name}"
        if store.startswith("outbox on"):
            if store.endswith("postgres"):
                found = f"{request.getfixturevalue('postgres').dsn()}?outbox={name}"
            else:
                found = f"sqlite:///{tmp_path}/shop.db?outbox={name}"
            asyncio.run(_migrated(found))
            return found
        if store == "redis":
            return f"{request.getfixturevalue('redis').url()}?queue={name}"
        if store == "http":
            write_private(tmp_path / "token", "admin\n")
            ends.append(Served(lambda: make_app(make_api(tmp_path / "served.db", Clock()))))
            address = ends[-1].__enter__().url
            return f"{address}?queue={name}&token_file={tmp_path}/token"
        for variable, value in CREDENTIALS.items():
            monkeypatch.setenv(variable, value)
        endpoint = request.getfixturevalue("ministack").endpoint
        asyncio.run(_created(name, endpoint))
        return f"sqs://{name}?endpoint={endpoint}"

    yield url
    for server in ends:
        server.__exit__(None, None, None)


async def _migrated(url: str) -> None:
    async with open_store(url) as store:
        await store.migrate()


async def _created(name: str, endpoint: str) -> None:
    async with SqsQueue(name, endpoint=endpoint) as queue:
        await queue.create()
