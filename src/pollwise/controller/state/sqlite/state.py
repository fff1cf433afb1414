"""The controller's state in a SQLite file: the queue's own, or any other.

Calls go to one thread with one connection, as those of `SqliteQueue` do.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.store import StateFile
from pollwise.errors import ConfigError
from pollwise.queues.sqlite.queue import SYNCHRONOUS
from pollwise.runtime.clock import Clock
from pollwise.storage.sqlite.thread import SqliteThread, in_thread, in_thread_now


class SqliteState(ControllerState):
    """The state in a file; its tables are made when it is first used.

    path: the database; made when missing, unless `create` is off.
    synchronous: as a `SqliteQueue` has it: what survives a power cut.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "full",
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.path = Path(path)
        if self.path.name in ("", ".."):
            raise ConfigError(f"path = {str(path)!r} names no file; give one such as jobs.db")
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(f"synchronous = {synchronous!r} is none of {', '.join(SYNCHRONOUS)}")
        self.synchronous = synchronous
        self.clock = clock or Clock()
        self._store = StateFile(self.path, synchronous=synchronous, create=create)
        self._folder: str | None = None
        self._thread = SqliteThread(
            self._store, name=f"pollwise-state-{self.path.name}", store=self.url
        )

    @classmethod
    def temporary(cls, clock: Clock | None = None) -> SqliteState:
        """A state that is gone when it is closed: beside a queue in memory, and for tests."""
        folder = tempfile.mkdtemp(prefix="pollwise-state-")
        state = cls(Path(folder) / "state.db", synchronous="off", clock=clock)
        state._folder = folder
        return state

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    async def close(self) -> None:
        if self._thread.closed:
            return
        try:
            await self._thread.close()
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    ping = in_thread(StateFile.ping)

    # Jobs

    add_jobs = in_thread_now(StateFile.add_jobs)
    mark_ready = in_thread_now(StateFile.mark_ready)
    stuck = in_thread_now(StateFile.stuck)
    jobs = in_thread(StateFile.jobs)
    list_jobs = in_thread(StateFile.list_jobs)
    deliver = in_thread_now(StateFile.deliver)
    runs_of = in_thread(StateFile.runs_of)
    run = in_thread(StateFile.run)
    contact = in_thread_now(StateFile.contact)
    end_runs = in_thread_now(StateFile.end_runs)
    end_job = in_thread_now(StateFile.end_job)
    release_lapsed = in_thread_now(StateFile.release_lapsed)
    cancel = in_thread_now(StateFile.cancel)
    renew_job = in_thread_now(StateFile.renew_job)
    finished_before = in_thread_now(StateFile.finished_before)
    forget = in_thread(StateFile.forget)
    requirements = in_thread(StateFile.requirements)
    prune_requirements = in_thread_now(StateFile.prune_requirements)
    stats = in_thread_now(StateFile.stats)

    # Workers

    add_worker = in_thread_now(StateFile.add_worker)
    workers = in_thread(StateFile.workers)
    worker_by_token = in_thread(StateFile.worker_by_token)
    list_workers = in_thread_now(StateFile.list_workers)
    seen = in_thread_now(StateFile.seen)
    set_drain = in_thread(StateFile.set_drain)
    remove_worker = in_thread_now(StateFile.remove_worker)
    prune_workers = in_thread_now(StateFile.prune_workers)

    # Tokens and audit

    add_token = in_thread_now(StateFile.add_token)
    token = in_thread(StateFile.token)
    token_by_hash = in_thread(StateFile.token_by_hash)
    list_tokens = in_thread(StateFile.list_tokens)
    revoke_token = in_thread_now(StateFile.revoke_token)
    rotate_token = in_thread(StateFile.rotate_token)
    tokens_used = in_thread_now(StateFile.tokens_used)
    audit = in_thread_now(StateFile.audit)
    list_audit = in_thread(StateFile.list_audit)
    prune_audit = in_thread_now(StateFile.prune_audit)

    # Artefacts and logs

    put_artefact = in_thread_now(StateFile.put_artefact)
    artefacts = in_thread(StateFile.artefacts)
    artefact = in_thread(StateFile.artefact)
    append_log = in_thread(StateFile.append_log)
    log_place = in_thread(StateFile.log_place)
    read_log = in_thread(StateFile.read_log)
