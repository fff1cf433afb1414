"""Runs one command and ends every process that it started. A script, started for each job.

    python -I -S supervisor.py CONTROL STATUS USER command...

It adopts the processes that the command leaves behind, also those in a session of their own
(Linux). It kills them when the command has ended, when the agent asks for it, and when the agent
is gone.

CONTROL: a pipe from the agent. T sends SIGTERM to all processes; its end means: kill them.
STATUS: a pipe to the agent, for JSON: `code` as subprocess has it, or the `error` of the start;
    `left`, how many processes could not be killed.
USER: "", or "uid:gid:name" of the user for the command.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

# How long killed processes may take to disappear, in seconds, and how often to look.
KILL_WITHIN = 5.0
LOOK_EVERY = 0.005
# From <linux/prctl.h>.
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
# The kernel kills the command before the agent when memory runs out.
OOM_SCORE = b"500"


def main(control: int, status: int, user: str, words: list[str]) -> None:
    for pipe in (control, status):
        os.set_inheritable(pipe, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    for pipe in (woken, wake):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _become(status, user, words)
    # The command, if it runs as the same user, reads and changes nothing here.
    _prctl(PR_SET_DUMPABLE, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    code = _wait(child, control, woken, spare=words[0].endswith("/bwrap"))
    code, left = _end_all(child, code)
    with contextlib.suppress(OSError):  # the agent is gone
        os.write(status, json.dumps({"code": code, "left": left}).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(status: int, user: str, words: list[str]) -> None:
    """The new process: become the command."""
    try:
        os.setsid()
        with contextlib.suppress(OSError):
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC), OOM_SCORE)
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        if user:
            uid, gid, name = user.split(":", 2)
            os.initgroups(name, int(gid))
            os.setgid(int(gid))
            os.setuid(int(uid))
        os.execv(words[0], words)  # noqa: S606
    except OSError as error:
        os.write(status, json.dumps({"error": str(error)}).encode() + b"\n")
    finally:
        os._exit(127)


def _wait(child: int, control: int, woken: int, spare: bool) -> int | None:
    """Wait for the end of the command; its code, or None if it has to be killed.

    spare: SIGTERM is not for the first process, which would end those inside at once.
    """
    while True:
        for pid, code in _ended():
            if pid == child:
                return code
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        if control in ready:
            if not os.read(control, 64):
                return None
            _terminate(child, spare)


def _ended() -> list[tuple[int, int]]:
    """The children that have ended, with their codes."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


def _end_all(child: int, code: int | None) -> tuple[int | None, int]:
    """Kill all that is left; the code of the command, and how many could not be killed."""
    until = time.monotonic() + KILL_WITHIN
    while _has_children():
        # All are stopped first: while one runs, it may start more than are killed.
        stopped: set[int] = set()
        while (fresh := _descendants() - stopped) and time.monotonic() < until:
            for pid in fresh:
                _send(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            _send(pid, signal.SIGKILL)
        _signal_group(child, signal.SIGKILL)
        for pid, ended in _ended():
            if pid == child:
                code = ended
        if time.monotonic() > until:
            break
        if _has_children():
            time.sleep(LOOK_EVERY)
    else:
        _signal_group(child, signal.SIGKILL)  # where orphans are not adopted
        return code, 0
    return code, len(_descendants())


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _terminate(child: int, spare: bool) -> None:
    """Send SIGTERM to the group of the command, and to what has left the group."""
    found = _descendants()
    if not spare:
        found = {pid for pid in found if _group(pid) != child}
        _signal_group(child, signal.SIGTERM)
    for pid in found - {child}:
        _send(pid, signal.SIGTERM)


def _descendants() -> set[int]:
    """Our children and theirs, as far as the system shows them."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for pid in (int(entry.name) for entry in entries if entry.name.isdigit()):
            with contextlib.suppress(OSError, IndexError):
                children.setdefault(_parent(pid), []).append(pid)
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _parent(pid: int) -> int:
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return int(os.read(file, 4096).rpartition(b")")[2].split()[1])
    finally:
        os.close(file)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
