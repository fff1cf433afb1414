"""Each concern on a system that lacks something: names are taken away, or fakes put in place."""

from __future__ import annotations

import asyncio
import getpass
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pollwise.errors import ConfigError
from pollwise.platforms import (
    files,
    limits,
    loops,
    processes,
    signals,
    sockets,
    system,
    terminal,
    users,
    watching,
)
from pollwise.runtime.hints import Hint
from pollwise.sources.folder import FolderHints
from pollwise.storage.sqlite import file_hints

SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}


@pytest.fixture(params=SYSTEMS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the system that this process now seems to run on."""
    monkeypatch.setattr(sys, "platform", request.param)
    return SYSTEMS[request.param]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def test_a_system_is_one_of_three(name: str) -> None:
    found = [system.is_linux(), system.is_macos(), system.is_windows()]
    assert found == [name == each for each in ("Linux", "macOS", "Windows")]
    assert watching.can_watch() == (name == "Linux")


def test_a_refusal_names_what_and_what_to_do(name: str) -> None:
    if name != "Windows":
        system.not_on_windows("--processes 2", "start it twice")
        system.agents_run_here()
        return
    with pytest.raises(ConfigError, match=r"^--processes 2 needs Linux .* Windows; start it twice"):
        system.not_on_windows("--processes 2", "start it twice")
    with pytest.raises(ConfigError, match="an agent needs Linux or macOS"):
        system.agents_run_here()


# Signals


def test_a_loop_that_cannot_watch_for_signals_says_so() -> None:
    deaf = Mock()
    deaf.add_signal_handler.side_effect = deaf.remove_signal_handler.side_effect = (
        NotImplementedError
    )
    assert not signals.wake(deaf, signals.TERMINATE, print)
    signals.do_not_wake(deaf, signals.TERMINATE)
    deaf.remove_signal_handler.assert_called_once_with(signal.SIGTERM)

    async def main() -> None:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        assert signals.wake(loop, signals.TERMINATE, came.set)
        signals.send_to_self(signals.TERMINATE)
        await came.wait()
        signals.do_not_wake(loop, signals.TERMINATE)

    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_names_of_signals() -> None:
    assert signals.name_of(9) == "SIGKILL"
    assert signals.name_of(199) == "signal 199"


def test_a_wait_for_a_lock_is_short_where_ctrl_c_does_not_end_it(name: str) -> None:
    assert signals.lock_wait_max() == (0.5 if name == "Windows" else 86_400)


# Processes


def test_a_group_of_its_own(name: str) -> None:
    expected = {"creationflags": 0x200} if name == "Windows" else {"start_new_session": True}
    assert processes.own_group() == expected


def test_on_windows_nobody_is_killed_to_see_whether_they_live(
    windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: int) -> None:
        pytest.fail("os.kill would have ended the process")

    monkeypatch.setattr(os, "kill", kill)
    assert processes.may_be_alive(1 << 22)


def test_who_is_alive() -> None:
    assert processes.may_be_alive(os.getpid())
    assert not processes.may_be_alive((1 << 22) + 1)  # above the highest id of Linux


def test_processes_are_not_found_where_there_is_no_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (variable,) = (each for each in [b"PATH=" + os.fsencode(os.environ["PATH"])])
    assert os.getpid() in processes.with_variable(variable)
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    assert processes.with_variable(variable) == []


@pytest.mark.parametrize("call", [processes.hide_memory, lambda: processes.die_with(os.getppid())])
def test_no_call_of_the_kernel_of_linux_elsewhere(
    call: Callable[[], object], macos: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_: pytest.fail("macOS has no prctl"))
    assert call() in (None, True)


def test_without_forks_nothing_is_called_at_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    processes.at_fork(after_in_child=lambda: None)


def test_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.cpu_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processes.cpu_count() == 1


# Limits


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """`import module` fails."""
    monkeypatch.setitem(sys.modules, module, None)


def test_memory_is_not_known_without_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "resource")
    assert limits.resident_bytes() == 0
    limits.allow_open_files()  # nothing to raise
    monkeypatch.delattr(os, "nice")
    limits.limit_this_process(memory=1, cpu_seconds=1)


def test_memory_without_proc_is_the_peak(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_STATM", Path("/nowhere"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert limits.resident_bytes() >= peak * (1 if name == "macOS" else 1024)
    assert (limits.resident_bytes() < peak * 1024) == (name == "macOS")


def test_a_limit_that_is_refused_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def setrlimit(which: int, values: tuple[int, int]) -> None:
        if which == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        made.append((which, values))

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    limits.limit_this_process(memory=1 << 30, cpu_seconds=5)
    assert made == [(resource.RLIMIT_CPU, (5, 6)), (resource.RLIMIT_CORE, (0, 0))]


@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, 1 << 20, 4096])
def test_macos_allows_fewer_open_files_than_it_says(
    hard: int, macos: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: made.append(values))
    limits.allow_open_files()
    assert made == [(4096 if hard == 4096 else 10_240, hard)]


# Files and users


def test_modes_mean_nothing_on_windows(name: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("x")
    path.chmod(0o644)
    assert files.may_be_used_by_others(path.stat().st_mode) == (name != "Windows")
    files.set_mode(path, 0o600)
    assert path.stat().st_mode & 0o777 == (0o644 if name == "Windows" else 0o600)


def test_a_private_file_without_fchmod(
    windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fchmod")
    files.create_private(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        files.create_private(tmp_path / "a")


def test_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "lock").open("wb") as first, (tmp_path / "lock").open("wb") as second:
        assert files.lock(first)
        assert not files.lock(second)
        monkeypatch.setattr(files, "fcntl", None)
        with pytest.raises(ConfigError, match="a lock of a file needs Linux or macOS"):
            files.lock(second)


def test_users_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    about = os.stat_result((0o600, 0, 0, 1, os.getuid() + 1, 0, 0, 0, 0, 0))
    assert not users.is_ours(about)
    for each in ("getuid", "geteuid"):
        monkeypatch.delattr(os, each)
    monkeypatch.setattr(users, "pwd", None)
    assert users.is_ours(about)
    assert not users.is_root()
    with pytest.raises(ConfigError, match="user = 'ci' needs Linux or macOS"):
        users.named("ci")


@pytest.mark.parametrize("error", [KeyError, OSError, ImportError])
def test_a_user_without_a_name(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def getuser() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", getuser)
    assert users.who_am_i() == f"uid {os.getuid()}"
    monkeypatch.delattr(os, "getuid")
    assert users.who_am_i() == "an unknown user"


# Watching


class Heard(FolderHints):
    """Counts changes."""

    count = 0

    def _changed(self) -> None:
        self.count += 1
        super()._changed()


async def paused(hints: Heard, change: Callable[[], object]) -> None:
    """A pause that a change of a file ends."""
    hints.opened()
    hint = Hint()
    hints.join(hint)
    hints.asleep(hint)
    waiting = asyncio.ensure_future(hint.wait(30))
    await asyncio.sleep(0)
    change()
    assert await waiting


@pytest.mark.parametrize("on", ["darwin", "win32"])
def test_time_stamps_are_compared_where_no_kernel_reports_changes(
    on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", on)
    monkeypatch.setattr(file_hints, "inotify", lambda *_: pytest.fail("only Linux has inotify"))

    async def main() -> int:
        hints = Heard([tmp_path], 0.001)
        await paused(hints, (tmp_path / "a").touch)
        hints.close()
        return hints.count

    assert asyncio.run(main()) == 1


def test_a_fake_watcher_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    asked = []

    def inotify(paths: list[Path], events: int) -> int:
        asked.append((paths, events))
        return read

    monkeypatch.setattr(file_hints, "inotify", inotify)

    async def main() -> int:
        hints = Heard([tmp_path], 3600)
        await paused(hints, lambda: os.write(write, b"an event"))
        hints.close()  # closes the watcher, too
        return hints.count

    assert asyncio.run(main()) == 1
    os.close(write)
    assert asked == [([tmp_path], watching.MOVED_TO | watching.CREATED | watching.WRITTEN)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


# Sockets and the terminal


def test_without_local_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    monkeypatch.delattr(select, "poll")
    assert not sockets.has_local_sockets()
    assert not sockets.can_poll()
    for call in (sockets.local_datagrams, sockets.local_datagram_pair):
        with pytest.raises(ConfigError, match="a local socket needs Linux or macOS"):
            call()


def test_systemd_is_not_told_where_there_are_no_local_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pollwise.observe.health.systemd import Notifier

    environ = {"NOTIFY_SOCKET": "/run/notify"}
    monkeypatch.delattr(socket, "AF_UNIX")
    assert Notifier.from_environment(environ) is None
    assert environ == {}


def test_keepalive_has_another_name_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = sockets.keepalive(60, 15, 4)
    assert usual == {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 0x10, raising=False)
    monkeypatch.delattr(socket, "TCP_KEEPCNT")
    assert sockets.keepalive(60, 15, 4) == {0x10: 60, socket.TCP_KEEPINTVL: 15}


def test_no_terminal_where_it_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: Any) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", no)
    assert not terminal.has_terminal()


# Event loops


@pytest.mark.parametrize("installed", [True, False])
def test_the_loop_of_commands(name: str, installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "find_spec", lambda _: object() if installed else None)
    selector = name == "Windows" and installed
    assert loops.factory() is (asyncio.SelectorEventLoop if selector else None)
    if name == "Windows":
        assert loops.fast_factory() is loops.factory()
    else:
        assert loops.fast_factory() is not None  # uvloop is installed here


def test_programs_are_refused_with_a_reason() -> None:
    assert "a probe of HTML starts a process" in str(loops.no_programs("a probe of HTML"))
