"""Put a build, follow its log, and save what it made.

FARM=http://127.0.0.1:8420 FARM_TOKEN_FILE=people.token python put_build.py v1 main.c
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import httpx


def build(farm: httpx.Client, ref: str, sources: list[Path], into: Path) -> bool:
    """Return True if the build succeeded; its artefacts are in the folder then."""
    job = {"kind": "build", "payload": {"ref": ref}, "requires": {"memory_gb": ">=8"}}
    files = [("source", (path.name, path.read_bytes())) for path in sources]
    answer = farm.post("/api/jobs", data={"job": json.dumps(job)}, files=files)
    answer.raise_for_status()
    path = f"/api/jobs/{answer.json()['id']}"
    print(f"put job {answer.json()['id']}: build of {ref}", flush=True)

    # Ends with the job, however long that takes.
    with farm.stream("GET", f"{path}/logs", params={"follow": "true"}, timeout=None) as log:
        for line in log.iter_lines():  # server-sent events, as in a browser
            if line.startswith("data: ") and len(line) > len("data: "):
                print(f"  log: {line.removeprefix('data: ')}", flush=True)

    ended = farm.get(path).raise_for_status().json()
    print(f"  {ended['state']}", ended.get("error") or "", flush=True)
    if ended["state"] != "done":
        return False
    print("  result:", farm.get(f"{path}/result").raise_for_status().text)
    for artefact in farm.get(f"{path}/artefacts").raise_for_status().json()["artefacts"]:
        content = farm.get(f"{path}/artefacts/{artefact['name']}").raise_for_status().content
        target = into / Path(artefact["name"]).name
        target.write_bytes(content)
        print(f"  saved {target.name}, {len(content)} bytes", flush=True)
    return True


def connect(address: str, token: str) -> httpx.Client:
    return httpx.Client(
        base_url=address, headers={"Authorization": f"Bearer {token.strip()}"}, timeout=30
    )


if __name__ == "__main__":
    token = Path(os.environ["FARM_TOKEN_FILE"]).read_text()
    with connect(os.environ["FARM"], token) as farm:
        sys.exit(not build(farm, sys.argv[1], [Path(name) for name in sys.argv[2:]], Path()))
