"""The pages about the controller: what they tell people to type does what they say."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import free_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```sh(?: title=\"(\w+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: What a block in a terminal of its own says when it is ready, and where to look.
READY = {"controller": "serving", "agent": "worker_registered"}


def as_script(page: str, port: int) -> str:
    """All shell of a page, in order; what has a terminal of its own runs beside the rest."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for title, text in FENCE.findall(page):
        text = text.replace("127.0.0.1:8420", f"127.0.0.1:{port}")
        if not title:
            lines.append(text)
            continue
        ready = f"timeout 30 sh -c 'until grep -q {READY[title]} {title}.log; do sleep 0.1; done'"
        lines += [f"exec_{title}() {{\nexec {text}\n}}", f"exec_{title} > {title}.log 2>&1 &"]
        lines.append(f"{ready} || {{ cat {title}.log; exit 1; }}")
    return "\n".join(lines)


def test_a_build_farm_in_ten_minutes(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port = free_port()
    script = as_script((DOCS / "tutorial" / "build-farm.md").read_text("utf-8"), port)
    (tmp_path / "page.sh").write_text(script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "POLLUX_CONTROLLER_PORT": str(port)}
    run = subprocess.run(
        ["bash", "page.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=55,
    )  # fmt: skip
    said = run.stdout
    assert run.returncode == 0, f"{said}\n{run.stderr}\n{script}"
    assert "no live worker" in said, "why the first job waits"
    assert '"job":null' in said
    assert "data: building v2" in said, "the log as it is followed"
    assert "the app, from v2" in said
    assert '{"ok":true}' in said.replace(" ", "")
    assert "done" in said
    secrets = [file.read_text().strip() for file in tmp_path.glob("*.token")]
    assert len(secrets) == 3
    for log in tmp_path.glob("*.log"):
        assert not any(secret in log.read_text() for secret in secrets), log.name


def test_the_unit_of_systemd_can_be_read() -> None:
    page = (DOCS / "how-to" / "agent.md").read_text("utf-8")
    found = re.search(r"```ini title=\"pollux-agent.service\"\n(.*?)```", page, re.DOTALL)
    assert found is not None
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(found[1])
    assert unit["Service"]["ExecStart"].split()[1:] == [
        "agent", "--capability", "platform=linux", "--", "./build.sh",
    ]  # fmt: skip
    from pollux.settings import AgentSettings

    for name in re.findall(r"POLLUX_AGENT_(\w+)=", found[1]):
        assert name.lower() in AgentSettings.model_fields, name
