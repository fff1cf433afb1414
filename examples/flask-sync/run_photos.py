"""Start the site and a worker, ask for thumbnails, print the answers, and exit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def call(url: str, form: dict[str, str] | None = None) -> dict[str, object]:
    """Send a request, print it with its answer, and return the answer."""
    data = urllib.parse.urlencode(form).encode() if form else None
    try:
        with urllib.request.urlopen(url, data, timeout=60) as answer:
            status, body = answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        status, body = error.code, json.load(error)
    path = url.partition("//")[2].partition("/")[2]
    print(f"{'POST' if form else 'GET'} /{path} {form or ''} -> {status} {body}", flush=True)
    return dict(body)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until a server listens on the port."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def started(*command: str) -> Iterator[None]:
    """Run a Python program in the background until the end of the block."""
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=Path(__file__).parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    with (
        started("flask", "--app", "photo_site", "run", "--port", str(port)),
        started("pollwise", "worker", "photos:worker", "--log-level", "warning"),
    ):
        wait_for(port)
        made = call(f"{site}/thumbnails", {"photo": "cat.jpg", "width": "320"})
        call(f"{site}{made['result']}?wait=30")
        call(f"{site}/preview/dog.png")
        wrong = call(f"{site}/thumbnails", {"photo": "cat.txt"})
        call(f"{site}{wrong['result']}?wait=30")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PHOTOS_QUEUE"] = f"sqlite:///{Path(folder) / 'photos.db'}"
        main()
