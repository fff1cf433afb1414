"""What every state of the controller does: one suite for all stores, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from pollwise.controller.state.base import new_id
from pollwise.controller.state.values import ArtefactRow, LogPlace, Token, WorkerSeen
from pollwise.errors import ConfigError, JobError
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import VirtualClock
from tests.controller.state.states import Main, Stand

On = Callable[[Main], None]


def test_the_clock_is_virtual(on_state: On) -> None:
    async def main(s: Stand) -> None:
        assert isinstance(s.clock, VirtualClock)
        await s.state.ping()

    on_state(main)


def test_nothing_is_a_batch_too(on_state: On) -> None:
    async def main(s: Stand) -> None:
        assert await s.state.seen([]) == []
        assert await s.state.workers([]) == {}
        await s.state.forget([])
        await s.state.audit([])
        await s.state.tokens_used({})

    on_state(main)


def test_text_that_no_store_can_keep_is_escaped(on_state: On) -> None:
    async def main(s: Stand) -> None:
        odd = "a\0b\ud800"
        worker = await s.worker(odd, address=odd)
        assert (worker.name, worker.address) == ("a\\0b\\ud800", "a\\0b\\ud800")
        await s.state.audit([AuditEntry(odd, odd, "x" * 3000)])
        [entry] = await s.state.list_audit(who=odd)
        assert (entry.action, len(entry.what)) == ("a\\0b\\ud800", 2000)
        await s.state.require(odd, odd, {"text": odd})
        [found] = await s.state.requirements()
        assert found.requires == {"text": odd}
        await s.state.put_artefact(ArtefactRow(odd, "ä", "b", 1, "0"), 1)
        assert [row.name for row in await s.state.artefacts(odd)] == ["ä"]
        await s.state.append_log(odd, 1, 0, b"x", 10, b"")
        await s.state.forget([odd])
        assert await s.state.log_place(odd) == LogPlace()
        assert await s.state.workers([odd]) == {}
        assert await s.state.seen([WorkerSeen(odd)]) == [odd]
        await s.state.tokens_used({odd: 1.0})
        assert not await s.state.remove_worker(odd)

    on_state(main)


def test_limits_are_checked(on_state: On) -> None:
    async def main(s: Stand) -> None:
        for limit in (0, 1001, True, "3"):
            with pytest.raises(ConfigError, match="limit"):
                await s.state.list_workers(limit=limit)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="limit"):
                await s.state.folders_before(0, limit)  # type: ignore[arg-type]

    on_state(main)


# Requirements


def test_requirements_are_known_while_they_are_needed(on_state: On) -> None:
    async def main(s: Stand) -> None:
        await s.state.require("build", "h1", {"platform": "ios"})
        await s.state.require("test", "", {})
        await s.state.require("build", "", {})
        await s.state.require("build", "", {})
        found = [(each.kind, each.hash, each.requires) for each in await s.state.requirements()]
        assert found == [("build", "", {}), ("build", "h1", {"platform": "ios"}), ("test", "", {})]
        await s.clock.advance(3600)
        assert await s.state.prune_requirements(0, []) == 0, "too young"
        await s.clock.advance(3600)
        used = [("build", "h1"), ("test", "h1"), ("", "")]
        assert await s.state.prune_requirements(10_000, used) == 0
        assert await s.state.prune_requirements(0, used) == 2
        assert [each.hash for each in await s.state.requirements()] == ["h1"]
        await s.state.require("test", "", {})
        assert await s.state.prune_requirements(0, []) == 1
        assert [each.kind for each in await s.state.requirements()] == ["test"]

    on_state(main)


def test_a_requirement_that_jobs_come_with_stays(on_state: On) -> None:
    """Also when two controllers take turns: neither writes while the other's is young."""

    async def main(s: Stand) -> None:
        other = s.make()
        for turn in range(20):
            await (s.state, other)[turn % 2].require("build", "h1", {})
            await s.clock.advance(1700)
            assert await s.state.prune_requirements(0, []) == 0

    on_state(main)


# Workers


