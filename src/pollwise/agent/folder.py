"""The folder of an agent: one folder per job, and reports that are not accepted yet.

    <root>/lock               locked while an agent uses the folder
    <root>/jobs/<id>.<n>/     payload.json, inputs/, out/, log, result.json, progress
    <root>/results/<id>.json  how a job ended, until the controller has accepted it

An agent that was killed leaves all of it behind, and its commands may still run. The next agent in
the folder ends those commands, removes their folders, and sends the reports.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pollwise.agent.commands.command import end_processes
from pollwise.agent.commands.confinement import CommandUser
from pollwise.agent.commands.files import open_inside, read_at_most, remove_tree, write_new
from pollwise.errors import ConfigError
from pollwise.platforms import files

logger = logging.getLogger("pollwise")

#: The most agents of one name on a machine.
PLACES = 1000
#: The most bytes of a saved report.
REPORT_MAX = 4 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def is_id(job_id: object) -> bool:
    """True if this can be the id of a job, which becomes the name of a folder."""
    return isinstance(job_id, str) and _ID.match(job_id) is not None


def default_place(name: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pollwise" / "agent" / (_UNFIT.sub("_", name).lstrip(".") or "agent")


class AgentFolder:
    """The folder of one agent, locked against others. user: who runs the commands, if another."""

    def __init__(
        self, place: str | Path | None, name: str, user: CommandUser | None = None
    ) -> None:
        self._user = user
        wanted = default_place(name) if place is None else Path(place)
        tries = 1 if place is not None else PLACES
        for number in range(1, tries + 1):
            self.path: Path = wanted if number == 1 else wanted.with_name(f"{wanted.name}.{number}")
            lock = self._locked()
            if lock is not None:
                self._lock = lock
                break
        else:
            raise ConfigError(
                f"another agent uses {str(wanted)!r}; give this one its own folder with --folder"
            )
        self.path = self.path.absolute()
        self._count = 0
        if user is not None:
            for folder in (self.path, self.path / "jobs"):  # to be entered, but not read
                folder.chmod(0o711)
            user.check_reach(self.path / "jobs" / "job")

    def _locked(self) -> IO[bytes] | None:
        try:
            for folder in (self.path, self.path / "jobs", self.path / "results"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | files.NO_FOLLOW | files.NO_WAIT | files.NOT_INHERITED
            file = os.fdopen(os.open(self.path / "lock", flags, 0o600), "wb", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"the folder {str(self.path)!r} cannot be used: {error.strerror}; choose another "
                "with --folder"
            ) from None
        if files.lock(file):
            return file
        file.close()
        return None

    def sweep(self) -> int:
        """End and remove the jobs that a killed agent left here; their number."""
        left = list((self.path / "jobs").iterdir())
        if left:
            end_processes(self.path / "jobs")
        for folder in left:
            self.discard(folder)
        return len(left)

    def fresh(self, job_id: str, attempt: int) -> Path:
        """A new folder for a job."""
        jobs = self.path / "jobs"
        with suppress(OSError):  # an earlier command of the same user may have changed them
            for each in (self.path, jobs):
                each.chmod(0o700 if self._user is None else 0o711)
        while True:
            self._count += 1
            folder = jobs / f"{job_id}.{attempt}.{self._count}"
            with suppress(FileExistsError):  # it could not be removed before
                folder.mkdir(mode=0o700, parents=True)
                break
        for name in ("inputs", "out"):
            (folder / name).mkdir(mode=0o700)
        return folder

    def discard(self, folder: Path) -> None:
        """Remove the folder of a job; log why if that is not possible. May take long."""
        try:
            remove_tree(folder)
        except OSError as error:
            logger.warning(
                "the folder %s could not be removed: %s; remove it yourself", folder, error,
                extra={"action": "folder_not_removed", "fields": {"folder": str(folder)}},
            )  # fmt: skip

    # Results

    def save(self, report: dict[str, Any]) -> None:
        """Save how a job ended; it is on disk when this returns."""
        path = self._result(report["job_id"])
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_suffix(".draft")
        write_new(draft, json.dumps(report).encode())
        draft.replace(path)

    def saved(self) -> list[dict[str, Any]]:
        """The reports that were not accepted yet, from any agent in this folder."""
        found = []
        for path in sorted((self.path / "results").glob("*.json")):
            try:
                with open_inside(path.parent, path.name) as file:
                    report = json.loads(read_at_most(file, REPORT_MAX))
                if not is_id(report["job_id"]) or path != self._result(report["job_id"]):
                    raise ValueError(path)
            except (OSError, ValueError, LookupError, TypeError, RecursionError):
                self.discard(path)  # half written, or not ours
                continue
            found.append(report)
        return found

    def remove(self, job_id: str) -> None:
        self.discard(self._result(job_id))

    def _result(self, job_id: str) -> Path:
        return self.path / "results" / f"{job_id}.json"

    def close(self) -> None:
        self._lock.close()
