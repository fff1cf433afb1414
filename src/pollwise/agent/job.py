"""One run of a job: fetch inputs, run the command, send log and artefacts, report."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pollwise.agent.commands.command import Command, CommandResult, Stop
from pollwise.agent.commands.confinement import (
    CommandUser,
    Sandbox,
    checked_sandbox,
    passed_environ,
)
from pollwise.agent.commands.files import open_inside
from pollwise.agent.commands.outputs import OutputFiles
from pollwise.agent.commands.results import CannotRun, read_progress, read_result
from pollwise.agent.folder import AgentFolder, is_id
from pollwise.agent.link import ControllerLink, JobNotOurs
from pollwise.agent.log import Log, Patience
from pollwise.agent.options import AgentOptions
from pollwise.errors import ConfigError, StoreUnavailable
from pollwise.queues.http.client import AnswerTooLarge, NoAnswer, RequestRefused
from pollwise.runtime import variables
from pollwise.runtime.clock import Clock
from pollwise.runtime.executor.threads import DaemonThreads
from pollwise.runtime.tracing import w3c

T = TypeVar("T")

logger = logging.getLogger("pollwise")

#: In seconds: the time limits for reading the files that a command left and for reading its
#: progress, and how long a report waits for the removal of its folder, which then goes on.
READ_WITHIN = 30.0
PROGRESS_WITHIN = 2.0
REMOVED_WITHIN = 5.0
#: How many threads a run uses: some may wait for ever for a file system of the command.
THREADS = 4
#: The maximum number of inputs of a job.
INPUTS_MAX = 10_000
#: How often an upload is tried when its connection is cut each time.
CUTS_MAX = 5


@dataclass(frozen=True)
class AgentJob:
    """A job as the controller hands it out. trace: the trace context of its put, if it is valid."""

    id: str
    kind: str
    payload: Any
    attempt: int
    attempts: int
    timeout: float | None
    inputs: tuple[str, ...]
    trace: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> AgentJob:
        """Raises `LookupError`, `TypeError` or `ValueError` for something else."""
        if not isinstance(given, dict) or not is_id(given["id"]):
            raise ValueError("this is not a job")
        timeout, headers = given.get("timeout_s"), given.get("headers")
        return cls(
            id=given["id"],
            kind=str(given.get("kind", "")),
            payload=given.get("payload"),
            attempt=int(given.get("attempt", 1)),
            attempts=int(given.get("attempts", 1)),
            timeout=None if timeout is None else float(timeout),
            inputs=tuple(map(str, given.get("inputs") or ())),
            trace=w3c.of(headers) if isinstance(headers, dict) else {},
        )


def token_file_of(options: AgentOptions) -> Path | None:
    """The file with the agent's token, if it is in a file."""
    token = options.token_file or os.environ.get(variables.TOKEN_FILE)
    return Path(token).absolute() if token else None


def sandbox_of(options: AgentOptions, folder: Path) -> Sandbox | None:
    """The sandbox of an agent with this folder: it hides other jobs, and the agent's token."""
    program = checked_sandbox(options.sandbox)
    if program is None:
        return None
    token = token_file_of(options)
    hidden = [folder, *([token] if token else [])]
    return Sandbox(program, hidden, tuple(options.sandbox_args))


#: Runs a job in its folder: the command, or something quicker in a test.
Execute = Callable[["AgentRun"], Awaitable[CommandResult]]


