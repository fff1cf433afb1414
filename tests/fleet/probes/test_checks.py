"""Checks of values in an answer, in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet import Target
from pollwise.fleet.file import FleetFileError, read_text
from pollwise.fleet.probes import make_probe
from pollwise.fleet.probes.checks import ValueCheck
from tests.support.kit import virtually

ANSWER: dict[str, Any] = {
    "status": "UP", "count": 3, "version": "2.1-rc", "ok": True, "none": None, "text": "3",
    "items": [{"id": "a"}], "odd name": 1,
}  # fmt: skip
HOLD = [
    "status == UP", "status == 'UP'", "status != DOWN", "count == 3", "count == 3.0", "text == 3",
    "count >= 3", "count > 2", "count < 4", "count <= 3", "count in 1..5", "count in 3..3",
    "version matches ^2[.]", "not version matches beta", "not count in 4..9", "ok == true",
    "none == null", "items[0].id == a", "items[-1].id matches ^a$", '["odd name"] == 1',
    "not status == DOWN",
]  # fmt: skip
FAIL = [
    "status == DOWN", "status != UP", "count == 4", "count > 3", "count in 4..9", "status in 1..2",
    "status > 1", "version matches ^1", "not version matches rc", "ok == True", "nothing == 1",
    "not nothing == 1", "items[3].id == a",
]  # fmt: skip


@pytest.mark.parametrize("written", HOLD)
def test_a_check_holds(written: str) -> None:
    assert ValueCheck(written).failing(ANSWER) is None


@pytest.mark.parametrize("written", FAIL)
def test_a_check_fails_and_names_the_value(written: str) -> None:
    said = ValueCheck(written).failing(ANSWER)
    assert said is not None
    assert written in said


@pytest.mark.parametrize(
    "written",
    ["", "status", "status = UP", "count > many", "count in 5", "count in 9..1", "x matches (", 7,
     "$.status == UP"],
)  # fmt: skip
def test_a_check_that_means_nothing_is_refused(written: object) -> None:
    with pytest.raises(ConfigError):
        ValueCheck(written)


def polled(**options: Any) -> Any:
    target = Target("t", "command", options={"run": ["echo", json.dumps(ANSWER)], **options})
    probe: Any = make_probe(target)
    return probe._extract(json.dumps(ANSWER).encode())


def test_a_poll_fails_by_its_checks_and_by_what_must_be_absent() -> None:
    async def main(_: object) -> None:
        value, _summary = await polled(json="status", checks=["count in 1..5", "ok == true"])
        assert value == "UP"
        with pytest.raises(ProbeError, match="count is '3', and must have 'count > 5'"):
            await polled(checks="count > 5")
        with pytest.raises(ProbeError, match="contains 'UP', and must not"):
            await polled(absent="UP")
        assert (await polled(absent="Exception"))[0].startswith("sha256:")

    virtually(main)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('json = "$.status"', r"begins with \$, which is not needed here; write status"),
        ('checks = ["status = UP"]', "is not a check; write"),
        ('checks = ["$.status == UP"]', "write status"),
        ('expect = "3x"', "must be a status code"),
        ('expect = "299-200"', "must be a status code"),
        ('method = "head"\nchecks = ["a == 1"]', "'head' has no body for"),
    ],
)
def test_mistakes_are_found_when_the_file_is_read(line: str, said: str) -> None:
    text = f'[[target]]\nname = "a"\ntype = "http"\nurl = "https://a.example/"\n{line}\n'
    with pytest.raises(FleetFileError, match=said):
        read_text(text)


@pytest.mark.parametrize(
    ("expect", "codes"),
    [
        ("2xx", range(200, 300)),
        ("200-204", range(200, 205)),
        (["3XX", 404, "410-411"], [*range(300, 400), 404, 410, 411]),
    ],
)
def test_codes_can_be_ranges(expect: object, codes: Any) -> None:
    options = {"url": "https://a.example/", "expect": expect}
    probe: Any = make_probe(Target("t", "http", options=options))
    assert probe._fetch.expect == frozenset(codes)
