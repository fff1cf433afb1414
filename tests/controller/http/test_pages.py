"""The pages about the controller: what they tell people to type does what they say."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.daemons import free_port, wait_until

DOCS = Path(__file__).resolve().parents[3] / "docs"
FENCE = re.compile(r"^```sh(?: title=\"(\w+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: What a block in a terminal of its own says when it is ready, and where to look.
READY = {"controller": "serving", "agent": "worker_registered"}
STARTS = {"controller": "pollwise serve sqlite", "agent": "pollwise agent"}


def as_script(page: str, port: int) -> str:
    """All shell of a page, in order; what has a terminal of its own runs beside the rest."""
    # The agent first: it says farewell to the controller.
    end = "for each in $(jobs -p | tac); do kill $each 2>/dev/null; wait $each || true; done"
    lines = ["set -euo pipefail", f"trap '{end}' EXIT"]
    for title, text in FENCE.findall(page):
        text = text.replace("127.0.0.1:8420", f"127.0.0.1:{port}")
        if not title:
            lines.append(text)
            continue
        ready = f"timeout 30 sh -c 'until grep -q {READY[title]} {title}.log; do sleep 0.1; done'"
        lines += [f"exec_{title}() {{\nexec {text}\n}}", f"exec_{title} > {title}.log 2>&1 &"]
        lines.append(f"{ready} || {{ cat {title}.log; exit 1; }}")
    return "\n".join(lines)


def run_script(script: str, folder: Path, port: int) -> str:
    """Run a page's shell in a folder; what it prints."""
    (folder / "page.sh").write_text(script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "POLLWISE_CONTROLLER_PORT": str(port)}
    run = subprocess.run(
        ["bash", "page.sh"], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=55,
    )  # fmt: skip
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}\n{script}"
    return run.stdout


def test_a_build_farm_in_ten_minutes(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port = free_port()
    script = as_script((DOCS / "tutorial" / "build-farm.md").read_text("utf-8"), port)
    said = run_script(script, tmp_path, port)
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


def test_the_fastapi_page_is_served_as_it_says(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "in-your-fastapi-app.md").read_text("utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    (tmp_path / "shop.py").write_text(code)
    assert "uvicorn shop:app" in page
    for _ in range(2):  # what the first trial left must not be in the way of the next
        subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=60)
    port = free_port()
    words = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)
    try:
        log_file = tmp_path / "log"
        wait_until(lambda: "Uvicorn running" in log_file.read_text(), "uvicorn serves", within=30)
        ready = httpx.get(f"http://127.0.0.1:{port}/farm/readyz", timeout=30)
        ordered = httpx.post(f"http://127.0.0.1:{port}/orders/7/build", timeout=30)
    finally:
        server.terminate()
        server.wait(30)
    assert ready.json() == {"status": "ok"}
    assert ordered.json()["job"].isdigit()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_unit_of_systemd_can_be_read() -> None:
    page = (DOCS / "how-to" / "agent.md").read_text("utf-8")
    found = re.search(r"```ini title=\"pollwise-agent.service\"\n(.*?)```", page, re.DOTALL)
    assert found is not None
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(found[1])
    assert unit["Service"]["ExecStart"].split()[1:] == [
        "agent", "--capability", "platform=linux", "--", "./build.sh",
    ]  # fmt: skip
    from pollwise.settings import AgentSettings

    for name in re.findall(r"POLLWISE_AGENT_(\w+)=", found[1]):
        assert name.lower() in AgentSettings.model_fields, name