class Stopped(Exception):
    """The job was asked to end before its command began, or after it ended."""


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
        self.stop: Stop = Stop()
        self.began: float = clock.now()
        self.folder: Path = Path()
        self._options = options
        self._root = root
        self._link = link
        self._clock = clock
        self._execute = execute or AgentRun.command
        self._user = CommandUser.of(options.user)
        self._owner = None if self._user is None else self._user.uid
        self._log: Log | None = None
        self._input_room = options.input_limit
        self._threads = DaemonThreads(THREADS, f"pollwise-{work.id[:20]}")
        self._progress: dict[str, Any] = {}
        self._reading: asyncio.Future[dict[str, Any]] | None = None
        self._trouble = ""  # a transfer that the controller does not accept now
        self._slow = False  # the progress could not be read in time
        self._over = False

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
            except Exception as error:
                logger.exception("job %s: the agent failed", self.work.id)
                ended = CommandResult(None, f"the agent failed: {type(error).__name__}: {error}")
            report = await self.progress()  # its progress since the last poll
            if ended.why in ("lost", "given back"):
                return None
            if ended.exit_code is not None:
                report["exit_code"] = ended.exit_code
            if ended.why == "cancel":
                return {**report, "state": "cancelled"}
            if ended.error is not None:
                return {**report, "state": "failed", "error": ended.error}
            result = await self._result()
            return {**report, "state": "done", **({} if result is None else {"result": result})}
        except CannotRun as error:
            return {**report, "state": "failed", "error": str(error)}
        finally:
            if self._log is not None:
                await self._log.close()
            if not self._options.keep_folders and self.folder.name:
                loop = asyncio.get_running_loop()
                removing = loop.run_in_executor(self._threads, self._root.discard, self.folder)
                await asyncio.wait([removing], timeout=REMOVED_WITHIN)
            self._over = True
            self._threads.shutdown()

    @property
    def _timeout(self) -> float | None:
        """How long the command may run, in seconds."""
        limits = (self.work.timeout, self._options.timeout)
        return min((float(each) for each in limits if each is not None), default=None)  # type: ignore[arg-type]

    async def progress(self) -> dict[str, Any]:
        """The job and its progress, or the last that could be read in time."""
        if self.folder.name and not self._over:
            await self._read_progress()
        trouble = {"message": self._trouble[:500]} if self._trouble else {}
        return {"job_id": self.work.id, **self._progress, **trouble}

    async def _read_progress(self) -> None:
        loop, reading = asyncio.get_running_loop(), self._reading
        if reading is not None and not reading.done():
            if self._slow:
                return
            await asyncio.wait([reading], timeout=PROGRESS_WITHIN)
        if reading is None or reading.done():
            reading = loop.run_in_executor(self._threads, read_progress, self.folder, self._owner)
            self._reading = reading
            await asyncio.wait([reading], timeout=PROGRESS_WITHIN)
        self._slow = not reading.done()
        if not self._slow:
            self._progress = reading.result()

    async def command(self) -> CommandResult:
        """Run the agent's command for this job."""
        assert self._log is not None  # noqa: S101
        paths = {
            "{payload}": str(self.folder / "payload.json"),
            "{job_id}": self.work.id,
            "{inputs}": str(self.folder / "inputs"),
            "{out}": str(self.folder / "out"),
        }
        words = [paths.get(word, word) for word in self._options.command]
        sandbox = sandbox_of(self._options, self._root.path)
        if sandbox is not None:
            words = sandbox.words(words, self.folder)
        command = Command(
            words,
            self.folder,
            self._environ(),
            self._log.write,
            timeout=self._timeout,
            kill_after=self._options.span("kill_after"),
            user="" if self._user is None else self._user.words(),
        )
        return await command.run(self.stop)

    async def _work(self) -> CommandResult:
        self.folder = self._root.fresh(self.work.id, self.work.attempt)
        payload = json.dumps(self.work.payload, ensure_ascii=False)
        (self.folder / "payload.json").write_text(payload, encoding="utf-8")
        if len(self.work.inputs) > INPUTS_MAX:
            raise CannotRun(f"it has {len(self.work.inputs)} inputs; at most {INPUTS_MAX}")
        for name in self.work.inputs:
            await self._unless_stopped(self._fetched(name))
        log = self.folder / "log"
        self._log = Log(log, self._link, self.work.id, self._clock, self._timeout)
        if self._user is not None:
            self._user.give(self.folder)
        ended = await self._execute(self)
        if ended.why in ("lost", "given back"):
            return ended
        # The output of a cancelled or failed command is what people want to see most.
        if ended.error is not None and ended.exit_code is None:
            self._log.note(ended.error)
        out = self.folder / "out"
        made = await self._read("$POLLWISE_OUT", OutputFiles, out, self._options.artefacts)
        if ended.why is None:
            for line in made.left_out():
                self._log.note(line)
        await self._unless_stopped(self._log.end(), cancel_too=False)
        if ended.why is None:
            if made.too_many is not None:
                raise CannotRun(made.too_many)
            for name, parts in made.files.items():
                await self._unless_stopped(self._sent(name, parts))
        return ended

    async def _fetched(self, name: str) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
            raise CannotRun(f"the name of the input {name!r} leads out of its folder")
        to = self.folder / "inputs" / path
        try:
            what = f"the input {name!r} could not be fetched"
            await self._again(what, lambda: self._fetch(name, to))
        except AnswerTooLarge:
            raise CannotRun(
                f"the input {name!r} could not be fetched: the inputs of the job have more than "
                f"{self._options.input_limit} bytes together, or are compressed; the agent's "
                "option input_limit may be raised"
            ) from None
        except RequestRefused as refused:
            raise CannotRun(f"the input {name!r} could not be fetched: {refused}") from None

    async def _fetch(self, name: str, to: Path) -> None:
        self._input_room -= await self._link.fetch_input(self.work.id, name, to, self._input_room)

    async def _sent(self, name: str, parts: tuple[str, ...]) -> None:
        what = f"the artefact {name!r}"
        try:
            opened = partial(open_inside, self.folder, "out", *parts, owner=self._owner)
            with await self._read(what, opened) as file:
                await self._again(
                    f"{what} could not be sent",
                    lambda: self._link.send_artefact(self.work.id, name, file),
                    cuts_max=CUTS_MAX,
                )
        except OSError as error:
            raise CannotRun(f"{what} could not be read: {error.strerror}") from None
        except (RequestRefused, ConfigError) as refused:
            raise CannotRun(f"{what} could not be kept: {refused}") from None

    async def _again(
        self, what: str, call: Callable[[], Awaitable[None]], *, cuts_max: int | None = None
    ) -> None:
        """Repeat a call until it works, however long the network is down.

        If the controller answers, but only with errors (its disk is full), give up after the
        timeout of the job, counted from the first of these answers.

        cuts_max: raise `CannotRun` after the connection was cut this often before the answer. Some
            controllers and proxies refuse an upload only by cutting the connection.
        """
        failures = cuts = 0
        patience = Patience(self._timeout)
        while True:
            try:
                await call()
                self._trouble = ""
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
                if patience.over(error, self._clock.now()):
                    limit = f"within the timeout of {self._timeout:g} s"
                    raise CannotRun(f"{what} {limit}: {error}") from None
                self._trouble = "" if isinstance(error, NoAnswer) else f"{what}: {error}"
                await self._clock.sleep(patience.delay(failures))

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

    async def _result(self) -> Any:
        kind, owner = self.work.kind, self._owner
        return await self._read("result.json", read_result, self.folder, kind, owner)

    async def _read(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """Read something that the command left, in a thread: the system may not answer."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READ_WITHIN):
                return await loop.run_in_executor(self._threads, function, *args)
        except TimeoutError:
            raise CannotRun(f"{what} could not be read within {READ_WITHIN:g} s") from None

    def _environ(self) -> dict[str, str]:
        """The environment of the command: what is allowed of ours, and the job's variables."""
        environ = passed_environ(self._options.env, os.environ)
        if self._user is not None:
            environ |= self._user.environ()
        environ |= {name.upper(): text for name, text in self.work.trace.items()}
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
