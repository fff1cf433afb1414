"""What the benchmarks share: arguments, the machine, peers' environments, processes, goals.

A benchmark is a script in this folder, run by `make bench` or by itself. Its first lines are

    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks import common

so that this folder, which may contain a `redis.py` one day, hides no package of that name.

The measured programs run in child processes. The script blocks on their pipes, so that it takes no
CPU time from them. A child is ended by its own pid, whatever happens to the script.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import select
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = HERE / "peers"
#: File systems in memory: an fsync costs nothing there, so measurements there do not count.
IN_MEMORY = {"tmpfs", "ramfs"}

Plain = dict[str, Any]


# Arguments, and the end of the results


@dataclass(frozen=True)
class Options:
    quick: bool
    json: Path | None
    folder: Path | None = None
    out: Path | None = None


def options(description: str, *, traces: bool = False) -> Options:
    """The options of every benchmark. SIGTERM ends it like Ctrl-C, with its children.

    traces: it also takes a folder of traces, and where to draw a picture.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if traces:
        parser.add_argument("folder", type=Path, nargs="?", help="a folder of traces")
        parser.add_argument("--out", type=Path, metavar="FILE", help="draw an SVG there")
    parser.add_argument("--quick", action="store_true", help="a short run, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    extra = (given.folder, given.out) if traces else ()
    return Options(given.quick, given.json, *extra)


def parser(description: str | None, sections: Sequence[str]) -> argparse.ArgumentParser:
    """The options of a benchmark with several sections. SIGTERM ends it like Ctrl-C."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="a short run, about a minute")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    made.add_argument("--only", metavar="NAMES", help=f"only these of {','.join(sections)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return made


def listed(
    parser: argparse.ArgumentParser, option: str, text: str | None, known: Sequence[str]
) -> list[str] | None:
    """The comma-separated names that an option was given; None without the option."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            parser.error(f"{option} {name!r}: the names are {', '.join(known)}")
    return names


def traces_folder() -> Path | None:
    """The folder of traces that the environment names, for `make bench`."""
    named = os.environ.get("POLLWISE_TRACES")
    return Path(named) if named else None


@dataclass(frozen=True)
class Goal:
    """A goal and what was measured. least: the goal is a minimum, not a maximum."""

    name: str
    measured: float
    goal: float
    unit: str
    least: bool = False

    @property
    def reached(self) -> bool:
        return self.measured >= self.goal if self.least else self.measured <= self.goal

    def columns(self) -> tuple[str, str, str, str]:
        sign = ">=" if self.least else "<="
        return (
            self.name,
            f"{self._shown()} {self.unit}",
            f"{sign} {self.goal:g} {self.unit}",
            "reached" if self.reached else "short",
        )

    def _shown(self) -> str:
        """Three digits, or more where a near miss would look like the goal."""
        for digits in range(3, 9):
            shown = number(self.measured, digits)
            if self.measured == self.goal or float(shown.replace(",", "")) != self.goal:
                return shown
        return repr(self.measured)

    def facts(self) -> Plain:
        return {
            "name": self.name,
            "measured": self.measured,
            "goal": self.goal,
            "unit": self.unit,
            "at": "least" if self.least else "most",
            "reached": self.reached,
        }


def finish(facts: Plain, goals: Sequence[Goal], target: Path | None) -> None:
    """Print one line per goal, the last lines of every benchmark, and write the JSON."""
    heading("Goals")
    for line in aligned([goal.columns() for goal in goals]):
        print(line)
    if target is not None:
        whole = facts | {"goals": [goal.facts() for goal in goals]}
        target.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns: the first to the left, the others to the right."""
    for line in aligned([head, *rows], right=True):
        print(line)
    sys.stdout.flush()


def aligned(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


# Numbers


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def number(value: float, digits: int = 3) -> str:
    """`digits` significant digits, never in powers of ten: 12,345 and 1.23 and 0.0123."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, 0)}f}"


def loss(what: str, peer: str, theirs: float, mine: float, unit: str) -> str:
    """A line about where a peer is better."""
    return f"{what}: {peer}, {number(theirs)} against {number(mine)} {unit}"


def each(values: Sequence[float]) -> str:
    return " ".join(number(value) for value in values)


# Where and with what


def machine(folder: Path) -> dict[str, str]:
    """The properties of the machine that affect the figures; `folder` is where it measures."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "cpu": _first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if _LINUX else os.cpu_count()),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": filesystem(folder),
        "load": f"{load} (1, 5 and 15 minutes, before the start)",
    }


def versions(**more: str) -> dict[str, str]:
    """The versions of Python, SQLite and Pollwise, and those given."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "python": python,
        "sqlite": sqlite3.sqlite_version,
        "pollwise": version("pollwise"),
        **more,
    }


