"""What people read about an alert, and templates."""

from __future__ import annotations

from typing import Any

import pytest

from pollwise.alerts.texts import (
    FIELD_MAX,
    FIELDS,
    TEXT_MAX,
    Template,
    body_of,
    filled,
    line_of,
    templates_in,
    title_of,
)
from pollwise.errors import ConfigError

AT = 1_700_000_000.0


def payload(event: str = "opened", when: str = "down", **more: Any) -> dict[str, Any]:
    return {
        "event": event,
        "alert": "a1",
        "target": "front page",
        "type": "http",
        "group": "shop",
        "labels": {"team": "web"},
        "when": when,
        "severity": "critical",
        "at": AT + 300,
        "since": AT,
        "lasted": 300.4,
        "summary": "503 Service Unavailable",
        "facts": {"status": 503},
        **more,
    }


@pytest.mark.parametrize(
    ("event", "when", "line"),
    [
        (
            "opened",
            "down",
            "front page is down [shop] · since 2023-11-14 22:13:20 UTC · 503 Service Unavailable",
        ),
        (
            "repeated",
            "down",
            "front page is still down [shop] · since 2023-11-14 22:13:20 UTC · for 5m · 503",
        ),
        ("closed", "down", "front page is up again [shop] · lasted 5m"),
        ("closed", "latency > 2s", "front page: over: latency > 2s [shop] · lasted 5m"),
        ("changed", "changed", "front page changed [shop] · 1.0 → nothing"),
    ],
)
def test_a_line_says_what_where_since_when_and_how_long(event: str, when: str, line: str) -> None:
    before = {"value": "1.0"} if event == "changed" else None
    assert line_of(payload(event, when, before=before, after={"value": None}))[: len(line)] == line


def test_a_body_adds_what_a_line_has_no_room_for() -> None:
    said = body_of(payload(link="https://status.example/front"))
    assert said.startswith("front page is down [shop] · since")
    assert "\nseverity: critical\nlabels: team=web\nhttps://status.example/front" in said


def test_a_template_has_every_field_and_looks_up_labels_and_facts() -> None:
    every = Template(" ".join(f"{{{field}}}" for field in FIELDS))(payload())
    assert "{" not in every
    found = Template("{labels.team}/{facts.status}/{facts.none} {{{ target }}} {lasted}")
    assert found(payload()) == "web/503/ {front page} 5m"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{tarjet}", "no field {tarjet}; did you mean 'target'"),
        ("{target.__class__}", "no field"),
        ("{target!r}", "no field"),
        ("{0}", "the fields are after, alert"),
        ("{}", "no field {}"),
        ("{labels.}", "no field"),
        ("a } b", "single }; write }}"),
        ("{ {target}", "single {"),
        (3, "must be text"),
    ],
)
def test_what_is_no_field_is_refused_with_the_nearest(text: Any, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Template(text, "text")
    assert error in str(refused.value)


def test_content_of_a_page_neither_notifies_everybody_nor_fills_a_message() -> None:
    hostile = "<!channel> <@U1> @everyone @Here\n\x1b[31m\u202e" + "x" * 10_000
    line = line_of(payload(summary=hostile))
    for each in ("<!", "<@", "@everyone", "@Here", "\n", "\x1b", "\u202e"):
        assert each not in line
    assert "user@example.org" in line_of(payload(summary="user@example.org"))
    assert len(line) < FIELD_MAX + 200
    assert len(Template("{summary}" * 50)(payload(summary=hostile))) == TEXT_MAX
    assert len(title_of(payload(target="t" * 255))) < 300


@pytest.mark.parametrize("odd", [{}, {"since": 1e300}, {"since": "x"}, {"facts": 3, "lasted": "x"}])
def test_a_notice_that_lacks_fields_is_still_readable(odd: dict[str, Any]) -> None:
    assert isinstance(line_of(odd), str)
    assert isinstance(body_of({"event": "opened", **odd}), str)


def test_a_table_is_filled_at_every_depth() -> None:
    table = templates_in({"a": ["{target}", 1, {"b": "{state}"}], "c": True}, "body")
    assert filled(table, payload()) == {"a": ["front page", 1, {"b": "down"}], "c": True}


def test_what_changed_is_told_line_by_line() -> None:
    changed = payload(event="changed", when="changed", diff="  red\n-@everyone\n+\x1b<!here>")
    assert body_of(changed).endswith("  red\n-@\u200beveryone\n+ <\u200b!here>")
    assert line_of(changed).endswith(" · -@\u200beveryone")
    assert Template("{diff}")(changed).count("\n") == 2
    assert len(body_of({**changed, "diff": "+x\n" * 100_000})) <= 4000
