"""Servers that speak SQS, for the tests: MiniStack, at the world's pace or ten times as fast."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What every client of the servers has in its environment; they take any.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
STARTS_WITHIN = 60.0


class SqsServer:
    """A MiniStack of our own. `began` is None, or where its fast time begins."""

    def __init__(self, *, fast: bool) -> None:
        self.began = time.time() if fast else None
        self.port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._folder = tempfile.TemporaryDirectory(prefix="pollux-sqs-")
        command = [sys.executable, "-m"]
        command += ["tests.fast", str(self.began), "ministack"] if fast else ["ministack"]
        log = Path(self._folder.name, "log")
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    **CREDENTIALS,
                    "BIND_HOST": "127.0.0.1",
                    "GATEWAY_PORT": str(self.port),
                    "PYTHONPATH": str(Path(__file__).parent.parent),
                    "LOG_LEVEL": "WARNING",
                    "TMPDIR": self._folder.name,
                },
                cwd=self._folder.name,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait(log)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _wait(self, log: Path) -> None:
        until = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.endpoint}/_ministack/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)  # real time: the server is starting
        raise RuntimeError(f"MiniStack did not start: {log.read_text('utf-8', 'replace')[-2000:]}")


@contextmanager
def sqs_server(*, fast: bool = True) -> Iterator[SqsServer]:
    server = SqsServer(fast=fast)
    try:
        yield server
    finally:
        server.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
