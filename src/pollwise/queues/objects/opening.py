"""From a URL to a queue in a bucket: `s3://bucket/prefix`, `gs://`, `az://`, `file:///folder`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote

from pollwise.durations import seconds
from pollwise.errors import ConfigError, MissingExtra
from pollwise.queues.objects.private import make_private_folder
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import split_url, without_secrets

#: How long one request may take, and how long connecting may take.
TIMEOUT, CONNECT = "10s", "5s"
#: How long keys are used before botocore is asked again; it refreshes them when they expire.
USED_FOR = timedelta(minutes=5)


def refuse_shards(keys: Iterable[str]) -> None:
    """Explain what to do instead of shards, which other queues in buckets have."""
    if "shards" in keys:
        raise ConfigError(
            "a queue in a bucket has no shards, so that one LIST shows all of it; leave the option "
            "out. If it needs more requests than a store allows for one prefix (S3: 3,500 writes a "
            "second), put jobs into several queues, ?queue=mail-0, ?queue=mail-1, …, with workers "
            "on each"
        )


def open_objects(
    parts: SplitResult, clock: Clock | None, create: bool, options: dict[str, Any]
) -> ObjectQueue:
    """Open the queue that a URL names; `options` are those of its query, already checked."""
    shown = repr(without_secrets(parts.geturl()))
    name = options.pop("name")
    ours = {key: options.pop(key) for key in ("keep", "max_payload_bytes") if key in options}
    if parts.username or parts.password:
        raise ConfigError(
            f"{shown} holds credentials; leave them to the environment, such as AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY"
        )
    prefix = unquote(parts.path).strip("/")
    if parts.scheme == "file":
        if parts.netloc or not prefix:
            raise ConfigError(f"{shown} does not name a folder; write file:///var/lib/jobs")
        folder = Path(unquote(parts.path))
        if not create and not folder.is_dir():
            raise ConfigError(f"{shown}: there is no folder {str(folder)!r}")
        return ObjectQueue(
            local_store(folder), "", name, location=f"file://{folder}", clock=clock, **ours
        )
    if not parts.netloc:
        raise ConfigError(f"{shown} does not name a bucket; write {parts.scheme}://bucket/prefix")
    store = remote_store(parts.scheme, parts.netloc, options)
    location = f"{parts.scheme}://{parts.netloc}"
    return ObjectQueue(store, prefix, name, location=location, clock=clock, **ours)


def local_store(folder: Path) -> Any:
    """A folder as a store; it is created for its user alone, unless it exists."""
    try:
        from obstore.store import LocalStore
    except ModuleNotFoundError:
        raise _missing() from None
    make_private_folder(folder)
    return LocalStore(str(folder), mkdir=True, automatic_cleanup=True)


def remote_store(
    scheme: str, bucket: str, options: dict[str, Any], *, retries: int = 0, what: str = "a queue"
) -> Any:
    """A bucket as a store of obstore; `options` are region, endpoint, account and timeout.

    retries: how often the store repeats a request itself. what: what it holds, for errors.
    """
    try:
        from obstore import store as stores
    except ModuleNotFoundError:
        raise _missing(what) from None
    endpoint = options.get("endpoint")
    if endpoint is None and scheme == "s3":  # the variables of the AWS tools
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"endpoint = {without_secrets(endpoint)!r} must be an http(s) URL")
    if endpoint is not None and "@" in split_url(endpoint).netloc:
        raise ConfigError(
            f"endpoint = {without_secrets(endpoint)!r} holds credentials; leave them to the "
            "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    timeout = seconds(options.get("timeout", TIMEOUT), "timeout", positive=True)
    client: Any = {
        "timeout": f"{round(timeout * 1000)}ms",
        "connect_timeout": CONNECT,
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
    }
    # A queue retries itself, because it knows what a lost answer means for each request.
    again: Any = {"max_retries": retries}
    config: Any = {}
    if endpoint is not None:
        config["endpoint"] = endpoint
    try:
        if scheme == "s3":
            found = aws_settings()
            if "region" in options:
                found["region"] = options["region"]
            return stores.S3Store(
                bucket, config=config, client_options=client, retry_config=again, **found
            )
        if scheme == "gs":
            return stores.GCSStore(bucket, client_options=client, retry_config=again)
        if "account" in options:
            config["account_name"] = options["account"]
        return stores.AzureStore(bucket, config=config, client_options=client, retry_config=again)
    except Exception as error:
        text = without_secrets(str(error).partition("\n")[0])
        raise ConfigError(f"{scheme}://{bucket} cannot be opened: {text}") from None


def _missing(what: str = "a queue") -> MissingExtra:
    return MissingExtra(f"{what} in a bucket", "objects")


def aws_settings() -> dict[str, Any]:
    """Settings of `S3Store` that obstore does not find by itself: credentials and region.

    obstore reads the environment and asks containers and instances. It does not read the files of
    `aws configure`, and cannot sign on with them. botocore can. So where the environment holds no
    keys and botocore is installed (`pollwise[sqs]` brings it), botocore is asked.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ or find_spec("botocore") is None:
        return {}
    from botocore.session import Session

    session = Session()
    settings: dict[str, Any] = {"credential_provider": BotocoreCredentials(session)}
    region = session.get_config_variable("region")  # from a file; no request
    if region and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & {*os.environ}:
        settings["region"] = region
    return settings


class BotocoreCredentials:
    """Credential provider: obstore calls it when it has no keys or they have expired."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __call__(self) -> dict[str, Any]:
        found = self._session.get_credentials()
        if found is None:
            raise LookupError("no credentials")
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + USED_FOR,
        }
