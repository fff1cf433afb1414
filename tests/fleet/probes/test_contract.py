"""Our own probes keep the contract that users try theirs on."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob
from pollwise.testing.contracts import ProbeContract
from tests.fleet.probes.kit import page, web
from tests.support.daemons import HOST, free_port


class HttpContract(ProbeContract):
    type = "http"
    secrets = ("hunter2", "T0KEN")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        hang = asyncio.Event()

        async def silence(_: asyncio.StreamWriter) -> None:
            await hang.wait()

        async with (
            web(page("hello", etag='"1"')) as good,
            web(page("no", "500 Broken")) as bad,
            web(lambda _: silence) as hung,
        ):
            self.options = {"url": good.url()}
            self.failing = {"url": bad.url("/?token=T0KEN").replace("//", "//app:hunter2@")}
            self.hanging = {"url": hung.url()}
            self.wrong = [{}, {"url": "ftp://x"}, {"url": good.url(), "regex": "("}]
            yield


class TcpContract(ProbeContract):
    type = "tcp"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with web(b"") as silent:
            address = f"{HOST}:{silent.port}"
            self.options = {"address": address}
            self.failing = {"address": f"{HOST}:{free_port()}"}
            self.hanging = {"address": address, "read": True}
            self.wrong = [{}, {"address": "host:http"}, {"address": address, "tls": "yes"}]
            yield


class CommandContract(ProbeContract):
    type = "command"
    options = {"run": ["echo", "fine"]}
    failing = {"run": "false"}
    hanging = {"run": [sys.executable, "-c", "import time; time.sleep(600)"]}
    wrong = ({}, {"run": ""}, {"run": "true", "expect": 999})


class SqlContract(ProbeContract):
    type = "sql"
    wrong = ({}, {"url": "mysql://x", "query": "SELECT 1"})

    def __init__(self, folder: Path) -> None:
        with closing(sqlite3.connect(folder / "shop.db")) as connection:
            connection.execute("CREATE TABLE orders (id INTEGER)")
        url = f"sqlite:///{folder}/shop.db"
        self.options = {"url": url, "query": "SELECT count(*) FROM orders"}
        self.failing = {"url": url, "query": "SELECT count(*) FROM invoices"}


class QueueContract(ProbeContract):
    type = "queue"
    wrong = ({}, {"url": "sqlite:///jobs.db", "window": "5 apples"})

    def __init__(self, folder: Path) -> None:
        self.options = {"url": f"sqlite:///{folder}/jobs.db"}
        self.failing = {"url": f"sqlite:///{folder}/none.db"}
        self._path = folder / "jobs.db"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with SqliteQueue(self._path) as queue:
            await queue.put([NewJob("job")])
            yield


@pytest.fixture(params=["http", "tcp", "command", "sql", "queue"])
def contract(request: pytest.FixtureRequest, tmp_path: Path) -> ProbeContract:
    match request.param:
        case "http":
            return HttpContract()
        case "tcp":
            return TcpContract()
        case "command":
            return CommandContract()
        case "sql":
            return SqlContract(tmp_path)
    return QueueContract(tmp_path)


@pytest.mark.parametrize("check", ProbeContract.checks())
def test_contract(contract: ProbeContract, check: str) -> None:
    contract.run(check)
