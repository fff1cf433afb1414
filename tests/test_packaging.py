"""What is published: the wheel and the sdist, checked, and installed into an empty environment."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import pollwise
import release

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

TASK = """
from pollwise import Worker

worker = Worker("sqlite:///jobs.db")


@worker.task
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist, which `release.build` has checked."""
    folder = tmp_path_factory.mktemp("dist")
    release.build(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it depends on, and no more."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [
        str(folder / "bin/python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        str(constraints(folder)),
    ]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    return folder / "bin"


def constraints(folder: Path) -> Path:
    """The pinned versions without their hashes, which do not cover the wheel."""
    pins = (ROOT / "requirements/demo.txt").read_text(encoding="utf-8")
    path = folder / "constraints.txt"
    path.write_text("\n".join(re.findall(r"^[a-z0-9][^\\\n]*", pins, re.MULTILINE)))
    return path


def call(program: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == pollwise.__version__


def test_the_wheel_has_everything_that_the_package_reads(wheel: Path) -> None:
    package = ROOT / "src"
    wanted = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "pollwise/py.typed" in wanted
    with zipfile.ZipFile(wheel) as archive:
        assert wanted - set(archive.namelist()) == set()


def test_the_page_on_the_index_links_to_files_that_exist(wheel: Path) -> None:
    """The index has no other files of the project than the README."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        page = archive.read(name).decode().partition("\n\n")[2]
    assert page.startswith("# Pollwise")
    links = re.findall(r"\]\(([^)]*)\)", page)
    tag = f"v{pollwise.__version__}"
    ours = [link for link in links if "/pollwise/pollwise/" in link]
    assert len(ours) > 10
    for link in links:
        assert link.startswith("https://"), link
    for link in ours:
        path = re.sub(r"https://.*/pollwise/pollwise/(blob/)?", "", link)
        assert path.startswith(f"{tag}/"), link
        assert (ROOT / path.removeprefix(f"{tag}/").partition("#")[0]).exists(), link


def test_the_sdist_has_the_sources_and_the_tests(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "tests/test_packaging.py"} <= names
    assert "examples/fastapi-shop/run_shop.py" in names
    assert not {name for name in names if name.startswith((".venv", ".github", "site/"))}


def test_a_task_runs_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TASK)
    worker = [str(installed / "pollwise"), "worker", "app:worker"]
    with subprocess.Popen(worker, cwd=tmp_path, stderr=subprocess.DEVNULL) as running:
        try:
            ask = "from app import add; print(add.put_sync(2, 3).result('50s'))"
            asked = call(installed / "python", "-c", ask, folder=tmp_path)
        finally:
            running.terminate()
    assert asked.stdout == "5\n", asked.stderr


@pytest.mark.parametrize(
    ("url", "extra"),
    [("postgresql://localhost/db", "postgres"), ("redis://localhost", "redis")],
)
def test_a_missing_extra_is_named(installed: Path, tmp_path: Path, url: str, extra: str) -> None:
    run = call(installed / "pollwise", "queue", "stats", url, folder=tmp_path)
    assert run.returncode != 0
    assert f"pip install 'pollwise[{extra}]'" in run.stderr + run.stdout


# What keeps a tag from being published.

CHANGES = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-11-01\n"


def test_a_release_needs_its_version_and_its_section() -> None:
    assert release.problems("v0.2.0", CHANGES, "0.2.0") == []
    assert release.problems(None, "", "0.2.0") == []
    [other] = release.problems("v0.3.0", CHANGES, "0.2.0")
    assert "v0.3.0" in other
    assert "0.2.0" in other
    [lacks] = release.problems("v0.2.1", CHANGES, "0.2.1")
    assert "no section" in lacks


def test_a_release_refuses_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    script = ROOT / "scripts/release.py"
    run = call(Path(sys.executable), str(script), "--out", str(tmp_path), folder=ROOT)
    assert run.returncode != 0
    assert "not empty" in run.stderr


# The files of the project's habits.


def test_the_workflows_pin_every_action() -> None:
    used = [
        line.strip()
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert used
    for line in used:
        assert re.search(r"uses: [\w/.-]+@[0-9a-f]{40} # v\d", line), line


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_the_files_of_github_fit_their_schema(schema: str, pattern: str) -> None:
    checker = str(Path(sys.executable).parent / "check-jsonschema")
    files = [str(path) for path in sorted((ROOT / ".github").glob(pattern))]
    command = [checker, "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_keeps_its_format() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, *older = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert newest == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", each) for each in older)
    sections = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for release_of in text.split("\n## ")[1:]:
        found = re.findall(r"^### (.*)$", release_of, re.MULTILINE)
        assert set(found) <= sections
        assert len(found) == len(set(found))


def test_the_build_of_the_docs_fits_its_schema_and_builds_strictly() -> None:
    path = ROOT / ".readthedocs.yaml"
    checker = str(Path(sys.executable).parent / "check-jsonschema")
    command = [checker, "--builtin-schema", "vendor.readthedocs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["build"]["jobs"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"$(BIN)/{jobs['build']['html'][0]}\n" in makefile
    [script] = re.findall(r"\$\((sed .*)\)", jobs["install"][0])
    pin = subprocess.run(shlex.split(script), cwd=ROOT, capture_output=True, text=True)
    assert re.fullmatch(r"zensical==[\w.]+\n", pin.stdout)


def test_the_workflows_pass_their_linter() -> None:
    """Injections, rights that are too wide, secrets that leak; without asking the network."""
    linter = str(Path(sys.executable).parent / "zizmor")
    done = subprocess.run(
        [linter, "--offline", "--quiet", str(ROOT / ".github")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
