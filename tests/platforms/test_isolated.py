"""What only some systems have is used in `pollwise.platforms` alone.

A script that runs as a program of its own and may import nothing of Pollwise keeps what it needs;
so does the agent, which refuses to start on Windows, for what Linux and macOS have in common.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

from tests.support.systems import MISSING_NAMES
from tests.test_architecture import sources

#: Modules whose every use depends on the system.
MODULES = frozenset(
    ("fcntl", "grp", "msvcrt", "pty", "pwd", "resource", "signal", "syslog", "termios", "tty",
     "winreg")
)  # fmt: skip
#: Names that not every system has, or that mean different things, by module.
NAMES = {
    "os": frozenset((*MISSING_NAMES["os"], "O_BINARY", "kill", "name", "umask")),
    "sys": frozenset(("platform", "getwindowsversion")),
    "socket": frozenset((*MISSING_NAMES["socket"], "TCP_KEEPCNT", "TCP_KEEPIDLE", "TCP_KEEPINTVL")),
    "select": frozenset((*MISSING_NAMES["select"], "kqueue")),
}
METHODS = frozenset(("add_signal_handler", "remove_signal_handler", "chmod"))
KEYWORDS = frozenset(("start_new_session", "preexec_fn", "process_group", "creationflags"))
PATHS = ("/proc/", "/sys/", "/dev/tty")

#: Where some of it is allowed all the same, and why.
ALLOWED: Mapping[str, frozenset[str]] = {
    # Programs of their own. They import nothing of Pollwise: one for safety, one to start quickly.
    "pollwise.agent.commands.supervisor": frozenset(
        ("signal", "sys.platform", "/proc/", *(f"os.{each}" for each in NAMES["os"]))
    ),
    "pollwise.fleet.probes.html.child": frozenset(("resource",)),
    # Parts of the agent.
    "pollwise.agent.commands.command": frozenset(("os.set_blocking",)),
    "pollwise.agent.commands.confinement": frozenset(("/proc/",)),  # in the sandbox
    "pollwise.agent.commands.files": frozenset(("os.chmod", "os.fchmod")),
    "pollwise.agent.commands.results": frozenset(("os.pread",)),
    "pollwise.agent.folder": frozenset(("chmod",)),
    "pollwise.agent.link": frozenset(("os.pread",)),
    "pollwise.agent.log": frozenset(("os.pread", "os.pwrite")),
}


def uses(source: str) -> Iterator[tuple[int, str]]:
    """What a module uses that differs between systems, with the lines."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from ((line, each.name) for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module in MODULES:
                yield line, node.module
            names = NAMES.get(node.module, frozenset())
            yield from (
                (line, f"{node.module}.{each.name}") for each in node.names if each.name in names
            )
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in NAMES.get(of, ()):
                yield line, f"{of}.{node.attr}"
            elif node.attr in METHODS:
                yield line, f"{of}.{node.attr}" if of == "os" else node.attr
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            yield node.value.lineno, node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((line, path) for path in PATHS if f"{node.value}/".startswith(path))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            of, name = map(ast.unparse, node.args[:2])
            if name[1:-1] in NAMES.get(of, ()):
                yield line, f"{of}.{name[1:-1]}"


def problems(modules: Mapping[str, str]) -> list[str]:
    return [
        f"{module}:{line} uses {what}, which is not the same on Linux, macOS and Windows: use "
        "pollwise.platforms"
        for module, source in modules.items()
        if not module.startswith("pollwise.platforms.")
        for line, what in uses(source)
        if what not in ALLOWED.get(module, ())
    ]


def test_only_platforms_asks_which_system_it_is() -> None:
    found = problems(sources())
    assert not found, "\n".join(found)


def test_every_exception_is_needed() -> None:
    modules = sources()
    for module, allowed in ALLOWED.items():
        used = {what for _, what in uses(modules[module])}
        assert used & allowed, f"{module} uses nothing of {sorted(allowed)}"
        if not module.endswith("supervisor"):
            assert allowed <= used, f"{module} does not use {sorted(allowed - used)}"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import fcntl", "fcntl"),
        ("def f():\n  import resource", "resource"),
        ("from signal import SIGTERM", "signal"),
        ("import os\nos.kill(1, 0)", "os.kill"),
        ("from os import getuid", "os.getuid"),
        ("import os\nhasattr(os, 'register_at_fork')", "os.register_at_fork"),
        ("import os\ngetattr(os, 'O_NOFOLLOW', 0)", "os.O_NOFOLLOW"),
        ("import sys\nif sys.platform == 'win32': ...", "sys.platform"),
        ("import socket\nsocket.AF_UNIX", "socket.AF_UNIX"),
        ("loop.add_signal_handler(15, f)", "add_signal_handler"),
        ("Path('x').chmod(0o600)", "chmod"),
        ("run(['x'], start_new_session=True)", "start_new_session"),
        ("open('/proc/self/statm')", "/proc/"),
        ("Path('/proc')", "/proc/"),
    ],
)
def test_a_use_elsewhere_is_seen(source: str, what: str) -> None:
    (found,) = problems({"pollwise.runtime.loop": source})
    assert f"uses {what}," in found
    assert problems({"pollwise.platforms.system": source}) == []


def test_a_common_name_is_no_problem() -> None:
    source = "import os, sys\nos.getpid()\nsys.argv\nopen('/dev/null')\nsend(signals=True)"
    assert problems({"pollwise.runtime.loop": source}) == []
