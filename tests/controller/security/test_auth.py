"""Tokens, who may what, and the audit log."""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.controller.http.access import SEE, STEER
from pollwise.controller.http.answers import HttpError
from pollwise.controller.security import auth as auth_module
from pollwise.controller.security.auth import REMEMBERED, Auth, Caller
from pollwise.controller.security.tokens import PREFIX, Tokens, hash_of, new_secret
from pollwise.errors import ConfigError, StoreError
from pollwise.queues.http.client import TokenSource
from pollwise.runtime.audit import printable
from pollwise.runtime.jobs import Job, JobInfo
from tests.controller.state.states import Main, Stand, run_on_sqlite
from tests.support.private import write_private

On = Callable[[Main], None]


def on_sqlite(tmp_path: Path) -> On:
    return lambda main: run_on_sqlite(tmp_path / "state.db", main)


async def refused(auth: Auth, header: str | bytes | None) -> HttpError:
    with pytest.raises(HttpError) as told:
        await auth.caller(header)
    assert told.value.status == 401
    assert told.value.headers == {"WWW-Authenticate": "Bearer"}
    return told.value


# Tokens


def test_a_token_has_256_bits_and_is_kept_as_its_hash(tmp_path: Path) -> None:
    secrets = {new_secret() for _ in range(1000)}
    assert len(secrets) == 1000
    assert all(secret.startswith(PREFIX) and len(secret) == len(PREFIX) + 43 for secret in secrets)

    async def main(s: Stand) -> None:
        token, secret = await Tokens(s.state).make("put", "ci", expires_in="1h", by="token:x")
        assert token.hash == hashlib.sha256(secret.encode()).hexdigest()
        assert token.expires_at == s.clock.epoch() + 3600
        assert (token.name, token.scope, token.created_by) == ("ci", "put", "token:x")

    on_sqlite(tmp_path)(main)
    assert not any(secret.encode() in (tmp_path / "state.db").read_bytes() for secret in secrets)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"scope": "root"}, "scope = 'root' is none of read, put, operate, worker, admin"),
        ({"name": ""}, "name = ''"),
        ({"name": "a\nb"}, "printable"),
        ({"expires_in": -1}, "must be above 0"),
        ({"expires_in": 0}, "must be above 0"),
        ({"expires_in": 1e12}, "ten years"),
        ({"expires_in": "soon"}, "not a duration"),
    ],
)
def test_bad_tokens_are_refused(tmp_path: Path, given: dict[str, object], told: str) -> None:
    async def main(s: Stand) -> None:
        values: dict[str, object] = {"scope": "put", "name": "ci", **given}
        scope, name = values.pop("scope"), values.pop("name")
        with pytest.raises(ConfigError, match=told):
            await Tokens(s.state).make(scope, name, **values)  # type: ignore[arg-type]
        assert await s.state.list_tokens() == []

    on_sqlite(tmp_path)(main)


def test_the_first_admin_token_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        path, tokens = tmp_path / "admin.token", Tokens(s.state)
        assert await tokens.first_admin(path) == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        caller = await Auth(s.state).caller(f"Bearer {path.read_text().strip()}")
        assert (caller.role, caller.name) == ("admin", "first admin")
        assert await tokens.first_admin(tmp_path / "other") is None, "there is one"
        assert not (tmp_path / "other").exists()

    on_sqlite(tmp_path)(main)