def test_workers(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        worker = await s.worker(
            "mac\0", capabilities={"ram": 8, "tags": ["a"]}, slots=4, token_expires_at=now + 5
        )
        assert (worker.name, worker.registered_at, worker.last_seen) == ("mac\\0", now, now)
        assert (worker.capabilities, worker.slots) == ({"ram": 8, "tags": ["a"]}, 4)
        assert await s.state.worker(worker.id) == worker
        assert await s.state.worker_by_token(worker.token_hash) == worker
        assert await s.state.worker_by_token("") is None
        assert await s.state.add_worker(worker) == worker, "a repeat is no error"
        drained = await s.state.set_drain(worker.id, True)
        assert drained == replace(worker, drain=True)
        assert await s.state.set_drain("gone", True) is None

    on_state(main)


def test_pages_of_workers(on_state: On) -> None:
    async def main(s: Stand) -> None:
        made = []
        for n in range(4):
            made.append(await s.worker(f"w{n}", drain=n == 2))
            await s.clock.advance(100)
        ids = [row.id for row in made]
        assert [row.id for row in await s.state.list_workers()] == ids
        assert [row.id for row in await s.state.list_workers(limit=2, after=ids[0])] == ids[1:3]
        assert [row.id for row in await s.state.list_workers(live=True, live_s=150)] == ids[3:]
        assert [row.id for row in await s.state.list_workers(live=False, live_s=150)] == ids[:3]
        assert [row.id for row in await s.state.list_workers(drain=True)] == [ids[2]]

    on_state(main)


def test_live_capabilities_come_once_each_without_those_of_drained_workers(on_state: On) -> None:
    async def main(s: Stand) -> None:
        await s.worker("old", capabilities={"ram": 1})
        await s.clock.advance(200)
        for n in range(6):
            await s.worker(f"w{n}", capabilities={"ram": 2 + n % 3}, drain=n % 3 == 2)
        first = await s.state.live_capabilities(150, limit=1)
        rest = await s.state.live_capabilities(150, limit=5, after=first[-1])
        assert sorted(json.loads(text)["ram"] for text in (*first, *rest)) == [2, 3]
        assert len(await s.state.live_capabilities(500, limit=5)) == 3

    on_state(main)


def test_when_workers_were_seen_is_noted_in_batches(on_state: On) -> None:
    async def main(s: Stand) -> None:
        one, two = await s.worker(address="1.1.1.1"), await s.worker()
        await s.clock.advance(60)
        batch = [
            WorkerSeen(one.id, 10),
            WorkerSeen(two.id, 0, "2.2.2.2"),
            WorkerSeen("gone"),
            WorkerSeen(one.id, 20),
        ]
        assert await s.state.seen(batch[:3]) == ["gone"]
        now = s.clock.epoch()
        found = await s.state.workers([one.id, two.id])
        assert found[one.id] == replace(one, last_seen=now - 10)
        assert found[two.id] == replace(two, last_seen=now, address="2.2.2.2")
        await s.state.seen(batch[3:])
        assert await s.state.workers([one.id]) == {one.id: found[one.id]}, "the newest stays"

    on_state(main)


def test_a_worker_that_leaves_is_forgotten(on_state: On) -> None:
    async def main(s: Stand) -> None:
        worker, other = await s.worker(), await s.worker()
        assert await s.state.remove_worker(worker.id)
        assert not await s.state.remove_worker(worker.id)
        assert await s.state.worker(worker.id) is None
        assert await s.state.worker_by_token(worker.token_hash) is None
        assert await s.state.worker(other.id) == other

    on_state(main)


def test_workers_not_seen_for_long_are_forgotten(on_state: On) -> None:
    async def main(s: Stand) -> None:
        gone = [await s.worker() for _ in range(3)]
        await s.clock.advance(100)
        here = await s.worker()
        assert await s.state.count_workers(100) == (4, 1)
        assert await s.state.prune_workers(101, 10) == 0
        assert await s.state.prune_workers(100, 2) == 2
        assert await s.state.prune_workers(100, 2) == 1
        assert set(await s.state.workers([here.id, *(row.id for row in gone)])) == {here.id}
        assert await s.state.count_workers(0) == (1, 0)

    on_state(main)


# Tokens and audit


def test_tokens(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        given = Token(new_id(s.clock), "ci", "put", "h1", created_by="root", expires_at=now + 9)
        token = await s.state.add_token(given)
        assert token == replace(given, created_at=now)
        assert await s.state.token(token.id) == await s.state.token_by_hash("h1") == token
        assert await s.state.token("no") is None
        assert await s.state.token_by_hash("no") is None
        await s.clock.advance(3)
        await s.state.tokens_used({token.id: 1.0, "gone": 0.0})
        await s.state.tokens_used({token.id: 2.0})
        used = await s.state.token(token.id)
        assert used is not None
        assert used.last_used_at == pytest.approx(now + 2)
        assert await s.state.rotate_token(token.id, "other", "h2", None) is None
        rotated = await s.state.rotate_token(token.id, "h1", "h2", None)
        assert rotated == replace(used, hash="h2", expires_at=None)
        assert await s.state.token_by_hash("h1") is None
        revoked = await s.state.revoke_token(token.id)
        assert revoked is not None
        assert revoked.revoked_at == s.clock.epoch()
        await s.clock.advance(3)
        assert await s.state.revoke_token(token.id) == revoked
        assert await s.state.rotate_token(token.id, "h2", "h3", None) is None
        assert await s.state.revoke_token("gone") is None
        more = [
            await s.state.add_token(Token(new_id(s.clock), "x", "admin", f"h{n}"))
            for n in range(3, 6)
        ]
        ids = [row.id for row in await s.state.list_tokens()]
        assert ids == sorted([token.id, *(row.id for row in more)])
        assert [row.id for row in await s.state.list_tokens(after=ids[1], limit=1)] == ids[2:3]

    on_state(main)


def test_the_workers_of_a_revoked_token_lose_theirs(on_state: On) -> None:
    async def main(s: Stand) -> None:
        token = await s.state.add_token(Token(new_id(s.clock), "farm", "worker", "h1"))
        assert await s.state.add_token(token) == token, "a repeat is no error"
        now, by = s.clock.epoch(), f"token:{token.id}"
        ends = [None, now + 5, now + 500]
        given = [await s.worker(registered_by=by, token_expires_at=each) for each in ends]
        other = await s.worker(registered_by="token:other")
        await s.clock.advance(50)
        for _ in range(2):  # the second time changes nothing
            await s.state.revoke_token(token.id)
            found = await s.state.workers([row.id for row in given])
            assert [found[row.id].token_expires_at for row in given] == [
                now + 50,
                now + 5,
                now + 50,
            ]
            await s.clock.advance(50)
        assert await s.state.worker(other.id) == other

    on_state(main)


def test_audit(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        await s.state.audit([AuditEntry("root", "token.add", "t1", "scope=put", "127.0.0.1")])
        await s.clock.advance(10)
        cancels = [AuditEntry("ci", "job.cancel", f"j{n}") for n in range(3)]
        await s.state.audit(cancels, [8.5, 2.0, 0.0])
        whole = await s.state.list_audit()
        assert [entry.at - now for entry in whole] == pytest.approx([10, 8, 1.5, 0], abs=1e-3)
        assert [entry.what for entry in whole] == ["j2", "j1", "j0", "t1"]
        assert whole[-1] == AuditEntry(
            "root", "token.add", "t1", "scope=put", "127.0.0.1", whole[-1].id, now
        )
        assert await s.state.list_audit(before=whole[1].id, limit=1) == [whole[2]]
        assert await s.state.list_audit(who="root") == [whole[3]]
        assert await s.state.list_audit(action="job.cancel", what="j1") == [whole[1]]
        assert await s.state.prune_audit(10, 100) == 1
        assert len(await s.state.list_audit()) == 3

    on_state(main)


# Files and logs


def test_rows_of_artefacts(on_state: On) -> None:
    async def main(s: Stand) -> None:
        now = s.clock.epoch()
        given = ArtefactRow("j1", "a/b.txt", "blob1", 5, "ab" * 32, created_by="w1")
        assert await s.state.put_artefact(given, 2) is None
        kept = replace(given, created_at=now)
        assert await s.state.artefacts("j1") == [kept]
        assert await s.state.artefact("j1", "a/b.txt") == kept
        assert await s.state.artefact("j1", "a/b.txt", input=True) is None
        assert await s.state.put_artefact(given, 2) is None, "the same again"
        await s.state.put_artefact(replace(given, input=True, blob="in"), 2)
        assert await s.state.put_artefact(replace(given, blob="blob2", size=2**40), 2) == kept
        await s.state.put_artefact(replace(given, name="Z", blob="blob3"), 2)
        with pytest.raises(JobError, match="has 2 artefacts already"):
            await s.state.put_artefact(replace(given, name="c", blob="blob4"), 2)
        assert [(a.name, a.size) for a in await s.state.artefacts("j1")] == [
            ("Z", 5),
            ("a/b.txt", 2**40),
        ]

    on_state(main)


def test_files_put_at_once_do_not_pass_the_limit(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other = s.make()
        rows = [ArtefactRow("j1", f"f{n}", f"b{n}", 1, "0") for n in range(12)]
        told = await asyncio.gather(
            *((s.state, other)[n % 2].put_artefact(row, 5) for n, row in enumerate(rows)),
            return_exceptions=True,
        )
        assert len([each for each in told if isinstance(each, JobError)]) == 7
        assert len(await s.state.artefacts("j1")) == 5

    on_state(main)


def test_each_replaced_file_is_returned_once(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other = s.make()
        rows = [ArtefactRow("j1", "a", f"b{n}", 1, "0") for n in range(10)]
        told = await asyncio.gather(
            *((s.state, other)[n % 2].put_artefact(row, 5) for n, row in enumerate(rows))
        )
        [last] = await s.state.artefacts("j1")
        replaced = [row.blob for row in told if row is not None]
        assert sorted([*replaced, last.blob]) == [row.blob for row in rows]

    on_state(main)


def test_a_log_grows_by_offset(on_state: On) -> None:
    async def main(s: Stand) -> None:
        async def append(offset: int, data: bytes, part: int = 1) -> LogPlace | None:
            return await s.state.append_log("j1", part, offset, data, 20, b"[cut]")

        assert await s.state.log_place("j1") == LogPlace()
        assert await append(0, b"hello ") == LogPlace(6, 1, 6)
        assert await append(0, b"hello ") == LogPlace(6, 1, 6), "repeated"
        assert await append(3, b"lo wo") == LogPlace(8, 1, 8), "overlapping"
        assert await append(9, b"x") == LogPlace(8, 1, 8), "a gap"
        assert await append(8, b"") == LogPlace(8, 1, 8)
        assert await append(8, b"rld\0\xff") == LogPlace(13, 1, 13)
        assert await s.state.read_log("j1", 0, 100) == b"hello world\0\xff"
        assert await s.state.read_log("j1", 4, 5) == b"o wor"
        assert await s.state.read_log("j1", 13, 5) == b""
        assert await append(0, b"again\n", 2) == LogPlace(19, 2, 6), "the next run begins anew"
        assert await append(13, b"late", 1) is None
        assert await append(6, b"abc", 2) == LogPlace(25, 2, 9, True)
        assert await append(9, b"def", 2) == LogPlace(25, 2, 12, True)
        assert await append(0, b"third", 3) == LogPlace(25, 3, 5, True)
        assert await s.state.read_log("j1", 13, 100) == b"again\na[cut]"
        assert await s.state.log_place("j1") == LogPlace(25, 3, 5, True)
        assert await s.state.log_place("gone") == LogPlace()
        assert await s.state.read_log("gone", 0, 10) == b""

    on_state(main)


def test_a_log_knows_where_each_run_begins(on_state: On) -> None:
    async def main(s: Stand) -> None:
        async def append(part: int, offset: int, data: bytes, worker: str) -> None:
            told = (part, offset, data, 20, b"[cut]", b"[next]", part - 4, worker)
            await s.state.append_log("j1", *told)

        began = s.clock.epoch()
        await append(5, 0, b"one ", "w1")
        await append(5, 4, b"two ", "w1")
        await append(6, 3, b"gap", "w2")
        await s.clock.advance(10)
        await append(7, 0, b"three", "w2")
        await append(8, 0, b"and more", "w3")
        await append(9, 0, b"beyond the limit", "w4")
        runs = await s.state.log_runs("j1")
        assert [(each.part, each.attempt, each.worker, each.start) for each in runs] == [
            (5, 1, "w1", 0), (7, 3, "w2", 8), (8, 4, "w3", 19), (9, 5, "w4", 25),
        ]  # fmt: skip
        assert [round(each.began_at - began) for each in runs] == [0, 10, 10, 10]
        await s.state.forget(["j1"])
        assert await s.state.log_runs("j1") == []

    on_state(main)


def test_a_log_that_two_controllers_get_at_once_has_each_byte_once(on_state: On) -> None:
    async def main(s: Stand) -> None:
        other = s.make()
        data = bytes(range(100))
        for start in range(0, 100, 10):
            piece = data[: start + 10]
            await asyncio.gather(
                *(each.append_log("j1", 1, 0, piece, 10**6, b"") for each in (s.state, other) * 3)
            )
        assert await s.state.read_log("j1", 0, 1000) == data

    on_state(main)


def test_an_append_that_adds_nothing_makes_no_folder(on_state: On) -> None:
    async def main(s: Stand) -> None:
        assert await s.state.append_log("j1", 1, 5, b"gap", 10, b"") == LogPlace()
        assert await s.state.append_log("j1", 1, 0, b"", 10, b"") == LogPlace()
        assert await s.state.folders_before(0, 10) == []

    on_state(main)


# Retention


def test_old_folders_are_found_with_their_jobs(on_state: On) -> None:
    async def main(s: Stand) -> None:
        await s.state.put_artefact(ArtefactRow("in1", "a", "b1", 1, "0", input=True), 5)
        await s.state.put_artefact(ArtefactRow("in2", "a", "b2", 1, "0", input=True), 5)
        await s.state.attach("in1", "j1")
        await s.state.attach("in3", "j3")
        await s.state.put_artefact(ArtefactRow("in3", "a", "b3", 1, "0", input=True), 5)
        await s.state.append_log("j1", 1, 0, b"x", 10, b"")
        await s.state.put_artefact(ArtefactRow("j2", "a", "b4", 1, "0"), 5)
        await s.clock.advance(100)
        await s.state.put_artefact(ArtefactRow("j4", "a", "b5", 1, "0"), 5)
        whole = [("in1", "j1"), ("in2", ""), ("in3", "j3"), ("j1", "j1"), ("j2", "j2")]
        assert await s.state.folders_before(100, 10) == whole
        assert await s.state.folders_before(100, 2) == whole[:2]
        assert await s.state.folders_before(100, 2, after="in2") == whole[2:4]
        assert await s.state.folders_before(101, 10) == []
        assert await s.state.folders_before(0, 10, after="j2") == [("j4", "j4")]

    on_state(main)


def test_a_folder_is_as_old_as_the_last_write(on_state: On) -> None:
    async def main(s: Stand) -> None:
        file = ArtefactRow("j1", "a", "b", 1, "0")
        await s.state.put_artefact(file, 1)
        await s.state.append_log("j2", 1, 0, b"x", 10, b"")
        await s.clock.advance(100)
        with pytest.raises(JobError):
            await s.state.put_artefact(replace(file, name="b"), 1)
        assert await s.state.folders_before(100, 10) == [("j1", "j1"), ("j2", "j2")]
        await s.state.put_artefact(file, 1)
        await s.state.append_log("j2", 1, 1, b"y", 10, b"")
        assert await s.state.folders_before(1, 10) == []

    on_state(main)


def test_inputs_in_the_folder_of_a_job_are_the_jobs(on_state: On) -> None:
    async def main(s: Stand) -> None:
        for folder in ("j1", "j2"):
            await s.state.put_artefact(ArtefactRow(folder, "a", "b", 1, "0", input=True), 1)
        await s.state.append_log("j1", 1, 0, b"x", 10, b"")
        await s.state.put_artefact(ArtefactRow("j2", "a", "b", 1, "0"), 1)
        assert await s.state.folders_before(0, 10) == [("j1", "j1"), ("j2", "j2")]

    on_state(main)


def test_forgotten_folders_leave_nothing(on_state: On) -> None:
    async def main(s: Stand) -> None:
        for folder in ("j1", "j2"):
            await s.state.append_log(folder, 3, 0, b"hello", 100, b"")
            await s.state.put_artefact(ArtefactRow(folder, "a", "b1", 1, "00"), 10)
        await s.state.forget(["j1", "gone"])
        assert await s.state.log_place("j1") == LogPlace()
        assert await s.state.read_log("j1", 0, 10) == b""
        assert await s.state.artefacts("j1") == []
        assert await s.state.read_log("j2", 0, 10) == b"hello"
        assert len(await s.state.artefacts("j2")) == 1
        assert await s.state.append_log("j1", 1, 0, b"new", 100, b"") == LogPlace(3, 1, 3)
        assert await s.state.read_log("j1", 0, 10) == b"new"

    on_state(main)
