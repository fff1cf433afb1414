"""One run of a job: fetch inputs, run the command, send log and artefacts, report."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from random import random
from typing import Any, TypeVar

from pollwise.agent.command import Command, CommandResult, Stop
from pollwise.agent.folder import AgentFolder, is_id
from pollwise.agent.link import ControllerLink, JobNotOurs
from pollwise.agent.log import RETRY, Log
from pollwise.agent.options import AgentOptions
from pollwise.agent.outputs import ARTEFACTS_MAX, OutputFiles
from pollwise.errors import ConfigError, StoreUnavailable
from pollwise.queues.http.client import NoAnswer, RequestRefused
from pollwise.runtime import variables
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import is_secret

T = TypeVar("T")

logger = logging.getLogger("pollwise")

#: The largest result, in bytes of JSON.
RESULT_MAX = 256 * 1024
#: How much of the progress file is read, in bytes.
PROGRESS_MAX = 1000
#: How often an upload is tried when its connection is cut each time.
CUTS_MAX = 5


@dataclass(frozen=True)
class AgentJob:
    """A job as the controller hands it out."""

    id: str
    kind: str
    payload: Any
    attempt: int
    attempts: int
    timeout: float | None
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, given: Any) -> AgentJob:
        """Raises `LookupError`, `TypeError` or `ValueError` for something else."""
        if not isinstance(given, dict) or not is_id(given["id"]):
            raise ValueError("this is not a job")
        timeout = given.get("timeout_s")
        return cls(
            id=given["id"],
            kind=str(given.get("kind", "")),
            payload=given.get("payload"),
            attempt=int(given.get("attempt", 1)),
            attempts=int(given.get("attempts", 1)),
            timeout=None if timeout is None else float(timeout),
            inputs=tuple(map(str, given.get("inputs") or ())),
        )


#: Runs a job in its folder: the command, or something quicker in a test.
Execute = Callable[["AgentRun"], Awaitable[CommandResult]]


class Stopped(Exception):
    """The job was asked to end before its command began, or after it ended."""


class CannotRun(Exception):
    """The job cannot be done; the message is for its report."""


class AgentRun:
    """One run of a job."""

    def __init__(
        self,
        work: AgentJob,
        options: AgentOptions,
        root: AgentFolder,
        link: ControllerLink,
        clock: Clock,
        execute: Execute | None = None,
    ) -> None:
        self.work = work
        self.stop = Stop()
        self.began = clock.now()
        self.folder = Path()
        self._options = options
        self._root = root
        self._link = link
        self._clock = clock
        self._execute = execute or AgentRun.command
        self._log: Log | None = None

    async def run(self) -> dict[str, Any] | None:
        """Run the job; the report for the controller, None if the job is no longer ours."""
        report: dict[str, Any] = {"job_id": self.work.id}
        try:
            try:
                ended = await self._work()
            except Stopped:
                ended = CommandResult(None, None, self.stop.why)
            except JobNotOurs:
                return None
            except (CannotRun, OSError) as error:
                ended = CommandResult(None, str(error) or type(error).__name__)
            report = self.progress()  # its progress since the last poll
            if ended.why in ("lost", "given back"):
                return None
            if ended.exit_code is not None:
                report["exit_code"] = ended.exit_code
            if ended.why == "cancel":
                return {**report, "state": "cancelled"}
            if ended.error is not None:
                return {**report, "state": "failed", "error": ended.error}
            result = self._result()
            return {**report, "state": "done", **({} if result is None else {"result": result})}
        except CannotRun as error:
            return {**report, "state": "failed", "error": str(error)}
        finally:
            if self._log is not None:
                await self._log.close()
            if not self._options.keep_folders and self.folder.name:
                await asyncio.to_thread(shutil.rmtree, self.folder, True)

    def progress(self) -> dict[str, Any]:
        """The progress of the command: the last line of its file, such as `0.4 linking`."""
        report: dict[str, Any] = {"job_id": self.work.id}
        if not self.folder.name:
            return report
        try:
            with (self.folder / "progress").open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - PROGRESS_MAX, 0))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return report
        line = next((each.strip() for each in reversed(lines) if each.strip()), "")
        number, _, message = line.partition(" ")
        try:
            share = float(number.rstrip("%"))
        except ValueError:
            share, message = -1.0, line
        if 0 <= share <= 100:
            report["progress"] = share
        if message:
            report["message"] = "".join(c if c.isprintable() else " " for c in message)[:500]
        return report

    async def command(self) -> CommandResult:
        """Run the agent's command for this job."""
        assert self._log is not None  # noqa: S101
        paths = {
            "{payload}": str(self.folder / "payload.json"),
            "{job_id}": self.work.id,
            "{inputs}": str(self.folder / "inputs"),
            "{out}": str(self.folder / "out"),
        }
        limits = [t for t in (self.work.timeout, self._options.timeout) if t is not None]
        command = Command(
            [paths.get(word, word) for word in self._options.command],
            self.folder,
            self._environ(),
            self._log.write,
            timeout=min(map(float, limits)) if limits else None,  # type: ignore[arg-type]
            kill_after=self._options.span("kill_after"),
        )
        return await command.run(self.stop)

    async def _work(self) -> CommandResult:
        self.folder = self._root.fresh(self.work.id, self.work.attempt)
        payload = json.dumps(self.work.payload, ensure_ascii=False)
        (self.folder / "payload.json").write_text(payload, encoding="utf-8")
        for name in self.work.inputs:
            await self._unless_stopped(self._fetched(name))
        self._log = Log(self.folder / "log", self._link, self.work.id, self._clock)
        ended = await self._execute(self)
        if ended.why in ("lost", "given back"):
            return ended
        # The output of a cancelled or failed command is what people want to see most.
        if ended.error is not None and ended.exit_code is None:
            self._log.note(ended.error)
        made = OutputFiles(self.folder / "out", self._options.artefacts)
        if ended.why is None:
            for line in made.left_out():
                self._log.note(line)
        await self._unless_stopped(self._log.end(), cancel_too=False)
        if ended.why is None:
            if len(made.files) > ARTEFACTS_MAX:
                raise CannotRun(f"there are more than {ARTEFACTS_MAX} artefacts")
            for name, file in made.files.items():
                await self._unless_stopped(self._sent(name, file))
        return ended

    async def _fetched(self, name: str) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
            raise CannotRun(f"the name of the input {name!r} leads out of its folder")
        to = self.folder / "inputs" / path
        try:
            what = f"the input {name!r} could not be fetched"
            await self._again(what, lambda: self._link.fetch_input(self.work.id, name, to))
        except RequestRefused as refused:
            raise CannotRun(f"the input {name!r} could not be fetched: {refused}") from None

    async def _sent(self, name: str, file: Path) -> None:
        try:
            await self._again(
                f"the artefact {name!r} could not be sent",
                lambda: self._link.send_artefact(self.work.id, name, file),
                cuts_max=CUTS_MAX,
            )
        except (RequestRefused, ConfigError) as refused:
            raise CannotRun(f"the artefact {name!r} could not be kept: {refused}") from None

    async def _again(
        self, what: str, call: Callable[[], Awaitable[None]], *, cuts_max: int | None = None
    ) -> None:
        """Repeat a call until it works, however long the network is down.

        cuts_max: raise `CannotRun` after the connection was cut this often before the answer. Some
            controllers and proxies refuse an upload only by cutting the connection.
        """
        failures = cuts = 0
        while True:
            try:
                await call()
                return
            except StoreUnavailable as error:
                failures += 1
                cuts += isinstance(error, NoAnswer) and error.sent
                fields = {"job": self.work.id, "failures": failures, "error": str(error)}
                logger.warning(
                    "job %s: %s (try %d): %s", self.work.id, what, failures, error,
                    extra={"action": "transfer_failed", "fields": fields},
                )  # fmt: skip
                if cuts_max is not None and cuts >= cuts_max:
                    raise CannotRun(f"{what} in {cuts} tries: {error}") from None
                await self._clock.sleep(RETRY.delay(failures, random()))

    async def _unless_stopped(
        self, work: Coroutine[Any, Any, T], *, cancel_too: bool = True
    ) -> T | None:
        """Do something before or after the command; raises `Stopped` if the job must end.

        cancel_too: also when the job is cancelled, not only when it is no longer ours.
        """
        doing = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self.stop.wait(over=not cancel_too))
        try:
            await asyncio.wait([doing, asked], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Stopped
            return doing.result()
        finally:
            for task in (doing, asked):
                task.cancel()
            await asyncio.gather(doing, asked, return_exceptions=True)

    def _result(self) -> Any:
        """The JSON in result.json; None if there is none."""
        if not self.folder.name:
            return None
        try:
            file = self.folder / "result.json"
            if file.stat().st_size > RESULT_MAX:
                raise CannotRun(
                    f"result.json has {file.stat().st_size} bytes, more than {RESULT_MAX}; put "
                    "large results into the folder `out`"
                )
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CannotRun(f"result.json cannot be read: {error}") from None
        if not text.strip():
            return None
        with suppress(ValueError, RecursionError):
            return json.loads(text, parse_constant=_no_constant)
        raise CannotRun("result.json is not JSON")

    def _environ(self) -> dict[str, str]:
        """The environment of the command: ours without our secrets, and the job's variables."""
        environ = {
            name: value
            for name, value in os.environ.items()
            if not (name.startswith("POLLWISE_") and is_secret(name))
        }
        return environ | {
            variables.CONTROLLER: self._link.base,
            variables.JOB_ID: self.work.id,
            variables.JOB_KIND: self.work.kind,
            variables.ATTEMPT: str(self.work.attempt),
            variables.ATTEMPTS: str(self.work.attempts),
            variables.WORK: str(self.folder),
            variables.PAYLOAD: str(self.folder / "payload.json"),
            variables.INPUTS: str(self.folder / "inputs"),
            variables.OUT: str(self.folder / "out"),
            variables.RESULT: str(self.folder / "result.json"),
            variables.PROGRESS: str(self.folder / "progress"),
        }


def _no_constant(name: str) -> Any:
    raise ValueError(name)
