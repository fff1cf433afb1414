"""The calls that are one statement each in every SQL store of the state.

`statements.sql` beside this file has the statements for all of them. The words in which the stores
differ are placeholders, filled in by each store: `{controller}` begins the name of a table, `{now}`
is the time, `{items}` and `{texts}` give the rows of a JSON array of objects or of texts.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pollwise.controller.state import encoding
from pollwise.controller.state.base import LOG_READ_MAX, ControllerState, checked_limit
from pollwise.controller.state.values import (
    ArtefactRow,
    LogPlace,
    Requirement,
    Token,
    WorkerRow,
    WorkerSeen,
)
from pollwise.runtime.audit import AuditEntry
from pollwise.storage.sql import statements

#: A requirement is written at most once in this many seconds. A process that saw it written skips
#: it for as long again, so it is kept for at least twice as long.
REQUIREMENT_REST = 3600.0
#: How many written requirements a process remembers.
REQUIREMENTS_REMEMBERED = 10_000


def all_statements(package: str, dialect: Mapping[str, str]) -> dict[str, str]:
    """The statements of all stores and those of the store `package`, in its dialect."""
    shared = statements("pollwise.controller.state")
    return encoding.filled({**shared, **statements(package)}, dialect)


class SqlState(ControllerState):
    """A state whose store runs the statements of `statements.sql`."""

    def __init__(self) -> None:
        self._required: dict[tuple[str, str], float] = {}

    @abstractmethod
    async def _rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement. The store gives it the time; text is made fit to be kept."""

    # Requirements

    async def require(self, kind: str, requires_hash: str, requires: Mapping[str, Any]) -> None:
        key, now = (kind, requires_hash), self.clock.now()
        written = self._required.get(key)
        if written is not None and now - written < REQUIREMENT_REST:
            return
        given = {"kind": kind, "hash": requires_hash, "requires": json.dumps(requires)}
        await self._rows("require", **given, rest_s=REQUIREMENT_REST)
        if len(self._required) >= REQUIREMENTS_REMEMBERED:
            self._required.clear()
        self._required[key] = now

    async def requirements(self) -> list[Requirement]:
        found = await self._rows("requirements")
        return [Requirement(digest, kind, json.loads(asked)) for digest, kind, asked in found]

    async def prune_requirements(self, unused_s: float, used: Collection[tuple[str, str]]) -> int:
        kept = json.dumps([[encoding.plain(kind), digest] for kind, digest in used])
        unused_s = max(unused_s, 2 * REQUIREMENT_REST)
        return len(await self._rows("prune_requirements", unused_s=unused_s, used=kept))

    # Workers

    async def add_worker(self, row: WorkerRow) -> WorkerRow:
        [kept] = await self._rows("add_worker", **encoding.new_worker(row))
        return encoding.worker_of(kept)

    async def workers(self, ids: Sequence[str]) -> dict[str, WorkerRow]:
        found = map(encoding.worker_of, await self._rows("workers", ids=_json_texts(ids)))
        return {row.id: row for row in found}

    async def worker_by_token(self, token_hash: str) -> WorkerRow | None:
        return _worker(await self._rows("worker_by_token", hash=token_hash))

    async def list_workers(
        self,
        *,
        live: bool | None = None,
        live_s: float = 120.0,
        drain: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WorkerRow]:
        asked = {"live": live, "live_s": live_s, "drain": drain, "after": after}
        found = await self._rows("list_workers", **asked, limit=checked_limit(limit))
        return list(map(encoding.worker_of, found))

    async def seen(self, batch: Sequence[WorkerSeen]) -> list[str]:
        if not batch:
            return []
        # Of several for one worker the latest. By id, so that two controllers lock in one order.
        latest = {each.worker_id: each for each in sorted(batch, key=lambda each: -each.ago_s)}
        given = [
            {"id": encoding.plain(id_), "ago_s": each.ago_s, "address": encoding.text(each.address)}
            for id_, each in sorted(latest.items())
        ]
        known = {id_ for (id_,) in await self._rows("seen", batch=json.dumps(given))}
        return [each.worker_id for each in batch if each.worker_id not in known]

    async def set_drain(self, worker_id: str, drain: bool) -> WorkerRow | None:
        return _worker(await self._rows("set_drain", id=worker_id, drain=drain))

    async def remove_worker(self, worker_id: str) -> bool:
        return bool(await self._rows("remove_worker", id=worker_id))

    async def prune_workers(self, unseen_s: float, limit: int) -> int:
        limit = checked_limit(limit)
        return len(await self._rows("prune_workers", unseen_s=unseen_s, limit=limit))

    async def count_workers(self, live_s: float) -> tuple[int, int]:
        [(workers, live)] = await self._rows("count_workers", live_s=live_s)
        return workers, live

    # Tokens

    async def add_token(self, token: Token) -> Token:
        [kept] = await self._rows("add_token", **encoding.new_token(token))
        return Token(*kept)

    async def token(self, token_id: str) -> Token | None:
        return _token(await self._rows("token", id=token_id))

    async def token_by_hash(self, token_hash: str) -> Token | None:
        return _token(await self._rows("token_by_hash", hash=token_hash))

    async def list_tokens(self, *, limit: int = 100, after: str | None = None) -> list[Token]:
        found = await self._rows("list_tokens", limit=checked_limit(limit), after=after)
        return [Token(*row) for row in found]

    async def revoke_token(self, token_id: str) -> Token | None:
        return _token(await self._rows("revoke_token", id=token_id))

    async def rotate_token(
        self, token_id: str, old_hash: str, new_hash: str, expires_at: float | None
    ) -> Token | None:
        given = {"old": old_hash, "new": new_hash, "expires_at": expires_at}
        return _token(await self._rows("rotate_token", id=token_id, **given))

    async def tokens_used(self, used: Mapping[str, float]) -> None:
        if used:
            batch = [{"id": id_, "ago_s": ago_s} for id_, ago_s in sorted(used.items())]
            await self._rows("tokens_used", batch=json.dumps(batch))

    # Audit

    async def audit(self, entries: Sequence[AuditEntry], ago_s: Sequence[float] = ()) -> None:
        if entries:
            ages = ago_s or [0.0] * len(entries)
            batch = json.dumps(
                [encoding.new_audit(*each) for each in zip(entries, ages, strict=True)]
            )
            await self._rows("audit", batch=batch)

    async def list_audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[AuditEntry]:
        asked = {"who": who, "action": action, "what": what, "before": before}
        found = await self._rows("list_audit", **asked, limit=checked_limit(limit))
        return [AuditEntry(*row) for row in found]

    async def prune_audit(self, keep_s: float, limit: int) -> int:
        return len(await self._rows("prune_audit", keep_s=keep_s, limit=checked_limit(limit)))

    # Files and logs

    async def artefacts(self, folder: str, *, input: bool = False) -> list[ArtefactRow]:
        found = await self._rows("artefacts", folder=folder, input=input)
        return list(map(encoding.artefact_of, found))

    async def artefact(self, folder: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        found = await self._rows("artefact", folder=folder, input=input, name=name)
        return encoding.artefact_of(found[0]) if found else None

    async def log_place(self, folder: str) -> LogPlace:
        found = await self._rows("log_place", folder=folder)
        return encoding.place_of(found[0]) if found else LogPlace()

    async def read_log(self, folder: str, start: int, length: int) -> bytes:
        stop = start + min(length, LOG_READ_MAX)
        pieces = await self._rows("read_log", folder=folder, start=start, stop=stop)
        return encoding.cut_out([(first, data) for first, data in pieces], start, stop)

    async def attach(self, folder: str, job: str) -> None:
        await self._rows("attach", folder=folder, job=job)

    async def folders_before(
        self, keep_s: float, limit: int, after: str | None = None
    ) -> list[tuple[str, str]]:
        asked = {"keep_s": keep_s, "limit": checked_limit(limit), "after": after}
        return [(folder, job) for folder, job in await self._rows("folders_before", **asked)]

    async def forget(self, folders: Sequence[str]) -> None:
        if folders:
            await self._rows("forget", folders=_json_texts(folders))


def _worker(found: Sequence[Sequence[Any]]) -> WorkerRow | None:
    return encoding.worker_of(found[0]) if found else None


def _token(found: Sequence[Sequence[Any]]) -> Token | None:
    return Token(*found[0]) if found else None


def _json_texts(values: Sequence[str]) -> str:
    return json.dumps([encoding.plain(value) for value in values])
