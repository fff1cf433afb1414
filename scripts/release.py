"""Build the wheel and the sdist, and check what was built. The release workflow runs this.

    scripts/release.py --out dist
    scripts/release.py --tag v0.2.0 --out dist    # also: is this the version, and is it described?

Nothing is uploaded. The folder must be empty, so that nothing old is published.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def problems(tag: str | None, changelog: str, version: str) -> list[str]:
    """What keeps this version from being published under this tag."""
    if tag is None:
        return []
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and pyproject.toml has version = {version!r}")
    if not re.search(
        rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        found.append(f'CHANGELOG.md has no section "## {version} - <the date>"')
    return found


def build(out: Path) -> list[Path]:
    """The wheel and the sdist, checked."""
    run("hatchling", "build", "-d", str(out))
    made = sorted(out.iterdir())
    run("twine", "check", "--strict", *map(str, made))
    run("check-wheel-contents", *(str(path) for path in made if path.suffix == ".whl"))
    return made


def run(program: str, *arguments: str) -> None:
    subprocess.run([BIN / program, *arguments], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tag", help="the tag that is being published, such as v0.2.0")
    parser.add_argument("--out", type=Path, required=True, help="an empty or new folder")
    given = parser.parse_args()
    out = given.out.resolve()
    if out.exists() and any(out.iterdir()):
        sys.exit(f"--out {given.out}: the folder is not empty; remove what is in it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if found := problems(given.tag, changelog, project["version"]):
        sys.exit("cannot publish:\n  " + "\n  ".join(found))
    try:
        made = build(out)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd[:2]))} failed; what it said is above")
    for path in made:
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
