"""`pollwise schedule`: list, add, remove, pause, resume and run."""

from __future__ import annotations

import pytest

from tests.cli.console import good, pollwise

URL = "sqlite:///jobs.db"


def test_a_schedule_is_added_listed_and_removed() -> None:
    good("queue", "put", URL, "mail")
    assert good("schedule", "list", URL).out == "no schedules\n"
    added = good(
        "schedule", "add", URL, "nightly", "tidy", '{"deep": true}', "--cron", "0 3 * * *", "--tz",
        "Europe/Zurich", "--jitter", "10s", "--key", "k", "--priority", "2", "--header", "a=b",
    )  # fmt: skip
    assert added.out.startswith("nightly: next tick 20")
    [facts] = good("schedule", "list", URL, "--json").json()
    assert (facts["name"], facts["cron"], facts["tz"]) == (
        "nightly", "0 3 * * *", "Europe/Zurich",
    )  # fmt: skip
    assert (facts["payload"], facts["jitter"], facts["headers"]) == (
        {"deep": True},
        10.0,
        {"a": "b"},
    )
    assert (facts["late"], facts["last_job_state"], facts["origin"]) == (0.0, None, "calls")
    assert "@" in facts["by"]
    shown = good("schedule", "list", URL).out
    assert "0 3 * * * Europe/Zurich" in shown
    assert good("schedule", "remove", URL, "nightly").out == "removed nightly\n"
    again = pollwise("schedule", "remove", URL, "nightly")
    told = "error: no schedule 'nightly'; see pollwise schedule list\n"
    assert (again.code, again.err) == (1, told)


def test_a_schedule_is_paused_resumed_and_run() -> None:
    good("schedule", "add", URL, "often", "tidy", "--every", "10m")
    assert good("schedule", "pause", URL, "often").out == "paused often\n"
    assert pollwise("schedule", "pause", URL, "often", "--json").json() == {
        "paused": False, "name": "often",
    }  # fmt: skip
    assert "paused" in good("schedule", "list", URL).out
    job_id = good("schedule", "run", URL, "often").out.strip()
    assert good("queue", "show", URL, job_id, "--json").json()["kind"] == "tidy"
    assert f"{job_id} live" in good("schedule", "list", URL).out
    assert good("schedule", "resume", URL, "often").out == "resumed often\n"
    assert "is not paused" in pollwise("schedule", "resume", URL, "often").err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--cron", "0 25 * * *"], "the hour '25' is not valid"),
        (["--cron", "0 3 * * *", "--every", "1h"], "only one"),
        (["--at", "2020-01-01"], "in the past"),
        (["--every", "1h", "--overlap", "maybe"], "'maybe' is unknown; give 'skip' or 'queue'"),
        ([], "needs one of"),
    ],
)
def test_what_is_refused(options: list[str], told: str) -> None:
    refused = pollwise("schedule", "add", URL, "s", "tidy", *options)
    assert refused.code != 0
    assert told in refused.err


def test_an_unknown_name_is_told_with_what_is_near() -> None:
    good("schedule", "add", URL, "nightly", "tidy", "--every", "1d")
    refused = pollwise("schedule", "run", URL, "nigthly")
    assert "did you mean 'nightly'?" in refused.err
