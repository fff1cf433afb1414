"""`http://` queues keep the contract: in virtual time on our own event loop, and over uvicorn."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.http.queues import opened
from pollwise.controller.http.queues.routes import QueueApi
from pollwise.queues.http.queue import HttpQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.testing.conformance import CHECKS, Bench, Check, NotCapable, name_of, run
from tests.queues.benches import VirtualBench
from tests.queues.http.stub import Served, inside, make_api, make_app
from tests.support.private import write_private


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "token"
    write_private(file, "admin\n")
    return file


class InsideBench(VirtualBench):
    def __init__(self, clock: VirtualClock, store: Path | None, token: Path) -> None:
        super().__init__(clock)
        self._store = store
        self._token = token
        self._api: QueueApi | None = None

    async def queue(self, **options: Any) -> HttpQueue:
        if self._api is None:
            self._api = make_api(self._store, self.clock)
        return self.keep(inside(self._api, self._token, self.clock, **options))

    async def close(self) -> None:
        await super().close()
        if self._api is not None:
            await self._api.close()


@pytest.mark.parametrize("store", [pytest.param("memory", marks=pytest.mark.soak), "sqlite"])
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract_in_virtual_time(check: Check, store: str, token: Path, tmp_path: Path) -> None:
    clock = VirtualClock()
    bench = InsideBench(clock, tmp_path / "jobs.db" if store == "sqlite" else None, token)
    clock.run(run(check, bench))


class RealBench(Bench):
    def __init__(self, url: str, token: Path) -> None:
        self._url = url
        self._token = token
        self._name = f"bench-{uuid.uuid4().hex}"

    async def queue(self, **options: Any) -> HttpQueue:
        return self.keep(HttpQueue(self._url, self._name, token_file=self._token, **options))

    async def elapse(self, units: float) -> None:
        await Clock().sleep(units * self.unit)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = tmp_path_factory.mktemp("served")  # a hint of a file is for all queues in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "QUEUES_MAX", 1000)  # each clause has its own queues
        with Served(lambda: make_app(make_api(store, Clock()))) as served:
            yield served


#: The modules of the checks in which calls wait: what a real server may do otherwise.
WAITING = ("cancelling", "waking")
#: The clauses that run over uvicorn: those, and one in five of the others. `make soak` runs all.
SOME = [
    check
    for n, check in enumerate(CHECKS)
    if check.__module__.rpartition(".")[2] in WAITING or n % 5 == 0
]


@pytest.mark.parametrize(
    "checks", [SOME, pytest.param(CHECKS, marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_contract_over_uvicorn(served: Served, token: Path, checks: list[Check]) -> None:
    """Many clauses at a time: most of them wait most of the time."""
    failed: dict[str, str] = {}

    async def one(check: Check, turn: asyncio.Semaphore) -> None:
        # A clause measures time in units. On a busy machine a call may take longer than a short
        # unit, so a clause that failed is tried again with a longer one.
        for unit in (1.0, 3.0, 9.0) if name_of(check) == "run_at" else (0.2, 0.5, 1.0, 3.0, 9.0):
            async with turn:
                bench = RealBench(served.url, token)
                bench.unit = unit
                try:
                    await run(check, bench)
                except NotCapable:
                    return
                except AssertionError as error:
                    failed[name_of(check)] = repr(error)
                else:
                    failed.pop(name_of(check), None)
                    return

    async def main() -> None:
        turn = asyncio.Semaphore(8)
        await asyncio.gather(*(one(check, turn) for check in checks))

    asyncio.run(main())
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())