def test_a_token_file_that_is_there_is_left(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        path = tmp_path / "admin.token"
        path.write_text("something else")
        with pytest.raises(StoreError, match=r"admin.token cannot be written.*--token-file"):
            await Tokens(s.state).first_admin(path)
        assert path.read_text() == "something else"
        assert await s.state.list_tokens() == []
        with pytest.raises(StoreError, match="may write"):
            await Tokens(s.state).first_admin(tmp_path / "no" / "folder")

    on_sqlite(tmp_path)(main)


@pytest.mark.parametrize("text", ["", "two tokens", "a\nb", "x" * 2000, "ü"])
def test_token_files_that_hold_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    write_private(path, text)
    with pytest.raises(ConfigError, match="token file") as told:
        TokenSource(path).read()
    assert "two" not in str(told.value), "it is not quoted: it may be secret"
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenSource(tmp_path / "missing").read()


# Who calls


def test_callers_are_known_by_their_tokens(on_state: On) -> None:
    async def main(s: Stand) -> None:
        auth, tokens = Auth(s.state), Tokens(s.state)
        for scope in ("admin", "put", "worker"):
            token, secret = await tokens.make(scope, f"a {scope}")
            caller = await auth.caller(f"Bearer {secret}".encode())
            assert caller == Caller(token.id, f"a {scope}", token.scope)
            assert caller.who == f"token:{token.id}"
            assert await auth.caller(f"bearer  {secret} ") == caller
        secret = new_secret()
        worker = await s.worker(token_hash=hash_of(secret))
        caller = await auth.caller(f"Bearer {secret}")
        assert caller == Caller(worker.id, "mac", "own", worker.id)
        assert caller.who == f"worker:{worker.id}"

    on_state(main)


def test_nobody_is_refused(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        auth = Auth(s.state)
        _, secret = await Tokens(s.state).make("admin", "root")
        for header in (
            None, "", b"", secret, "Bearer", "Bearer ", f"Basic {secret}", f"Bearer {secret}x",
            f"Bearer {secret[:-1]}", "Bearer " + "x" * 10_000, f"Bearer {hash_of(secret)}",
            "Bearer \udcff", b"Bearer \xff\0", f"Bearer{secret}",
        ):  # fmt: skip
            told = await refused(auth, header)
            assert secret not in str(told)

    on_sqlite(tmp_path)(main)


def test_tokens_expire(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        auth = Auth(s.state)
        _, secret = await Tokens(s.state).make("admin", "root", expires_in=2)
        await auth.caller(f"Bearer {secret}")
        await s.clock.advance(2)
        told = await refused(auth, f"Bearer {secret}")
        assert "expired" in told.message
        await s.clock.advance(REMEMBERED)
        assert "expired" in (await refused(Auth(s.state), f"Bearer {secret}")).message
        own = new_secret()
        await s.worker(token_hash=hash_of(own), token_expires_at=s.clock.epoch())
        told = await refused(auth, f"Bearer {own}")
        assert told.what_to_do == "Register again."

    on_sqlite(tmp_path)(main)


def test_a_revoked_token_is_void_here_at_once_and_elsewhere_soon(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        here, there, tokens = Auth(s.state), Auth(s.state), Tokens(s.state)
        token, secret = await tokens.make("admin", "root")
        for auth in (here, there):
            await auth.caller(f"Bearer {secret}")
        await tokens.revoke(token.id)
        here.forget(token.hash)
        assert "revoked" in (await refused(here, f"Bearer {secret}")).message
        await there.caller(f"Bearer {secret}")
        await s.clock.advance(REMEMBERED)
        assert "revoked" in (await refused(there, f"Bearer {secret}")).message

    on_sqlite(tmp_path)(main)


def test_rotating_makes_the_old_one_void(on_state: On) -> None:
    async def main(s: Stand) -> None:
        auth, tokens = Auth(s.state), Tokens(s.state)
        token, old = await tokens.make("put", "ci", expires_in=100)
        await auth.caller(f"Bearer {old}")
        await s.clock.advance(60)
        rotated = await tokens.rotate(token.id)
        assert rotated is not None
        row, new = rotated
        assert row.expires_at == s.clock.epoch() + 100, "as long as it was made for, from now"
        auth.forget(token.hash)
        await refused(auth, f"Bearer {old}")
        assert (await auth.caller(f"Bearer {new}")).id == token.id
        assert await tokens.rotate("gone") is None
        await tokens.revoke(token.id)
        assert await tokens.rotate(token.id) is None

    on_state(main)


def test_a_known_token_costs_no_look_at_the_state(tmp_path: Path) -> None:
    async def main(s: Stand) -> None:
        auth = Auth(s.state)
        token, secret = await Tokens(s.state).make("admin", "root")
        await auth.caller(f"Bearer {secret}")
        await s.clock.advance(1)
        await refused(auth, "Bearer nobody")
        await s.state.close()
        for _ in range(10):
            await auth.caller(f"Bearer {secret}")
            await refused(auth, "Bearer nobody")
        s.state = s.make()
        auth._state = s.state
        await s.clock.advance(1)
        await auth.write_down()
        await auth.write_down()
        used = await s.state.token(token.id)
        assert used is not None
        assert used.last_used_at == s.clock.epoch() - 1
        await refused(auth, "Bearer nobody")

    on_sqlite(tmp_path)(main)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_module, "REMEMBERED_MAX", 3)
    monkeypatch.setattr(auth_module, "UNKNOWN_MAX", 3)

    async def main(s: Stand) -> None:
        auth = Auth(s.state)
        for n in range(10):
            _, secret = await Tokens(s.state).make("admin", f"n{n}")
            await auth.caller(f"Bearer {secret}")
            await refused(auth, f"Bearer nobody{n}")
        assert len(auth._known) == len(auth._invalid) == 3
        auth.forget()
        assert not auth._known

    on_sqlite(tmp_path)(main)


# Who may what

CALLERS = {
    "admin": Caller("t1", "root", "admin"),
    "read": Caller("t4", "eye", "read"),
    "put": Caller("t2", "ci", "put"),
    "operate": Caller("t5", "ops", "operate"),
    "worker": Caller("t3", "farm", "worker"),
    "own": Caller("w1", "mac", "own", "w1"),
}


@pytest.mark.parametrize(
    ("scopes", "who"),
    [
        (("admin",), {"admin"}),
        (("put",), {"admin", "put"}),
        (("worker",), {"admin", "worker"}),
        (SEE, {"admin", "read", "put", "operate"}),
        (STEER, {"admin", "put", "operate"}),
        (("admin", "own"), {"admin", "own"}),
    ],
)
def test_scopes(scopes: tuple[str, ...], who: set[str]) -> None:
    may = set()
    for role, caller in CALLERS.items():
        try:
            caller.must_have(*scopes)
            may.add(role)
        except HttpError as told:
            status = told.status
            if status != 403:
                raise
    assert may == who


def test_a_worker_sees_its_own_jobs_and_no_others() -> None:
    job = Job("j", "agents", "build", None, None, 0, 1, 0.0, 0.0, None)
    own, others, nobodys = (JobInfo(job, "leased", 0.0, w) for w in ("w1", "w2", None))
    for role in ("admin", "read", "operate"):
        assert all(CALLERS[role].may_see(each) for each in (own, others, nobodys))
    assert not any(CALLERS["put"].may_see(each) for each in (own, others, nobodys))
    caller = CALLERS["own"]
    assert caller.must_see(own, "j") is own
    for each in (others, nobodys, None):
        with pytest.raises(HttpError) as told:
            caller.must_see(each, "j")
        assert told.value.status == 404
    with pytest.raises(HttpError) as told:
        CALLERS["worker"].must_see(own, "j")
    assert told.value.status == 403
    assert not Caller("x", "x", "own", None).may_see(nobodys)


def test_a_worker_is_no_other() -> None:
    CALLERS["own"].must_be_worker("w1")
    CALLERS["admin"].must_be_worker("w1")
    with pytest.raises(HttpError) as told:
        CALLERS["own"].must_be_worker("w2")
    assert told.value.status == 404
    with pytest.raises(HttpError) as told:
        CALLERS["put"].must_be_worker("w1")
    assert told.value.status == 403


# Audit


def test_what_is_done_is_written_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pollwise.runtime.audit")

    async def main(s: Stand) -> None:
        await s.state.note("token:t1", "job.cancel", "j1\nforged: line", "x\x1b[2J", "::1")
        [entry] = await s.state.list_audit()
        assert (entry.who, entry.action, entry.address) == ("token:t1", "job.cancel", "::1")
        assert (entry.what, entry.detail) == ("j1\\nforged: line", "x\\x1b[2J")
        await s.state.close()
        await s.state.note("token:t1", "job.retry", "j2")

    on_sqlite(tmp_path)(main)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == r"token:t1 job.cancel j1\nforged: line x\x1b[2J from ::1"
    assert texts[1].startswith("token:t1 job.retry j2")
    assert "only in this log" in texts[2]


@given(st.text(max_size=600))
def test_no_text_breaks_out_of_its_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.encode()) < 10 * 501
    if text.isprintable() and len(text) <= 500:
        assert shown == text


def test_a_token_that_could_not_be_kept_is_not_left_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(s: Stand) -> None:
        async def failing(token: object) -> None:
            raise StoreError("no")

        monkeypatch.setattr(s.state, "add_token", failing)
        with pytest.raises(StoreError):
            await Tokens(s.state).first_admin(tmp_path / "admin.token")
        assert not (tmp_path / "admin.token").exists()

    on_sqlite(tmp_path)(main)
