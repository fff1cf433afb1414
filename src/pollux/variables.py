"""Environment variables of Pollux that are no settings: settings let them through.

They are named here and nowhere else, so that no command refuses what another one exports.
"""

from __future__ import annotations

#: A token, and the file of one, for who speaks to a controller.
TOKEN = "POLLUX_TOKEN"  # noqa: S105
TOKEN_FILE = "POLLUX_TOKEN_FILE"  # noqa: S105

#: What an agent tells the command of a job.
CONTROLLER = "POLLUX_CONTROLLER"
JOB_ID = "POLLUX_JOB_ID"
JOB_KIND = "POLLUX_JOB_KIND"
ATTEMPT = "POLLUX_ATTEMPT"
ATTEMPTS = "POLLUX_ATTEMPTS"
WORK = "POLLUX_WORK"
PAYLOAD = "POLLUX_PAYLOAD"
INPUTS = "POLLUX_INPUTS"
OUT = "POLLUX_OUT"
RESULT = "POLLUX_RESULT"
PROGRESS = "POLLUX_PROGRESS"

NO_SETTINGS = frozenset(
    {
        TOKEN,
        TOKEN_FILE,
        CONTROLLER,
        JOB_ID,
        JOB_KIND,
        ATTEMPT,
        ATTEMPTS,
        WORK,
        PAYLOAD,
        INPUTS,
        OUT,
        RESULT,
        PROGRESS,
    }
)
