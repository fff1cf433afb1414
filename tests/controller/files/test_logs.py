"""Logs of jobs: by offset, bounded, followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pollwise.controller.files import logs as logs_module
from pollwise.controller.files.logs import LogChunk, Logs, whole_characters
from pollwise.controller.http.answers import HttpError
from pollwise.controller.state.base import new_id
from pollwise.controller.state.encoding import appended
from pollwise.controller.state.values import LogPiece, LogPlace
from pollwise.errors import StoreUnavailable
from pollwise.runtime.jobs import Claim, Job
from tests.controller.state.states import Main, Stand, run_on_sqlite

On = Callable[[Main], None]


JOB = "1"


def folder_of(job_id: str) -> str:
    return f"queue-{job_id}"


def logs_on(s: Stand, limit: int, ended: Container[str] = ()) -> Logs:
    """The logs of a queue, of whose jobs these have ended."""

    async def has_ended(job_id: str) -> bool:
        return job_id in ended

    return Logs(s.state, limit, folder_of, has_ended)


def claimed(token: int = 1, attempt: int = 1) -> Claim:
    """The claim of a run, with a token as queues give it: higher with each claim of the job."""
    job = Job(JOB, "agents", "build", None, None, 0, attempt, 0.0, 0.0, None)
    return Claim(job, token, "w1", 100.0)


def test_a_log_of_two_attempts_is_one_stream(on_state: On) -> None:
    async def main(s: Stand) -> None:
        logs, first = logs_on(s, 1000), claimed()
        await logs.append(first, 0, b"one\n")
        place = await logs.append(first, 0, b"one\ntwo\n")
        assert place == LogPlace(8, 1, 8)
        second = claimed(token=3, attempt=2)
        await logs.append(second, 0, b"again\n")
        await logs.append(second, 6, b"done\n")
        whole = b"one\ntwo\n[pollwise: attempt 2]\nagain\ndone\n"
        assert b"".join([piece async for piece in logs.read(JOB, 0, 1000)]) == whole
        assert b"".join([piece async for piece in logs.read(JOB, 4, 7)]) == b"two"
        assert await logs.append(first, 8, b"late\n") is None
        retried = claimed(token=5)  # by an operator: its attempts begin again
        assert await logs.append(retried, 0, b"anew\n") is not None
        assert await logs.append(second, 11, b"late\n") is None

    on_state(main)


def test_a_gap_is_told(on_state: On) -> None:
    async def main(s: Stand) -> None:
        logs, run = logs_on(s, 1000), claimed()
        await logs.append(run, 0, b"12345")
        with pytest.raises(HttpError, match="has 5 bytes") as told:
            await logs.append(run, 6, b"x")
        assert (told.value.status, told.value.headers) == (409, {"X-Log-Offset": "5"})
        with pytest.raises(HttpError, match="has 0 bytes"):
            await logs.append(claimed(token=2, attempt=2), 3, b"x")
        with pytest.raises(HttpError) as told:
            await logs.append(run, -1, b"x")
        assert told.value.status == 422
        with pytest.raises(HttpError) as told:
            await logs.append(run, 5, bytes(logs_module.APPEND_MAX + 1))
        assert told.value.status == 413
        assert await logs.place(JOB) == LogPlace(5, 1, 5)

    on_state(main)


def test_a_log_ends_at_its_limit_and_says_so(on_state: On) -> None:
    async def main(s: Stand) -> None:
        logs, run = logs_on(s, 10), claimed()
        for start in range(0, 100, 7):
            place = await logs.append(run, start, b"7 bytes")
            assert place is not None
            assert place.received == start + 7
        whole = b"".join([piece async for piece in logs.read(JOB, 0, 10**6)])
        assert whole == b"7 bytes7 b\n[pollwise: the log is cut here, at its limit of 10 bytes]\n"

    on_state(main)


def test_followers_get_all_as_it_comes_until_the_job_ends(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        ended = {"gone"}
        logs, run = logs_on(s, 10**6, ended), claimed()
        got: list[tuple[float, bytes]] = []

        async def follow(start: int) -> None:
            async for piece in logs.follow(JOB, start):
                if piece is not None:
                    got.append((s.clock.now(), piece.data))

        following = asyncio.ensure_future(follow(0))
        await s.clock.advance(10)
        await logs.append(run, 0, b"hello \xc3")
        await s.clock.advance(10)
        await logs.append(run, 7, b"\xa4\n")
        await s.clock.advance(9)
        # From another controller: no sign of it here, but it is found.
        await s.state.append_log(folder_of(JOB), 1, 9, b"there", 10**6, b"")
        await s.clock.advance(5)
        ended.add(JOB)
        await following
        texts = [data for _, data in got]
        assert texts == [b"hello ", b"\xc3\xa4\n", b"there"]
        times = [at for at, _ in got]
        assert times[0] == pytest.approx(10, abs=0.01)
        assert times[1] == pytest.approx(20, abs=0.01)
        assert times[2] <= 29 + logs_module.FOLLOW.max_interval + 0.01
        assert s.clock.now() <= 34 + logs_module.FOLLOW.max_interval + 0.01
        assert not logs._followers, "nothing is kept of who followed"
        rest = [piece async for piece in logs.follow(JOB, 9)]
        assert rest == [LogChunk(14, b"there")], "Last-Event-ID goes on from there"
        assert [piece async for piece in logs.follow("gone")] == []

    run_on_sqlite(tmp_path / "state.db", main)


def test_a_follower_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        logs = logs_on(s, 10**6)
        beats = []

        async def follow() -> None:
            async for piece in logs.follow(JOB):
                beats.append(piece)

        following = [asyncio.ensure_future(follow()) for _ in range(3)]
        await s.clock.advance(7)
        assert beats == [None] * 9, "a sign of life every two seconds"
        for each in following:
            each.cancel()
        await asyncio.wait(following)
        assert not logs._followers

    run_on_sqlite(tmp_path / "state.db", main)


def test_a_follower_looks_as_often_as_there_is_something_and_outlives_a_hiccup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(s: Stand) -> None:
        ended: set[str] = set()
        logs = logs_on(s, 10**6, ended)
        looks: list[float] = []
        read, got = s.state.read_log, []

        async def noted(*given: Any) -> bytes:
            looks.append(s.clock.now())
            if len(looks) == 3:
                raise StoreUnavailable("a hiccup")
            return await read(*given)

        monkeypatch.setattr(s.state, "read_log", noted)

        async def follow() -> None:
            async for piece in logs.follow(JOB):
                if piece is not None:
                    got.append(piece.data)

        following = asyncio.ensure_future(follow())
        await s.clock.advance(60)
        assert 25 <= len(looks) <= 40, "every two seconds, while nothing comes"
        # From another controller: what follows soon is found soon.
        await s.state.append_log(folder_of(JOB), 1, 0, b"x", 10**6, b"")
        while not got:
            await s.clock.advance(0.05)
        for n in range(1, 5):
            await s.state.append_log(folder_of(JOB), 1, n, b"x", 10**6, b"")
            await s.clock.advance(1.3)
            assert len(b"".join(got)) == n + 1
        ended.add(JOB)
        await following

    run_on_sqlite(tmp_path / "state.db", main)


def test_a_long_log_is_read_in_pieces(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        logs = logs_on(s, 10**7, {JOB})
        run, data = claimed(), bytes(range(256)) * 4096 * 3
        for start in range(0, len(data), 1000_000):
            await logs.append(run, start, data[start : start + 1000_000])
        pieces = [piece async for piece in logs.read(JOB, 5, len(data) - 5)]
        assert b"".join(pieces) == data[5:-5]
        assert max(map(len, pieces)) <= 1024 * 1024
        followed = [piece async for piece in logs.follow(JOB) if piece]
        assert b"".join(piece.data for piece in followed) == data
        assert max(len(piece.data) for piece in followed) <= logs_module.PIECE

    run_on_sqlite(tmp_path / "state.db", main)


# Laws

BYTES = st.binary(max_size=40)


@given(st.text(max_size=30), st.integers(0, 40))
@example("ä", 1)
@example("🦊", 3)
def test_a_cut_never_splits_a_character(text: str, at: int) -> None:
    data = text.encode("utf-8", "surrogatepass")
    piece = data[: min(at, len(data))]
    whole = whole_characters(piece)
    assert 0 <= len(piece) - whole <= 3
    if piece != data:
        piece[:whole].decode("utf-8", "surrogatepass")


@given(BYTES)
def test_what_is_no_text_is_not_held_back_for_ever(data: bytes) -> None:
    assert len(data) - whole_characters(data) <= 3


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=30),
    st.integers(0, 80),
)
def test_whatever_is_repeated_the_log_is_what_was_sent(
    data: bytes, sends: list[tuple[int, int]], limit: int
) -> None:
    place, kept = LogPlace(), b""
    for start, length in sends:
        before = place
        piece = LogPiece(1, start, data[start : start + length], limit, b"|")
        place, fresh = appended(place, piece)
        kept += fresh
        assert place.size == len(kept)
        assert place.received >= before.received
        if start > before.received:
            assert place == before
    received = data[: place.received]
    if place.cut:
        assert len(received) > limit
        assert kept == received[:limit] + b"|"
    else:
        assert kept == received


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=5),
)
def test_any_range_of_any_pieces(
    tmp_path: Path, sizes: list[int], ranges: list[tuple[int, int]]
) -> None:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    data = bytes(n % 251 for n in range(ends[-1]))

    async def main(s: Stand) -> None:
        folder = new_id(s.clock)
        for start, stop in pairwise(ends):
            await s.state.append_log(folder, 1, start, data[start:stop], 10**6, b"")
        for start, length in ranges:
            found = await s.state.read_log(folder, start, length)
            assert found == data[start : start + length]

    run_on_sqlite(tmp_path / "state.db", main)
