"""What a command gets of the machine: variables of the environment, a user, a sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.platforms import users

#: The variables that every command gets; others are named by the option `env`.
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM",
          "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")  # fmt: skip
#: How long the sandbox may take to start once, in seconds.
SANDBOX_WITHIN = 30.0

_BWRAP = (
    "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
    "--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run",  # noqa: S108
    "--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve",
)  # fmt: skip


def checked_pattern(pattern: str) -> str:
    """A name of a variable, or a pattern of names."""
    if not pattern or "=" in pattern or "\0" in pattern:
        raise ConfigError(
            f"env = {pattern!r} must be the name of a variable, or a pattern such as 'JAVA_*'; "
            "values come from the environment of the agent"
        )
    return pattern


def passed_environ(patterns: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the agent's environment that a command gets; never Pollwise's own variables."""
    allowed = (*PASSED, *patterns)
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("POLLWISE_") and any(fnmatchcase(name, each) for each in allowed)
    }


@dataclass(frozen=True)
class CommandUser:
    """The user that runs commands."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str

    @classmethod
    def of(cls, name: str | None) -> CommandUser | None:
        """The user of this name; None for the agent's own."""
        if name is None:
            return None
        try:
            found = users.named(name)
        except (KeyError, ValueError):
            raise ConfigError(f"user = {name!r} does not exist on this machine") from None
        if not users.is_root():
            raise ConfigError(
                f"user = {name!r}: only root can run commands as another user; start the agent as "
                "root, or as that user and without this option"
            )
        return cls(name, found.pw_uid, found.pw_gid, found.pw_dir, found.pw_shell)

    def environ(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}

    def words(self) -> str:
        """For the supervisor."""
        return f"{self.uid}:{self.gid}:{self.name}"

    def give(self, folder: Path) -> None:
        """Make the user the owner of a folder and all that is in it; of the folder last.

        Until then it cannot be entered: another command of this user would change what is in it.
        """
        for at, folders, files in os.walk(folder, topdown=False):
            for name in (*folders, *files):
                users.give(Path(at, name), self.uid, self.gid)
        users.give(folder, self.uid, self.gid)

    def check_reach(self, folder: Path) -> None:
        """Raise if the user cannot enter a folder above this one."""
        groups = users.groups_of(self.name, self.gid)
        for each in folder.resolve().parents:
            found = each.stat()
            owner, group = found.st_uid == self.uid, found.st_gid in groups
            needed = 0o100 if owner else 0o010 if group else 0o001
            if not found.st_mode & needed:
                raise ConfigError(
                    f"user = {self.name!r} cannot reach the folder {str(folder)!r}, because it "
                    f"may not enter {str(each)!r}; choose another folder with --folder"
                )

    def check_closed(self, token: Path | None) -> None:
        """Raise if the user owns the token file, and so can read it whatever its mode is."""
        if token is not None and token.exists() and token.stat().st_uid == self.uid:
            raise ConfigError(
                f"the token file {str(token)!r} belongs to the user {self.name!r}, who runs "
                f"commands and can read it; run `chown root {token}`, and replace the token if a "
                "command may have read it"
            )


def checked_sandbox(sandbox: str | None) -> str | None:
    """The path of the sandbox's program; None without one."""
    if sandbox is None:
        return None
    if sandbox != "bwrap":
        raise ConfigError(f"sandbox = {sandbox!r} is not known; the only one is bwrap (bubblewrap)")
    found = shutil.which("bwrap")
    if found is None:
        raise ConfigError(
            "sandbox = 'bwrap' needs the program bwrap, which was not found on PATH; install "
            "bubblewrap (apt-get install bubblewrap), or leave this option out"
        )
    return str(Path(found).absolute())


@dataclass(frozen=True)
class Sandbox:
    """bubblewrap for commands: the machine is read-only, and other processes are invisible.

    hidden: folders and files that commands must not see. more: further arguments for bwrap.
    """

    program: str
    hidden: Sequence[Path] = ()
    more: Sequence[str] = ()

    def words(self, command: Sequence[str], folder: Path) -> list[str]:
        """The command line that runs a command of a job with this folder."""
        words = [self.program, *_BWRAP]
        for path in self.hidden:
            if path.is_dir():
                words += ["--tmpfs", str(path)]
            elif path.exists():
                words += ["--ro-bind", os.devnull, str(path)]
        program = command[0]  # which may lie in a folder that is hidden
        return [
            *words, "--ro-bind", program, program, "--bind", str(folder), str(folder),
            "--chdir", str(folder), *self.more, "--", *command,
        ]  # fmt: skip

    def check(self, folder: Path, user: CommandUser | None) -> None:
        """Raise if bwrap cannot make a sandbox on this machine."""
        as_user = {} if user is None else {"user": user.uid, "group": user.gid}
        true = shutil.which("true") or "/bin/true"
        try:
            ended = subprocess.run(  # noqa: S603
                self.words([true], folder), capture_output=True, timeout=SANDBOX_WITHIN,
                check=False, **as_user,  # type: ignore[call-overload]
            )  # fmt: skip
            said = ended.stderr.decode(errors="replace").strip()
            failed = f"exit code {ended.returncode}: {said}" if ended.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            failed = str(error)
        if failed:
            raise ConfigError(
                f"sandbox = 'bwrap' does not work on this machine ({failed}); allow user "
                "namespaces, correct --sandbox-arg, or leave this option out"
            )
