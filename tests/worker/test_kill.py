"""Ten `kill -9` in the middle of 5,000 jobs: all done, none lost, none under two live leases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.sqlite.queue import SqliteQueue
from tests.worker.processes import check, kill_at_random

JOBS = 5_000
KILLS = 10


def test_ten_kills_in_the_middle_of_five_thousand_jobs(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"

    def opened() -> SqliteQueue:
        return SqliteQueue(database, keep="1d", synchronous="off", watch=0)

    kill_at_random(database, opened, tmp_path / "log.jsonl", jobs=JOBS, kills=KILLS)


@pytest.mark.parametrize(
    ("second", "ok"),
    [
        ({"token": 2, "at": 11.2}, True),
        ({"token": 2, "at": 10.9}, False),  # while the first lease was still alive
        ({"token": 1, "at": 12.0}, False),  # under the same token
    ],
)
def test_the_check_sees_two_live_leases(second: dict[str, Any], ok: bool) -> None:
    records: list[dict[str, Any]] = [
        {"what": "run", "job": "1"},
        {"what": "claim", "job": "1", "token": 1, "at": 10.0, "until": 11.0},
        {"what": "renew", "job": "1", "token": 1, "at": 10.1, "until": 11.1},
        {"what": "claim", "job": "1", "until": 12.0, **second},
    ]
    others = [str(n) for n in range(2, JOBS + 1)]
    for job in others:
        records.append({"what": "run", "job": job})
        records.append({"what": "claim", "job": job, "token": 1, "at": 1.0, "until": 2.0})
        records.append({"what": "done", "job": job, "token": 1, "at": 1.5})
    if ok:
        check(["1", *others], records, seed=0)
    else:
        with pytest.raises(AssertionError, match="job 1:"):
            check(["1", *others], records, seed=0)