def show(*facts: Mapping[str, str]) -> None:
    pairs = [pair for each_of in facts for pair in each_of.items()]
    for line in aligned(pairs):
        print(line)
    sys.stdout.flush()


def filesystem(folder: Path) -> str:
    """The kind of file system that a folder is on."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "an unknown file system"
    place, best = folder.resolve(), ("", "an unknown file system")
    for _, where, kind, *_ in (line.split() for line in mounts):
        target = where.replace("\\040", " ")
        if place.is_relative_to(target) and len(target) >= len(best[0]):
            best = (target, kind)
    return best[1]


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder on a real disk: in $TMPDIR if it is one, else in build/."""
    build = ROOT / "build"
    given = os.environ.get("TMPDIR")
    parent = Path(given) if given and filesystem(Path(given)).split()[0] not in IN_MEMORY else build
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        yield Path(folder)


class Others:
    """How busy other programs kept the machine, which shows how reliable the figures are."""

    def __init__(self) -> None:
        self._busy, self._ours, self._at = *_cpu_times(), time.monotonic()

    def show(self) -> float:
        """Print and return the share of other programs in all cores since the start, in percent."""
        busy, ours = _cpu_times()
        whole = (time.monotonic() - self._at) * (os.cpu_count() or 1)
        share = max((busy - self._busy) - (ours - self._ours), 0.0) / whole * 100
        print(f"\nOther processes kept the machine {share:.0f} % busy meanwhile.")
        return share


_LINUX = sys.platform == "linux"


def _cpu_times() -> tuple[float, float]:
    """The CPU time of the machine and of this process with its ended children, in seconds."""
    ours = os.times()
    own = ours.user + ours.system + ours.children_user + ours.children_system
    found = _first_match("/proc/stat", r"^cpu +(.+)$")
    if found is None:
        return own, own
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, found.split())
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK"), own


def _memory() -> str:
    found = _first_match("/proc/meminfo", r"^MemTotal:\s*(\d+) kB")
    return f"{int(found) / 2**20:.1f} GiB" if found else "unknown"


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


# Peers: each in an environment of its own, because they pin each other's dependencies


def peer(name: str) -> Path:
    """The Python of a peer's environment, which is made from peers/<name>.txt at first use."""
    wanted = (PEERS / f"{name}.txt").read_text(encoding="utf-8")
    folder = ROOT / ".venv-peers" / name
    stamp, python = folder / ".installed", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"Installing benchmarks/peers/{name}.txt (once; later runs start at once)", flush=True)
    requirements = str(PEERS / f"{name}.txt")
    uv = shutil.which("uv")
    if uv:
        _install([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
        _install([uv, "pip", "install", "--quiet", "--python", str(python), "-r", requirements])
    else:
        _install([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _install([*pip, "-r", requirements])
    stamp.write_text(wanted, encoding="utf-8")
    return python


def peer_version(name: str) -> str:
    code = f"from importlib.metadata import version; print(version({name!r}))"
    answer = subprocess.run([peer(name), "-c", code], check=True, capture_output=True, text=True)
    return answer.stdout.strip()


def _install(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}failed; is the index reachable?")


# Children


class Child:
    """A process that is measured. It writes JSON lines to its output and reads lines of text."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = [str(part) for part in command]
        self._unread = b""
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def hear(self, timeout: float = 60.0) -> Plain:
        """Wait for the next line that it writes, and return it."""
        assert self._process.stdout is not None
        until = time.monotonic() + timeout
        while b"\n" not in self._unread:
            left = max(until - time.monotonic(), 0.0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError(f"{self._name()} wrote nothing for {timeout:g} s")
            read = os.read(self._process.stdout.fileno(), 65536)
            if not read:
                raise RuntimeError(f"{self._name()} ended with {self._process.wait()}")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        heard: Plain = json.loads(line)
        return heard

    def ask(self, line: str, timeout: float = 60.0) -> Plain:
        self.tell(line)
        return self.hear(timeout)

    def cpu(self) -> float:
        """The CPU time of all its threads so far, in seconds, more exact than /proc's 10 ms."""
        return time.clock_gettime(~self.pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK, CPUCLOCK_SCHED

    def memory(self, which: str = "VmRSS") -> float:
        """Its resident memory now (VmRSS) or at its peak (VmHWM), in MiB."""
        found = _first_match(f"/proc/{self.pid}/status", rf"^{which}:\s*(\d+) kB")
        return int(found) / 1024 if found else math.nan

    def end(self, patience: float = 5.0) -> None:
        """End this one process with SIGTERM, then with SIGKILL."""
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _name(self) -> str:
        return " ".join(Path(part).name for part in self._command[1:3])
