"""What a controller may do to its clients: answer much, answer compressed, suggest no pause."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from pollwise.errors import StoreError
from pollwise.queues.http import queue as http_queue
from pollwise.queues.http.client import (
    EMPTY_POLLS_BURST,
    EMPTY_POLLS_PER_SECOND,
    ControllerClient,
    PollGuard,
)
from pollwise.queues.http.queue import HttpQueue
from pollwise.runtime.clock import VirtualClock
from tests.support.private import write_private

Answer = Callable[[httpx.Request], httpx.Response]


class Endless(httpx.AsyncByteStream):
    """A body without an end; it counts the pieces that were read."""

    def __init__(self) -> None:
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.read += 1
            yield b"x" * 1000


async def asked(answer: Answer, most: int = 100_000) -> httpx.Response:
    client = ControllerClient(
        "http://controller",
        VirtualClock(),
        answer_max=most,
        transport=httpx.MockTransport(answer),
    )
    try:
        return await client.call("GET", "/", "token")
    finally:
        await client.close()


@pytest.mark.parametrize("status", [200, 404, 500])
def test_an_endless_answer_is_not_read_to_its_end(status: int) -> None:
    body = Endless()

    async def main() -> None:
        with pytest.raises(StoreError, match="more than 100000 bytes"):
            await asked(lambda _: httpx.Response(status, stream=body))

    VirtualClock().run(main())
    assert body.read <= 165  # and at most one piece of 64 KiB


@pytest.mark.parametrize(
    "encoding", ["gzip", "GZIP", " deflate ", "br", "gzip, gzip", "identity, gzip"]
)
def test_a_compressed_answer_is_refused_unread(encoding: str) -> None:
    body = Endless()
    headers = {"Content-Encoding": encoding}

    async def main() -> None:
        with pytest.raises(StoreError, match="compressed body"):
            await asked(lambda _: httpx.Response(200, stream=body, headers=headers))

    VirtualClock().run(main())
    assert body.read <= 1


def test_a_client_asks_for_no_compression() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        return httpx.Response(200, json={"ok": True}, headers={"Content-Encoding": "identity"})

    async def main() -> None:
        assert (await asked(answer)).json() == {"ok": True}

    VirtualClock().run(main())
    assert seen == ["identity"]


def test_a_bomb_does_not_reach_a_queue(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"pauses": ["0" * 1_000_000]}).encode())

    async def main() -> None:
        headers = {"Content-Encoding": "gzip"}
        transport = httpx.MockTransport(
            lambda _: httpx.Response(200, content=packed, headers=headers)
        )
        token = write_private(tmp_path / "token", "t")
        async with HttpQueue(
            "http://controller", clock=VirtualClock(), token_file=token, transport=transport
        ) as queue:
            with pytest.raises(StoreError, match="compressed"):
                await queue.stats()

    VirtualClock().run(main())
    assert http_queue.ANSWER_BYTES_MAX < 1024**3


@pytest.mark.parametrize("due_in", [None, 0, -5, 1e-9])
def test_empty_claims_do_not_follow_each_other_without_a_pause(
    tmp_path: Path, due_in: float | None
) -> None:
    clock = VirtualClock()

    async def main() -> None:
        token = write_private(tmp_path / "token", "t")
        transport = httpx.MockTransport(
            lambda _: httpx.Response(200, json={"claims": [], "due_in": due_in})
        )
        async with HttpQueue(
            "http://controller", clock=clock, token_file=token, transport=transport
        ) as queue:
            began = clock.now()
            for _ in range(EMPTY_POLLS_BURST + 100):
                await queue.claim("w", 1, 30)
            assert clock.now() - began >= 98 / EMPTY_POLLS_PER_SECOND

    clock.run(main())


def test_the_guard_counts_only_polls_that_found_nothing() -> None:
    clock = VirtualClock()

    async def main() -> list[float]:
        guard, at = PollGuard(clock), []
        for _ in range(100):
            await guard.wait()
            at.append(clock.now())
        assert len(set(at)) == 1
        for _ in range(100):
            await guard.wait()
            at.append(clock.now())
            guard.found_nothing()
        return at[100:]

    at = clock.run(main())
    gaps = [b - a for a, b in itertools.pairwise(at)]
    assert sum(gap > 0 for gap in gaps) >= 100 - EMPTY_POLLS_BURST - 2
    assert at[-1] - at[0] >= (100 - EMPTY_POLLS_BURST - 2) / EMPTY_POLLS_PER_SECOND
