"""Servers that speak S3, for the tests: MiniStack and SeaweedFS, each with a bucket of its own.

Each listens on a free port of 127.0.0.1 alone, keeps its files in a temporary folder, and is ended
by its own pid.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What every client of the servers has in its environment.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "jobs"
STARTS_WITHIN = 60.0


class S3Server:
    """A server program; `endpoint` speaks S3 and has the bucket `jobs`."""

    name = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"pollux-{self.name}-"))
        self._log = self.folder / "log.txt"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                self.command(),
                env={**os.environ, **CREDENTIALS, **self.environment()},
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait(self._bucket_made)
        except BaseException:
            self.close()
            raise

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"TMPDIR": str(self.folder)}

    def store(self, bucket: str = BUCKET, **config: Any) -> Any:
        """An obstore store on a bucket of the server."""
        from obstore.store import S3Store

        settings: Any = {
            "endpoint": self.endpoint,
            "access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "region": "us-east-1",
            **config,
        }
        return S3Store(
            bucket,
            config=settings,
            client_options={"allow_http": True, "timeout": "20s"},
            retry_config={"max_retries": 0},
        )

    def url(self, prefix: str, **options: str) -> str:
        more = "".join(f"&{key}={value}" for key, value in options.items())
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}{more}"

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _bucket_made(self) -> bool:
        from botocore.session import Session

        session = Session()
        session.set_credentials(
            CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        )
        client = session.create_client("s3", region_name="us-east-1", endpoint_url=self.endpoint)
        try:
            client.create_bucket(Bucket=BUCKET)
        except Exception as error:
            return "BucketAlready" in str(error)
        return True

    def _wait(self, happened: Callable[[], bool]) -> None:
        until = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < until and self._process.poll() is None:
            if self._listens() and happened():
                return
            time.sleep(0.1)  # real time: the server is starting
        raise RuntimeError(f"{self.name} did not start: {self.log()[-2000:]}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class MiniStack(S3Server):
    name = "ministack"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "ministack"]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "LOG_LEVEL": "WARNING",
        }

    def _listens(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/_ministack/ready", timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False


class Weed(S3Server):
    """SeaweedFS: another S3, slow where many contend for one key."""

    name = "weed"

    def command(self) -> list[str]:
        (self.folder / "data").mkdir()
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        keys = {
            "accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        user = {"name": "test", "credentials": [keys], "actions": rights}
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [user]}))
        ports = {
            name: free_port()
            for name in ("master.port", "volume.port", "filer.port", "admin.port", "webdav.port")
        }
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        return [
            weed or "weed", "mini", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", f"-s3.port={self.port}", f"-s3.config={config}",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]  # fmt: skip


@contextmanager
def running(server: type[S3Server]) -> Iterator[S3Server]:
    started = server()
    try:
        yield started
    finally:
        started.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
