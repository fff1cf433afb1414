"""Run every benchmark of this folder and write RESULTS.md: `make bench`.

Each script takes `--quick` and `--json FILE`, prints its figures, and ends with one line per goal:
`name  measured  goal  reached|short`. These lines are the first part of the page; below them is
what each script printed. If a script fails, the others still run, and then this program fails.
`benchmarks/run.py queues bloat` runs only these and replaces their sections on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
#: Log lines of workers that are killed: they say nothing about speed.
LOGGED = re.compile(r"[a-z_]+ source=\S+ worker=")
GOAL = re.compile(r"\S.*\s(?:reached|short)\s*")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Run:
    name: str
    code: int
    output: str
    took: float
    facts: Any


def run(script: Path, quick: bool, facts: Path) -> Run:
    """Run one script, and show what it prints."""
    command = [sys.executable, str(script), "--json", str(facts), *(["--quick"] if quick else [])]
    started = time.perf_counter()
    lines = []
    with subprocess.Popen(
        command,
        cwd=HERE.parent,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if LOGGED.match(line) is None:
                lines.append(ESCAPES.sub("", line))
    took = time.perf_counter() - started
    written = facts.read_text(encoding="utf-8") if facts.exists() else "null"
    return Run(script.stem, process.returncode, "".join(lines).strip(), took, json.loads(written))


def processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return found[1] if found else platform.machine()


def machine() -> dict[str, str]:
    return {
        "Machine": f"{processor()}, {os.cpu_count()} cores",
        "System": platform.platform(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "Pollwise": version("pollwise"),
        "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def section(each: Run, quick: bool) -> str:
    """What a script printed, unchanged."""
    verdict = "" if each.code == 0 else f" (failed: exit code {each.code})"
    how = " A quick run (`--quick`): the figures are rough." if quick else ""
    return (
        f"## {each.name}{verdict}\n\n`benchmarks/{each.name}.py`, {each.took:.0f} s, "
        f"{machine()['Date']}.{how}\n\n```text\n{each.output or '(printed nothing)'}\n```\n"
    )


def sections(text: str) -> dict[str, str]:
    """The sections of a page, by the name of their script."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    named = {re.split(r"\s", part[3:], maxsplit=1)[0]: part.rstrip() + "\n" for part in parts}
    named.pop("Goals", None)
    return named


def page(parts: dict[str, str], facts: dict[str, str]) -> str:
    top = ["# Benchmark results", "", "| | |", "|---|---|"]
    top += [f"| {name} | {value} |" for name, value in facts.items()]
    goals = [
        line.strip()
        for name in sorted(parts)
        for line in parts[name].splitlines()
        if GOAL.fullmatch(line)
    ]
    top += ["", "## Goals", "", "```text", *goals, "```"] if goals else []
    return "\n".join([*top, "", *(parts[name] for name in sorted(parts))])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the benchmarks and write RESULTS.md.")
    parser.add_argument("names", nargs="*", help="only these scripts; the others' figures stay")
    parser.add_argument("--quick", action="store_true", help="short runs, under a minute each")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="every script's facts, by its name"
    )
    options = parser.parse_args()

    scripts = {
        path.stem: path
        for path in sorted(HERE.glob("*.py"))
        if path.name not in {"run.py", "common.py"} and not path.name.startswith("_")
    }
    unknown = [name for name in options.names if name not in scripts]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(scripts)}")

    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or scripts:
            print(f"\n== {name} ==", flush=True)
            runs.append(run(scripts[name], options.quick, Path(folder) / f"{name}.json"))
    kept = sections(RESULTS.read_text(encoding="utf-8")) if options.names else {}
    new = {each.name: section(each, options.quick) for each in runs}
    RESULTS.write_text(page(kept | new, machine()), encoding="utf-8")
    print(f"\nwrote {RESULTS.relative_to(HERE.parent)}")
    if options.json:
        collected = {"machine": machine(), **{each.name: each.facts for each in runs}}
        options.json.write_text(json.dumps(collected, indent=2) + "\n", encoding="utf-8")

    failed = [each.name for each in runs if each.code != 0]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
