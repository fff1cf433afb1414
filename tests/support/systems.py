"""Windows, simulated on Linux: a separate process without what Windows lacks.

Python's own modules are imported first, because they choose their code by the system too. Then
modules that only POSIX has cannot be imported any more, names that Windows lacks are deleted, and
event loops refuse what the usual one of Windows (proactor) refuses. `os.name` stays: with another
value, pathlib would make paths of Windows, which cannot open files here.
"""

from __future__ import annotations

import subprocess
import sys

#: Modules that Windows does not have, and psutil, which refuses a system that is not the real one.
MISSING_MODULES = (
    "fcntl",
    "grp",
    "psutil",
    "pty",
    "pwd",
    "resource",
    "syslog",
    "termios",
    "tty",
    "uvloop",
)
#: Names that these modules do not have on Windows.
MISSING_NAMES = {
    "os": (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "P_ALL",
        "WEXITED", "WNOHANG", "WNOWAIT", "chown", "chroot", "fchmod", "fchown", "fork", "forkpty",
        "getegid", "geteuid", "getgid", "getgrouplist", "getgroups", "getloadavg", "getpgid",
        "getpgrp", "getsid", "getuid", "initgroups", "killpg", "lchown", "mkfifo", "mknod", "nice",
        "openpty", "posix_fallocate", "pread", "pwrite", "register_at_fork", "sched_getaffinity",
        "sched_setaffinity", "sendfile", "set_blocking", "setgid", "setpgid", "setsid", "setuid",
        "statvfs", "sync", "sysconf", "uname", "wait", "waitid",
    ),
    "signal": (
        "ITIMER_REAL", "SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT",
        "SIGSTOP", "SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGXFSZ", "alarm", "pause",
        "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt", "sigwait",
    ),
    "socket": ("AF_UNIX", "CMSG_LEN", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_REUSEPORT"),
    "select": ("epoll", "poll"),
}  # fmt: skip

_PRELUDE = f"""
import asyncio, asyncio.subprocess, concurrent.futures.thread, ctypes, email.message, getpass
import click, dns.resolver, http.server, logging.handlers, multiprocessing.connection
import os, pathlib, platform, pydantic, random
import pydantic_settings, rich.console, rich.live, rich.markup
import select, selectors, shutil, signal
import socket, sqlite3, ssl, subprocess, sys, tempfile, typer, typer.testing, uuid, zoneinfo

MISSING = {MISSING_MODULES!r}

class OnlyPosix:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in [*sys.modules]:
    if name.partition(".")[0] in MISSING:
        del sys.modules[name]
sys.meta_path.insert(0, OnlyPosix())

pair, local = socket.socketpair, socket.AF_UNIX
def socketpair(family=None, *more):
    assert family is None, "Windows has no socketpair of a family"
    return pair(local, *more)
socket.socketpair = socketpair

async def no_program(self, *_, pass_fds=(), **__):
    assert not pass_fds, "pass_fds not supported on Windows."
    raise OSError("this simulation starts no programs")

class SelectorEventLoop(asyncio.SelectorEventLoop):
    def refuse(self, *_, **__):
        raise NotImplementedError
    add_signal_handler = remove_signal_handler = subprocess_exec = subprocess_shell = refuse

class ProactorEventLoop(SelectorEventLoop):
    add_reader = remove_reader = add_writer = remove_writer = SelectorEventLoop.refuse
    subprocess_exec = subprocess_shell = no_program

asyncio.SelectorEventLoop = SelectorEventLoop
class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = ProactorEventLoop

asyncio.ProactorEventLoop = ProactorEventLoop
asyncio.set_event_loop_policy(Policy())

for module, names in {MISSING_NAMES!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
signal.SIGBREAK = signal.SIGTTIN
ssl.enum_certificates = lambda store: []
sys.platform = "win32"
"""


def on_windows(code: str, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that looks like one on Windows."""
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + code, *words],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
