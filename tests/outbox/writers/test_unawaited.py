"""A put on an async connection that is not awaited: type checkers and commits refuse it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from pollwise.errors import OutboxError
from pollwise.outbox import Outbox, open_store

PROGRAM = """\
from typing import Any
import aiosqlite
import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session
from pollwise import Outbox
async def main(
    outbox: Outbox, session: AsyncSession, connection: AsyncConnection,
    scoped: async_scoped_session[AsyncSession], lite: aiosqlite.Connection,
    pg: psycopg.AsyncConnection[Any], plain: Session,
) -> None:
    outbox.put(session, "order", 1)
    outbox.put(connection, "order", 1)
    outbox.put(scoped, "order", 1)
    outbox.put(lite, "order", 1)
    outbox.put(pg, "order", 1)
    outbox.put(plain, "order", 1)
    ids: list[str] = await outbox.put(session, "order", 1)
    same: list[str] = outbox.put(plain, "order", 1)
"""
UNAWAITED = [str(number) for number in range(12, 17)]


def test_mypy_finds_a_put_that_is_not_awaited(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary"]
    run = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    lines = [line.partition("typed.py:")[2] for line in run.stdout.splitlines() if "error" in line]
    assert [line.partition(": ")[0] for line in lines] == UNAWAITED, run.stdout


def test_pyright_finds_a_put_that_is_not_awaited(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "standard", "pythonVersion": "3.11"})
    )
    command = [
        str(Path(sys.executable).parent / "basedpyright"), "--outputjson", "--pythonpath",
        sys.executable, "--project", str(tmp_path),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(run.stdout)["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    assert {each["rule"] for each in errors} == {"reportUnusedCoroutine"}, run.stdout
    assert [str(each["range"]["start"]["line"] + 1) for each in errors] == UNAWAITED


def opened(engine: AsyncEngine, how: str) -> Any:
    if how == "connection":
        return AsyncConnection(engine)
    if how == "session":
        return AsyncSession(engine)
    return async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "one")


async def close(tx: Any) -> None:
    await (tx.remove() if isinstance(tx, async_scoped_session) else tx.close())


@pytest.mark.parametrize("how", ["connection", "session", "scoped session"])
def test_a_put_that_was_not_awaited_is_not_committed_without(how: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    outbox = Outbox(url)

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        async with open_store(url) as store, engine.begin() as connection:
            await store.migrate()
            await connection.execute(text("CREATE TABLE orders (number int)"))
        tx = opened(engine, how)
        if how == "connection":
            await tx.start()
        order = text("INSERT INTO orders VALUES (1)")

        await tx.execute(order)
        forgotten = outbox.put(tx, "order", 1)
        with pytest.raises(OutboxError, match="was not awaited, so the transaction is not comm"):
            await tx.commit()
        forgotten.close()
        await tx.rollback()

        await tx.execute(order)
        forgotten = outbox.put(tx, "order", 2)
        await tx.rollback()  # with its data, so nothing is missing
        forgotten.close()
        if how == "session":
            await tx.execute(order)
            forgotten = outbox.put(tx, "order", 2)
            await tx.close()
            forgotten.close()
            async with tx.begin_nested():
                await tx.execute(text("SELECT 1"))

        for number in (3, 4):
            await tx.execute(order)
            await outbox.put(tx, "order", number)
            await tx.commit()
        async with open_store(url) as store:
            assert [each.record.payload for each in await store.records()] == [3, 4]
        assert (await tx.execute(text("SELECT count(*) FROM orders"))).scalar() == 2
        await close(tx)
        await engine.dispose()

    asyncio.run(main())
