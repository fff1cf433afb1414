"""Processes: groups of them, their lives, what they may see of each other, and forks."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pollwise.platforms.system import is_linux, is_windows

# From <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
# The kernel kills a process with this score before its parent when memory runs out.
_OOM_SCORE = "500"
# From <processthreadsapi.h>.
_CREATE_NEW_PROCESS_GROUP = 0x200
_PROC = Path("/proc")


def own_group() -> dict[str, Any]:
    """The arguments that start a process in a group of its own, which Ctrl-C does not reach."""
    if is_windows():
        return {"creationflags": _CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def kill_group(leader: int) -> None:
    """Kill a process that was started with `own_group`, and all that are still in its group.

    Windows has no such groups: callers refuse to start there.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_all(pids: list[int]) -> None:
    """Kill processes. All are stopped first: while one runs, it may start more."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)


def may_be_alive(pid: int) -> bool:
    """False if no process of this machine has this id; True on Windows, which is not asked.

    There, `os.kill` would end the process.
    """
    if is_windows():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process of another user
        return True
    return True


def with_variable(mark: bytes) -> list[int]:
    """The processes whose environment has this variable, or one that goes on with '/' and more.

    mark: NAME=value. Only Linux shows the environment of a process; elsewhere none is found.
    """
    found = []
    for place in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            environ = (place / "environ").read_bytes()
            if any(each == mark or each.startswith(mark + b"/") for each in environ.split(b"\0")):
                found.append(int(place.name))
    return found


def die_with(parent: int) -> bool:
    """Have this process die when its parent does, even if that is killed (Linux).

    False if the parent is dead already.
    """
    if is_linux():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        with suppress(OSError):
            (_PROC / "self" / "oom_score_adj").write_text(_OOM_SCORE)
    return os.getppid() == parent


def hide_memory() -> None:
    """Keep other processes of this user from reading our memory and environment (Linux)."""
    if is_linux():
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def at_fork(**calls: Callable[[], object]) -> None:
    """Call functions at forks, as `os.register_at_fork` does; Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)


def cpu_count() -> int:
    """How many CPUs this process may use; all of the machine where that is not known."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
