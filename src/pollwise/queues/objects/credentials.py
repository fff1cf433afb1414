"""Credentials for S3 from all the places where AWS's own tools look for them.

obstore looks into the environment and asks containers and instances. It does not read the files of
`aws configure`, nor sign on by them. botocore does; so where the environment holds no keys and
botocore is installed (`pollwise[sqs]` brings it), botocore is asked.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

#: How long keys are used before botocore is asked whether they are still good; it knows by itself.
USED_FOR = timedelta(minutes=5)


def aws_settings() -> dict[str, Any]:
    """What `S3Store` is to be told besides what it finds out by itself."""
    if "AWS_ACCESS_KEY_ID" in os.environ or find_spec("botocore") is None:
        return {}
    from botocore.session import Session

    session = Session()
    settings: dict[str, Any] = {"credential_provider": Keys(session)}
    region = session.get_config_variable("region")  # from a file; no request
    if region and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & {*os.environ}:
        settings["region"] = region
    return settings


class Keys:
    """Asked by obstore when it has no keys, or no good ones any more; not before the first call."""

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
