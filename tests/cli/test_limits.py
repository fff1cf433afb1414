"""`pollwise queue limits`, `set-limits` and `remove-limits`."""

from __future__ import annotations

import asyncio

import pytest

from pollwise.queues.sqlite.queue import SqliteQueue
from tests.cli.console import good, pollwise

URL = "sqlite:///jobs.db"


def test_limits_are_set_shown_and_removed() -> None:
    good("queue", "put", URL, "send", "--limit-group", "acme")
    good("queue", "put", URL, "send", "--limit-group", "tiny")
    assert good("queue", "limits", URL).out == "no limits\n"
    made = good(
        "queue", "set-limits", URL, "send", "--rate", "100/1m", "--by", "tenant",
        "--all-concurrency", "50", "--weight", "acme=3",
    )  # fmt: skip
    assert made.out == (
        "send: 50 at a time; 100 in 1m, 5 at once for each tenant; weights acme=3\n"
    )
    [facts] = good("queue", "limits", URL, "--json").json()
    assert (facts["kind"], facts["most"], facts["by"], facts["origin"]) == (
        "send", 50, "tenant", "calls",
    )  # fmt: skip
    assert facts["rate_each"] == {"amount": 100, "per": 60.0, "burst": 5}
    assert facts["weights"] == {"acme": 3}
    assert (facts["running"], facts["waiting"]) == (0, 2)
    assert {each["group"]: each["waiting"] for each in facts["groups"]} == {"acme": 1, "tiny": 1}
    header, kind, *groups = good("queue", "limits", URL).out.splitlines()
    assert header.split() == ["kind", "group", "limits", "running", "waiting", "next", "start"]
    assert kind.split()[0] == "send"
    assert "0/50" in kind
    assert sorted(line.split()[0] for line in groups) == ["acme", "tiny"]
    assert good("queue", "remove-limits", URL, "send").out == "removed the limits of send\n"
    again = pollwise("queue", "remove-limits", URL, "send")
    assert (again.code, again.err) == (1, "error: send has no limits; see pollwise queue limits\n")


def test_a_full_group_starts_its_next_job_when_one_ends() -> None:
    async def claim() -> None:
        async with SqliteQueue("jobs.db") as queue:
            assert len(await queue.claim("w", 5, "1h")) == 2

    for group in ("acme", "acme", "tiny"):
        good("queue", "put", URL, "send", "--limit-group", group)
    good("queue", "set-limits", URL, "send", "--concurrency", "1", "--by", "tenant")
    asyncio.run(claim())
    _, kind, *groups = good("queue", "limits", URL).out.splitlines()
    assert kind.split()[-3:] == ["2", "1", "now"]
    assert [line.split(maxsplit=3) for line in groups] == [
        ["acme", "1/1", "1", "when one ends"],
        ["tiny", "1/1", "0", "when one ends"],
    ]


def test_the_table_cuts_the_name_of_a_group() -> None:
    long = "a" * 120
    for group in (long, "b" * 40):
        good("queue", "put", URL, "send", "--limit-group", group)
    good("queue", "set-limits", URL, "send", "--concurrency", "5", "--by", "tenant")
    shown = good("queue", "limits", URL).out.splitlines()
    assert {line.split()[0] for line in shown[2:]} == {"a" * 39 + "…", "b" * 40}
    [facts] = good("queue", "limits", URL, "--json").json()
    assert {each["group"] for each in facts["groups"]} == {long, "b" * 40}


def test_limits_are_set_as_json() -> None:
    made = good(
        "queue", "set-limits", URL, "send", "--concurrency", "5", "--rate", "10/1s/20", "--json"
    ).json()
    assert (made["most"], made["most_each"], made["fair"]) == (5, None, False)
    assert made["rate"] == {"amount": 10, "per": 1.0, "burst": 20}
    fair = good("queue", "set-limits", URL, "send", "--fair", "--by", "tenant", "--json").json()
    assert (fair["most"], fair["rate"], fair["fair"], fair["text"]) == (
        None, None, True, "fair by tenant",
    )  # fmt: skip
    assert good("queue", "remove-limits", URL, "send", "--json").json() == {
        "removed": True, "kind": "send",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "give a limit: --concurrency, --rate, or --fair with --by"),
        (["--fair"], "need --by"),
        (["--all-rate", "1/1s"], "need --by"),
        (["--rate", "100"], "--rate '100' must be a number and a time, as in 100/1m"),
        (["--rate", "100/soon"], "'soon'"),
        (["--rate", "5/1m/x"], "as in 100/1m"),
        (["--rate", "5/1m/"], "as in 100/1m/20"),
        (["--rate", "0/1m"], "--rate '0/1m': the amount of a Rate = 0 must be"),
        (["--rate", "5/0s"], "--rate '5/0s': per = '0s' must be above 0"),
        (["--fair", "--by", "t", "--weight", "a=3", "--weight", "a=4"], "'a' is given twice"),
        (["--concurrency", "0"], "must be a whole number from 1 to"),
        (["--concurrency", "1", "--weight", "acme"], "--weight 'acme' must be a group"),
        (["--concurrency", "1", "--weight", "acme=2"], "no effect without groups"),
    ],
)
def test_wrong_limits_are_refused(given: list[str], told: str) -> None:
    good("queue", "put", URL, "send")
    refused = pollwise("queue", "set-limits", URL, "send", *given)
    assert refused.code != 0
    assert told in refused.err
    assert good("queue", "limits", URL, "--json").json() == []
