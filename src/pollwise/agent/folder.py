"""The folder of an agent: one folder per job, and reports that are not accepted yet.

    <root>/lock               locked while an agent uses the folder
    <root>/jobs/<id>.<n>/     payload.json, inputs/, out/, log, result.json, progress
    <root>/results/<id>.json  how a job ended, until the controller has accepted it

An agent that was killed leaves all of it behind, and its commands may still run. The next agent in
the folder ends those commands, removes their folders, and sends the reports.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pollwise.errors import ConfigError

#: The most agents of one name on a machine.
PLACES = 1000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def is_id(job_id: object) -> bool:
    """True if this can be the id of a job, which becomes the name of a folder."""
    return isinstance(job_id, str) and _ID.match(job_id) is not None


def default_place(name: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pollwise" / "agent" / (_UNFIT.sub("_", name).lstrip(".") or "agent")


class AgentFolder:
    """The folder of one agent, locked against others."""

    def __init__(self, place: str | Path | None, name: str) -> None:
        wanted = default_place(name) if place is None else Path(place)
        tries = 1 if place is not None else PLACES
        for number in range(1, tries + 1):
            self.path = wanted if number == 1 else wanted.with_name(f"{wanted.name}.{number}")
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

    def _locked(self) -> IO[str] | None:
        try:
            for folder in (self.path, self.path / "jobs", self.path / "results"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.path / "lock").open("w")
        except OSError as error:
            raise ConfigError(
                f"the folder {str(self.path)!r} cannot be used: {error.strerror}; choose another "
                "with --folder"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock

    def sweep(self) -> int:
        """End and remove the jobs that a killed agent left here; their number."""
        left = list((self.path / "jobs").iterdir())
        if left:
            for pid in processes_in(self.path / "jobs"):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return len(left)

    def fresh(self, job_id: str, attempt: int) -> Path:
        """A new folder for a job."""
        self._count += 1
        folder = self.path / "jobs" / f"{job_id}.{attempt}.{self._count}"
        shutil.rmtree(folder, ignore_errors=True)
        for each in (folder, folder / "inputs", folder / "out"):
            each.mkdir(mode=0o700, parents=True)
        return folder

    # Results

    def save(self, report: dict[str, Any]) -> None:
        """Save how a job ended; it is on disk when this returns."""
        path = self._result(report["job_id"])
        draft = path.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(report, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def saved(self) -> list[dict[str, Any]]:
        """The reports that were not accepted yet, from any agent in this folder."""
        found = []
        for path in sorted((self.path / "results").glob("*.json")):
            try:
                report = json.loads(path.read_text(encoding="utf-8"))
                if not is_id(report["job_id"]) or path != self._result(report["job_id"]):
                    raise ValueError(path)
            except (OSError, ValueError, LookupError, TypeError):
                path.unlink(missing_ok=True)  # half written, or not ours
                continue
            found.append(report)
        return found

    def remove(self, job_id: str) -> None:
        self._result(job_id).unlink(missing_ok=True)

    def _result(self, job_id: str) -> Path:
        return self.path / "results" / f"{job_id}.json"

    def close(self) -> None:
        self._lock.close()


def processes_in(jobs: Path) -> list[int]:
    """The processes of jobs with folders here, found by the environment that they inherit.

    Only Linux shows the environment; on other systems none is found, and they end by themselves.
    """
    mark = b"POLLWISE_WORK=" + os.fsencode(jobs.absolute()) + b"/"
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (place / "environ").read_bytes()
            if any(each.startswith(mark) for each in environ.split(b"\0")):
                found.append(int(place.name))
    return found
