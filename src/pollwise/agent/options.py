"""The options of an agent, checked before anything starts."""

from __future__ import annotations

import difflib
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pollwise.agent.commands.confinement import CommandUser, checked_pattern, checked_sandbox
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.queues.http.client import checked_base
from pollwise.runtime.jobs import checked_name

#: Arguments that are replaced by a part of the job.
PLACEHOLDERS = ("{payload}", "{job_id}", "{inputs}", "{out}")
#: The most jobs at a time.
SLOTS_MAX = 1000
#: The most bytes of all inputs of a job together, unless the option says otherwise.
INPUT_LIMIT = 4 * 1024**3
#: The longest timeout of a job, in seconds.
TIMEOUT_MAX = 7 * 86400.0
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")


@dataclass(frozen=True)
class AgentOptions:
    """How an agent works. Durations are seconds, or text such as "2m".

    controller: its address.
    command: the program and its arguments; the arguments `{payload}`, `{job_id}`, `{inputs}` and
        `{out}` are replaced by the payload's file, the job's id and its folders.
    token_file: the file that holds a token with the scope worker.
    ca_file: certificates to trust in addition to the usual ones, in PEM.
    name: the name that people see; by default the host's name.
    capabilities: what jobs may require.
    slots: how many jobs run at a time.
    artefacts: patterns of the files in the folder `out` to upload.
    input_limit: the most bytes of all inputs of a job together.
    timeout: how long a command may run, unless its job allows less.
    poll_interval: how often to poll after a poll that found a job, longer while polls find none; by
        default as the controller suggests. An open WebSocket makes most polls unnecessary: then an
        idle agent polls once a minute.
    max_interval: the longest pause of an idle agent without a WebSocket.
    grace: how long a stop waits for commands before it gives their jobs back.
    kill_after: how long a command may take to end after SIGTERM.
    folder: for the folders of jobs, and reports until they are accepted.
    env: names or patterns of more variables that commands get from the agent's environment, such
        as "JAVA_*". They get only a few, such as PATH, HOME and LANG, without it.
    user: the user that runs commands; the agent must be root.
    sandbox: "bwrap" runs each command in bubblewrap. sandbox_args: more arguments for it.
    push: open a WebSocket for hints.
    keep_folders: keep the folders of ended jobs, to inspect them.
    signals: stop on SIGTERM, SIGINT and SIGHUP, unless the program handles them itself.
    """

    controller: str
    command: Sequence[str]
    token_file: str | Path | None = None
    name: str = field(default_factory=socket.gethostname)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 1
    artefacts: Sequence[str] = ("**/*",)
    timeout: Duration | None = None
    poll_interval: Duration | None = None
    max_interval: Duration = 120.0
    grace: Duration = 30.0
    kill_after: Duration = 10.0
    folder: str | Path | None = None
    env: Sequence[str] = ()
    user: str | None = None
    sandbox: str | None = None
    sandbox_args: Sequence[str] = ()
    push: bool = True
    keep_folders: bool = False
    ca_file: str | Path | None = None
    signals: bool = True
    input_limit: int = INPUT_LIMIT

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "controller", checked_base(self.controller))
        put(self, "command", tuple(_checked_command(self.command)))
        put(self, "name", checked_name(self.name, "name", ConfigError))
        if isinstance(self.slots, bool) or not 1 <= self.slots <= SLOTS_MAX:
            raise ConfigError(
                f"slots = {self.slots!r} must be a whole number from 1 to {SLOTS_MAX}"
            )
        if isinstance(self.input_limit, bool) or not self.input_limit >= 0:
            raise ConfigError(f"input_limit = {self.input_limit!r} must be a number of bytes")
        put(self, "max_interval", seconds(self.max_interval, "max_interval", positive=True))
        for name in ("grace", "kill_after"):
            put(self, name, seconds(getattr(self, name), name))
        if self.poll_interval is not None:
            interval = seconds(self.poll_interval, "poll_interval", positive=True)
            if interval > self.span("max_interval"):
                raise ConfigError(
                    f"poll_interval = {interval:g} s is above max_interval = "
                    f"{self.max_interval:g} s; lower it, or raise max_interval"
                )
            put(self, "poll_interval", interval)
        if self.timeout is not None:
            limit = seconds(self.timeout, "timeout", positive=True)
            if limit > TIMEOUT_MAX:
                raise ConfigError(f"timeout = {self.timeout!r} is above the limit of 7 days")
            put(self, "timeout", limit)
        put(self, "artefacts", tuple(map(_checked_pattern, self.artefacts)))
        put(self, "env", tuple(map(checked_pattern, self.env)))
        CommandUser.of(self.user)
        checked_sandbox(self.sandbox)
        if self.sandbox_args and self.sandbox is None:
            raise ConfigError("sandbox_args are for a sandbox; set sandbox = 'bwrap' as well")

    def span(self, name: str) -> float:
        """A duration, in seconds."""
        return float(getattr(self, name))


def _checked_command(command: Sequence[str]) -> list[str]:
    """The command with the absolute path of its program: jobs run in folders of their own."""
    words = list(command)
    if not words or not words[0]:
        raise ConfigError(
            "there is no command; write it after two dashes: "
            "pollwise agent --controller URL --token-file F -- ./build.sh {payload}"
        )
    for word in words:
        if "\0" in word:
            raise ConfigError("an argument of the command contains a NUL character")
        inside = next((each for each in PLACEHOLDERS if each in word and each != word), None)
        if inside is not None:
            raise ConfigError(
                f"{word!r} contains {inside}, which must be a separate argument; write it as one, "
                "or use the environment (POLLWISE_PAYLOAD, POLLWISE_JOB_ID, POLLWISE_INPUTS, "
                "POLLWISE_OUT) in a script"
            )
        if _PLACEHOLDER.fullmatch(word) and word not in PLACEHOLDERS:
            near = difflib.get_close_matches(word, PLACEHOLDERS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(PLACEHOLDERS)}"
            raise ConfigError(f"{word} is not a placeholder; {hint}")
    found = shutil.which(words[0])
    if found is None:
        raise ConfigError(
            f"the command {words[0]!r} does not exist or is not executable; give a program on "
            "PATH, or the path of one (chmod +x)"
        )
    return [str(Path(found).absolute()), *words[1:]]


def _checked_pattern(pattern: str) -> str:
    parts = Path(pattern).parts
    if not pattern or Path(pattern).is_absolute() or ".." in parts:
        raise ConfigError(
            f"artefacts = {pattern!r} must be a pattern within the folder `out`, such as '*.zip' "
            "or '**/*'"
        )
    return pattern
