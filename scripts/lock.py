"""Pin the requirements: `make lock`, or `make lock ARGS=--upgrade` for the newest versions.

The files contain versions and hashes for every platform and Python we support,
and no address: the person who installs chooses the index. Without `--upgrade`,
pins that still fit pyproject.toml are kept, so a second run changes nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Pinned by `make lock` from pyproject.toml; do not edit by hand.\n"
OPTIONS = [
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--quiet",
]
# `make test` extends the environment that `make demo` created, so both files must
# agree: the smaller one is locked second, with the versions of the larger.
FILES = {
    "requirements/dev.txt": ["--all-extras", "--group=dev"],
    "requirements/demo.txt": [
        "--extra=metrics",
        "--extra=web",
        "--group=build",
        "--constraint=requirements/dev.txt",
    ],
    # What the image of deploy/ has.
    "requirements/image.txt": [
        "--extra=postgres",
        "--extra=redis",
        "--extra=metrics",
        "--extra=web",
        "--constraint=requirements/dev.txt",
    ],
}


def find_uv(scratch: Path) -> str:
    """The uv on PATH, or one installed into a scratch environment."""
    found = shutil.which("uv")
    if found:
        return found
    print("uv is not on PATH: installing it into a temporary environment", flush=True)
    venv.create(scratch, with_pip=True)
    subprocess.run([scratch / "bin" / "python", "-m", "pip", "install", "-q", "uv"], check=True)
    return str(scratch / "bin" / "uv")


def lock(uv: str, target: str, options: list[str], extra: list[str]) -> None:
    path = ROOT / target
    path.parent.mkdir(exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    command = [uv, "pip", "compile", "pyproject.toml", *OPTIONS, *options, *extra, "-o", target]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    body = path.read_text(encoding="utf-8")
    address = re.search(r"\S*(?:://|--(?:extra-)?index-url|--find-links)\S*", body)
    if address:
        path.write_text(before, encoding="utf-8")
        raise SystemExit(f"{target} would contain an address ({address[0]}); it was not changed")
    path.write_text(HEADER + body, encoding="utf-8")
    print(f"{target}: {len(re.findall(r'^[a-z0-9]', body, re.MULTILINE))} packages")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        uv = find_uv(Path(scratch))
        for target, options in FILES.items():
            lock(uv, target, options, sys.argv[1:])


if __name__ == "__main__":
    main()
