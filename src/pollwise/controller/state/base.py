"""What a controller keeps beside its queue: workers, tokens, requirements, audit, files and logs.

Jobs are in the queue alone. Two controllers may work on one state at once. Each call is one
statement of `statements.sql`, beside this file or beside the store's own. The words in which the
stores differ are placeholders: `{controller}` begins the name of a table, `{now}` is the time,
`{items}` and `{texts}` give the rows of a JSON array of objects or of texts.

The store's clock decides: durations go in ("seen 3 s ago", "kept for a day"), times come out. All
calls are bounded: batches by the caller, pages by `PAGE_MAX`, sweeps by their `limit`.
Errors are those of queues: `StoreUnavailable` for what may work later, else `StoreError`.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from pollwise.controller.state import encoding
from pollwise.controller.state.values import (
    ArtefactRow,
    LogPiece,
    LogPlace,
    LogRun,
    Requirement,
    Token,
    WorkerRow,
    WorkerSeen,
)
from pollwise.errors import ConfigError, JobError
from pollwise.runtime.audit import AuditEntry, write_down
from pollwise.runtime.clock import Clock

#: The most rows of a page.
PAGE_MAX = 1000
#: The most bytes that one read of a log returns.
LOG_READ_MAX = 1024 * 1024
#: A requirement is written at most once in this many seconds. A process that saw it written skips
#: it for as long again, so it is kept for at least twice as long.
REQUIREMENT_REST = 3600.0
#: How many written requirements a process remembers.
REQUIREMENTS_REMEMBERED = 10_000


def new_id(clock: Clock) -> str:
    """32 hex digits that nobody can guess; ids sort by the millisecond they were made in."""
    return f"{int(clock.epoch() * 1000) & 0xFFFF_FFFF_FFFF:012x}{secrets.token_hex(10)}"


class ControllerState(ABC):
    """Workers, tokens, requirements, audit, files and logs; the same for every store.

    url: where it is, fit to be printed.
    clock: the system's; a test gives a virtual one, and the store then uses that too.
    """

    url: str
    clock: Clock

    def __init__(self) -> None:
        self._required: dict[tuple[str, str], float] = {}

    # What a store implements

    async def migrate(self) -> list[int]:
        """Create the tables that are missing; return the versions that were applied.

        A store that creates them by itself returns none.
        """
        return []

    @abstractmethod
    async def ping(self) -> None:
        """Raise if the store does not answer, or if its tables do not fit."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def _rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement. The store gives it the time; text is made fit to be kept."""

    @abstractmethod
    async def _put_artefact(self, row: ArtefactRow, most: int) -> tuple[bool, ArtefactRow | None]:
        """False if there would be more than `most`; and the row that was replaced."""

    @abstractmethod
    async def _append_log(self, folder: str, piece: LogPiece) -> LogPlace | None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Requirements

    async def require(self, kind: str, requires_hash: str, requires: Mapping[str, Any]) -> bool:
        """Note that a job of this kind came with this requirement ("" and {} for none).

        Returns False if it was noted here lately, so that it need not be written.
        """
        key, now = (kind, requires_hash), self.clock.now()
        written = self._required.get(key)
        if written is not None and now - written < REQUIREMENT_REST:
            return False
        given = {"kind": kind, "hash": requires_hash, "requires": json.dumps(requires)}
        await self._rows("require", **given, rest_s=REQUIREMENT_REST)
        if len(self._required) >= REQUIREMENTS_REMEMBERED:
            self._required.clear()
        self._required[key] = now
        return True

    async def requirements(self) -> list[Requirement]:
        """Every (kind, requires) that jobs came with, those without any requirement included."""
        found = await self._rows("requirements")
        return [Requirement(digest, kind, json.loads(asked)) for digest, kind, asked in found]

    async def prune_requirements(self, unused_s: float, used: Collection[tuple[str, str]]) -> int:
        """Delete those that no new job had for this long, except `used`: pairs of kind and hash."""
        kept = json.dumps([[encoding.plain(kind), digest] for kind, digest in used])
        unused_s = max(unused_s, 2 * REQUIREMENT_REST)
        return len(await self._rows("prune_requirements", unused_s=unused_s, used=kept))

    # Workers

    async def add_worker(self, row: WorkerRow) -> WorkerRow:
        """Keep a new worker; its times are filled in. `token_expires_at` is kept as given."""
        [kept] = await self._rows("add_worker", **encoding.new_worker(row))
        return encoding.worker_of(kept)

    async def workers(self, ids: Sequence[str]) -> dict[str, WorkerRow]:
        found = map(encoding.worker_of, await self._rows("workers", ids=_json_texts(ids)))
        return {row.id: row for row in found}

    async def worker(self, worker_id: str) -> WorkerRow | None:
        return (await self.workers([worker_id])).get(worker_id)

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
        """A page in the order of ids; `live` (True, False) filters by who was seen lately."""
        asked = {"live": live, "live_s": live_s, "drain": drain, "after": after}
        found = await self._rows("list_workers", **asked, limit=checked_limit(limit))
        return list(map(encoding.worker_of, found))

    async def live_capabilities(self, live_s: float, *, limit: int, after: str = "") -> list[str]:
        """The capabilities of workers that were seen lately and take jobs: JSON, each text once.

        A page in the order of the texts; `after` is the last one of the page before.
        """
        asked = {"live_s": live_s, "drain": False, "after": after, "limit": checked_limit(limit)}
        return [text for (text,) in await self._rows("live_capabilities", **asked)]

    async def seen(self, batch: Sequence[WorkerSeen]) -> list[str]:
        """Note when workers were last seen, in one statement; return the unknown ids.

        A newer time that another controller wrote stays.
        """
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
        """Forget a worker, and its token with it; False if there is no such worker."""
        return bool(await self._rows("remove_worker", id=worker_id))

    async def prune_workers(self, unseen_s: float, limit: int) -> int:
        """Forget workers that were not seen for this long."""
        limit = checked_limit(limit)
        return len(await self._rows("prune_workers", unseen_s=unseen_s, limit=limit))

    async def count_workers(self, live_s: float) -> tuple[int, int]:
        """How many workers there are, and how many of them were seen within `live_s`."""
        [(workers, live)] = await self._rows("count_workers", live_s=live_s)
        return workers, live

    # Tokens

    async def add_token(self, token: Token) -> Token:
        given = {**asdict(token), "name": encoding.text(token.name)}
        return encoding.token_of((await self._rows("add_token", **given))[0])

    async def token(self, token_id: str) -> Token | None:
        return _token(await self._rows("token", id=token_id))

    async def tokens(self, ids: Sequence[str]) -> dict[str, Token]:
        found = map(encoding.token_of, await self._rows("tokens", ids=_json_texts(ids)))
        return {token.id: token for token in found}

    async def token_by_hash(self, token_hash: str) -> Token | None:
        """The token with this hash, even if it has expired or was revoked."""
        return _token(await self._rows("token_by_hash", hash=token_hash))

    async def list_tokens(self, *, limit: int = 100, after: str | None = None) -> list[Token]:
        found = await self._rows("list_tokens", limit=checked_limit(limit), after=after)
        return list(map(encoding.token_of, found))

    async def revoke_token(self, token_id: str) -> Token | None:
        """Revoke a token, and the tokens of workers that registered with it; None if there is none.

        The time of an earlier revocation stays.
        """
        return _token(await self._rows("revoke_token", id=token_id))

    async def rotate_token(
        self, token_id: str, old_hash: str, new_hash: str, expires_at: float | None
    ) -> Token | None:
        """Replace the secret of a token; None if its hash is not `old_hash`, or it was revoked."""
        given = {"old": old_hash, "new": new_hash, "expires_at": expires_at}
        return _token(await self._rows("rotate_token", id=token_id, **given))

    async def tokens_used(self, used: Mapping[str, float]) -> None:
        """Note when tokens were last used: how many seconds ago, by token id."""
        if used:
            batch = [{"id": id_, "ago_s": ago_s} for id_, ago_s in sorted(used.items())]
            await self._rows("tokens_used", batch=json.dumps(batch))

    async def secret(self, name: str) -> bytes:
        """32 random bytes under this name, the same for all controllers on this state."""
        [(value,)] = await self._rows("secret", name=name, value=secrets.token_hex(32))
        return bytes.fromhex(value)

    # Audit

    async def audit(self, entries: Sequence[AuditEntry], ago_s: Sequence[float] = ()) -> None:
        """Write entries; `ago_s` says for each how long ago it happened, if not now."""
        if entries:
            texts = ("who", "action", "what", "detail", "address")
            batch = [
                {"ago_s": ago, **{name: encoding.text(getattr(entry, name)) for name in texts}}
                for entry, ago in zip(entries, ago_s or [0.0] * len(entries), strict=True)
            ]
            await self._rows("audit", batch=json.dumps(batch))

    async def note(
        self, who: str, action: str, what: str = "", detail: str = "", address: str = ""
    ) -> None:
        """Write one entry into the audit log."""
        entry = AuditEntry.of(who, action, what, detail, address)
        await write_down(entry, lambda kept: self.audit([kept]))

    async def list_audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[AuditEntry]:
        """A page, newest first; `before` is the last id of the page before."""
        asked = {"who": who, "action": action, "what": what, "before": before}
        found = await self._rows("list_audit", **asked, limit=checked_limit(limit))
        return [AuditEntry(*row) for row in found]

    async def prune_audit(self, keep_s: float, limit: int) -> int:
        return len(await self._rows("prune_audit", keep_s=keep_s, limit=checked_limit(limit)))

    # Artefacts: their rows; their bytes are elsewhere (see `artefacts`)

    async def put_artefact(self, row: ArtefactRow, most: int) -> ArtefactRow | None:
        """Keep a row; return the one that it replaced, whose blob may be deleted.

        `JobError` if its folder would have more than `most`.
        """
        kept, before = await self._put_artefact(row, most)
        if not kept:
            what = "inputs" if row.input else "artefacts"
            raise JobError(f"the job has {most} {what} already, which is the maximum")
        return before if before is not None and before.blob != row.blob else None

    async def artefacts(self, folder: str, *, input: bool = False) -> list[ArtefactRow]:
        """All of a folder, by name."""
        found = await self._rows("artefacts", folder=folder, input=input)
        return list(map(encoding.artefact_of, found))

    async def artefact(self, folder: str, name: str, *, input: bool = False) -> ArtefactRow | None:
        found = await self._rows("artefact", folder=folder, input=input, name=name)
        return encoding.artefact_of(found[0]) if found else None

    # Logs: see `logs`, which checks and bounds

    async def append_log(
        self,
        folder: str,
        part: int,
        offset: int,
        data: bytes,
        limit: int,
        end_mark: bytes,
        begin_mark: bytes = b"",
        attempt: int = 0,
        worker: str = "",
    ) -> LogPlace | None:
        """Append the new bytes of `data`, which the run `part` sent from its byte `offset` on.

        Bytes that it sent before are ignored. Bytes beyond `limit` are not kept; the first time,
        `end_mark` is. `begin_mark` is kept before the first bytes of a run that is not the first.
        Returns None and changes nothing if a newer run wrote. A gap (an offset above what was
        received) changes nothing either, as `received` of the answer shows. `attempt` and `worker`
        are kept with the place where the run begins.
        """
        piece = LogPiece(part, offset, data, limit, end_mark, begin_mark, attempt, worker)
        return await self._append_log(folder, piece)

    async def log_place(self, folder: str) -> LogPlace:
        """The length of the log, and what its newest run has sent."""
        found = await self._rows("log_place", folder=folder)
        return encoding.place_of(found[0]) if found else LogPlace()

    async def log_runs(self, folder: str) -> list[LogRun]:
        """The runs that wrote to the log, in order."""
        return [LogRun(*row) for row in await self._rows("log_runs", folder=folder)]

    async def read_log(self, folder: str, start: int, length: int) -> bytes:
        """The bytes from `start` on: up to `length` and `LOG_READ_MAX`, fewer at the end."""
        stop = start + min(length, LOG_READ_MAX)
        pieces = await self._rows("read_log", folder=folder, start=start, stop=stop)
        if not pieces:
            return b""
        first, whole = pieces[0][0], b"".join(data for _, data in pieces)
        return whole[max(start - first, 0) : max(stop - first, 0)]

    # Retention of both

    async def attach(self, folder: str, job: str) -> None:
        """Note the job of a folder of inputs, once the job was put."""
        await self._rows("attach", folder=folder, job=job)

    async def folders_before(
        self, keep_s: float, limit: int, after: str | None = None
    ) -> list[tuple[str, str]]:
        """Folders whose files and logs were last written this long ago, each with its job.

        The job of inputs is the one that `attach` noted, or ""; of others, the folder itself.
        """
        asked = {"keep_s": keep_s, "limit": checked_limit(limit), "after": after}
        return [(folder, job) for folder, job in await self._rows("folders_before", **asked)]

    async def forget(self, folders: Sequence[str]) -> None:
        """Delete the logs and the rows of the files of these folders.

        Delete the bytes of the files first.
        """
        if folders:
            await self._rows("forget", folders=_json_texts(folders))


def checked_limit(limit: object) -> int:
    """Check the limit of a page or a sweep."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ConfigError(f"limit = {limit!r} must be a whole number from 1 to {PAGE_MAX}")
    return limit


def _worker(found: Sequence[Sequence[Any]]) -> WorkerRow | None:
    return encoding.worker_of(found[0]) if found else None


def _token(found: Sequence[Sequence[Any]]) -> Token | None:
    return encoding.token_of(found[0]) if found else None


def _json_texts(values: Sequence[str]) -> str:
    return json.dumps([encoding.plain(value) for value in values])
