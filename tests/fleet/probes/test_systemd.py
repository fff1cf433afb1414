"""The probe of systemd's units, against a `systemctl` that answers as the real one does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet.probes import make_probe
from pollwise.fleet.targets import Reading, Target
from tests.fleet.probes.kit import polled, really

RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "NRestarts": "2",
    "ExecMainStatus": "0",
    "MemoryCurrent": "4096000",
    "LoadError": "",
}


class Systemctl:
    """A program in the first folder of PATH that prints these properties."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "systemctl"
        self.asked = folder / "asked"

    def tells(self, status: int = 0, complaint: str = "", **properties: str) -> None:
        lines = "\n".join(f"{key}={each}" for key, each in {**RUNNING, **properties}.items())
        self.file.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"open({str(self.asked)!r}, 'w').write('\\0'.join(sys.argv[1:]))\n"
            f"print({lines!r})\nprint({complaint!r}, file=sys.stderr)\nsys.exit({status})\n"
        )
        self.file.chmod(0o755)


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Systemctl(tmp_path)


def reading(**options: Any) -> Reading:
    async def main() -> Reading:
        return await polled("systemd", **{"unit": "nginx.service", **options})

    return really(main)


def failure(**options: Any) -> ProbeError:
    with pytest.raises(ProbeError) as raised:
        reading(**options)
    return raised.value


def test_the_state_of_a_unit_is_the_reading(systemctl: Systemctl) -> None:
    systemctl.tells()
    found = reading()
    assert found.value == "active (running)"
    ms = found.facts["ms"]
    assert dict(found.facts) == {
        "state": "active", "sub": "running", "result": "success", "restarts": 2, "exit": 0,
        "memory": 4096000, "ms": ms,
    }  # fmt: skip
    asked = systemctl.asked.read_text().split("\0")
    assert asked[:2] == ["--system", "--no-pager"]
    assert asked[-2:] == ["--", "nginx.service"]
    reading(user=True)
    assert systemctl.asked.read_text().startswith("--user\0")


def test_another_state_is_a_failure_unless_it_is_expected(systemctl: Systemctl) -> None:
    systemctl.tells(ActiveState="failed", SubState="failed", Result="oom-kill")
    error = failure()
    assert "unit 'nginx.service' is failed (failed), result oom-kill" in str(error)
    assert not error.permanent
    systemctl.tells(ActiveState="inactive", SubState="dead", MemoryCurrent=str(2**64 - 1))
    found = reading(expect=["active", "inactive"])
    assert found.value == "inactive (dead)"
    assert "memory" not in found.facts


def test_a_unit_that_cannot_be_loaded_is_permanent(systemctl: Systemctl) -> None:
    systemctl.tells(LoadState="not-found", ActiveState="inactive", SubState="dead")
    assert failure().permanent
    assert "unit 'nginx.service' does not exist" in str(failure())
    systemctl.tells(LoadState="masked", LoadError='x "Unit is masked."')
    assert 'cannot be loaded (masked): x "Unit is masked.' in str(failure())


def test_a_systemctl_that_fails_or_lies_is_a_failure(systemctl: Systemctl) -> None:
    systemctl.tells(1, "Failed to connect to bus: Host is down")
    assert "systemctl exited with 1: Failed to connect to bus" in str(failure())
    systemctl.tells(ActiveState="")
    assert "did not print the state" in str(failure())
    systemctl.tells(NRestarts="9" * 5000, ExecMainStatus="²", MemoryCurrent="[not set]")
    assert set(reading().facts) == {"state", "sub", "result", "ms"}
    systemctl.tells(LoadError="x" * 70_000)
    assert "printed more than" in str(failure())


def test_without_systemd_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("systemctl") and not Path("/run/systemd/system").exists():
        assert "systemctl exited with 1: Failed to connect" in str(failure())
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure()
    assert "'systemctl' cannot be run" in str(error)
    assert error.permanent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "unit is missing"),
        ({"unit": "--help"}, "is not the name of a unit"),
        ({"unit": "a b"}, "is not the name of a unit"),
        ({"unit": "a;reboot"}, "is not the name of a unit"),
        ({"unit": "x" * 300}, "is not the name of a unit"),
        ({"unit": "a", "expect": "running"}, "expect has 'running'; the states are active,"),
        ({"unit": "a", "expect": 7}, "expect must be one of active,"),
        ({"unit": "a", "expect": [{}]}, "expect has {}"),
        ({"unit": "a", "user": "me"}, "must be true or false"),
    ],
)
def test_options_of_systemd_are_checked(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", "systemd", options=options))
    assert said in str(raised.value)
