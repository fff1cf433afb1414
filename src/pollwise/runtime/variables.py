"""Environment variables of Pollwise that are not settings, so that settings ignore them.

They are named only here, so that no command refuses what another one exports.
"""

from __future__ import annotations

#: A token for a controller, and the path of a file with one.
TOKEN = "POLLWISE_TOKEN"  # noqa: S105
TOKEN_FILE = "POLLWISE_TOKEN_FILE"  # noqa: S105

#: The password of a web interface.
WEB_PASSWORD = "POLLWISE_WEB_PASSWORD"  # noqa: S105

#: Keys that encrypt payloads, as in a key file.
KEYS = "POLLWISE_KEYS"

#: Variables that an agent passes to the command of a job.
CONTROLLER = "POLLWISE_CONTROLLER"
JOB_ID = "POLLWISE_JOB_ID"
JOB_KIND = "POLLWISE_JOB_KIND"
ATTEMPT = "POLLWISE_ATTEMPT"
ATTEMPTS = "POLLWISE_ATTEMPTS"
WORK = "POLLWISE_WORK"
PAYLOAD = "POLLWISE_PAYLOAD"
INPUTS = "POLLWISE_INPUTS"
OUT = "POLLWISE_OUT"
RESULT = "POLLWISE_RESULT"
PROGRESS = "POLLWISE_PROGRESS"

NO_SETTINGS = frozenset(
    {TOKEN, TOKEN_FILE, CONTROLLER, JOB_ID, JOB_KIND, ATTEMPT, ATTEMPTS, WORK, PAYLOAD, INPUTS, OUT}
    | {RESULT, PROGRESS, KEYS, WEB_PASSWORD}
)
