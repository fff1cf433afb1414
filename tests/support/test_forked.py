"""A warm process is what a cold one would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE
from tests.support.forked import Forked

SCRIPT = """
import atexit, os, sys
atexit.register(print, "the end")
import beside
print(sys.argv, os.getcwd(), os.environ["POLLWISE_LEVEL"], sys.path[0], __name__, beside.__file__)
print("noise " * 50_000, file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_it_does_as_a_cold_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "page.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLLWISE_LEVEL", "here")
    cold = subprocess.run(
        [sys.executable, "page.py", str(code)], capture_output=True, text=True, timeout=PATIENCE
    )
    with closing(Forked(["page.py", code])) as warm:
        assert warm.communicate(PATIENCE) == (cold.stdout, cold.stderr)
        assert warm.poll() == cold.returncode == code
    assert "the end" in cold.stdout


def test_the_command_sees_its_arguments_and_refuses_them() -> None:
    cold = subprocess.run(
        [sys.executable, "-m", "pollwise", "wroker"],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    with closing(Forked(["-m", "pollwise", "wroker"])) as warm:
        assert warm.communicate(PATIENCE) == (cold.stdout, cold.stderr)
        assert warm.poll() == cold.returncode != 0


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ([], "import warnings; warnings.warn('old')", None),
        (["-W", "error"], "import warnings; warnings.warn('old')", "UserWarning: old"),
        ([], "raise ValueError('broken')", "ValueError: broken"),
    ],
)
def test_what_goes_wrong_fails(
    tmp_path: Path, options: list[str], code: str, says: str | None
) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(code)
    with closing(Forked([*options, script])) as warm:
        _, err = warm.communicate(PATIENCE)
        assert warm.poll() == (1 if says else 0)
        assert says is None or f"\n{says}" in err


def test_it_ends_by_a_signal_and_with_its_owner(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text("import signal\nprint('here', flush=True)\nsignal.pause()")
    with closing(Forked([script])) as warm:
        assert warm.stdout.readline() == "here\n"
        assert warm.poll() is None
        warm.send_signal(signal.SIGTERM)
        assert warm.wait(PATIENCE) == -signal.SIGTERM
    with closing(Forked([script])) as warm:
        assert warm.stdout.readline() == "here\n"
    with pytest.raises(ProcessLookupError):
        os.kill(warm.pid, 0)
