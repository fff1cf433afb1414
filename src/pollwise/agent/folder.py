"""Where an agent works: a folder for each job, and results until the controller has them.

    <root>/lock               held while an agent works here
    <root>/jobs/<id>.<n>/     payload.json, inputs/, out/, log, result.json, progress
    <root>/results/<id>.json  how a job ended, until that was accepted

One that was killed leaves all of it behind, its commands still running perhaps: the next agent here
ends those, removes their folders, and reports the results.
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

#: How many agents of one name a machine can have.
PLACES = 1000
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def is_id(job_id: object) -> bool:
    """Can this be a job's id? It becomes the name of a folder."""
    return isinstance(job_id, str) and _ID.match(job_id) is not None


def default_place(name: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pollwise" / "agent" / (_UNFIT.sub("_", name).lstrip(".") or "agent")


class AgentFolder:
    """The folder of one agent, which nobody else uses meanwhile."""

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
                f"another agent works in {str(wanted)!r}; give this one a folder of its own by "
                "--folder"
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
                f"the folder {str(self.path)!r} cannot be used: {error.strerror}; name another by "
                "--folder"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock

    def sweep(self) -> int:
        """End and remove what an agent that was killed left here; how many jobs that were."""
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
        """Keep how a job ended; it is on the disk when this returns."""
        path = self._result(report["job_id"])
        draft = path.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(report, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def saved(self) -> list[dict[str, Any]]:
        """The results that were not accepted yet, of whoever worked here."""
        found = []
        for path in sorted((self.path / "results").glob("*.json")):
            try:
                report = json.loads(path.read_text(encoding="utf-8"))
                if not is_id(report["job_id"]) or path != self._result(report["job_id"]):
                    raise ValueError(path)
            except (OSError, ValueError, LookupError, TypeError):
                path.unlink(missing_ok=True)  # half written, or none of ours
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
    """The processes that work for jobs with folders here, by their environment, which they inherit.

    Only Linux shows that; elsewhere they are not found, and end by themselves.
    """
    mark = b"POLLWISE_WORK=" + os.fsencode(jobs.absolute()) + b"/"
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (place / "environ").read_bytes()
            if any(each.startswith(mark) for each in environ.split(b"\0")):
                found.append(int(place.name))
    return found
