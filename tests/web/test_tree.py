"""Payloads as trees: bounded and escaped, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest

from pollwise.web.tree import ENTRIES_SHOWN, TEXTS_FOLDED, VALUES_SHOWN, raw, tree

HOSTILE = "</span></details><script>alert(1)</script>\" onclick='x'"


def nested(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = {"in": [value]}
    return value


def test_a_tree_shows_fields_entries_and_empty_values() -> None:
    shown = tree({"to": "a@b", "n": [1, None, 2.5, True], "none": {}, "nothing": []}, "payload")
    assert 'id="payload-1"' in shown
    assert "[4 entries]" in shown
    for text in ('"a@b"', ">1<", ">null<", ">2.5<", ">true<", ">{}<", ">[]<"):
        assert text in shown.replace("&#34;", '"')


@pytest.mark.parametrize(
    "value", [HOSTILE, {HOSTILE: HOSTILE}, [HOSTILE], {"long": HOSTILE * 1000}, {HOSTILE * 100: 1}]
)
def test_every_text_is_escaped(value: object) -> None:
    shown = tree(value, "payload")
    assert "<script" not in shown
    assert "' onclick" not in shown
    assert "onclick='" not in shown


def test_characters_that_turn_the_direction_of_writing_are_escaped() -> None:
    assert "\u202e" not in tree({"a\u202eb": "c\u2066d"}, "payload")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([0] * 100_000, f"{100_000 - ENTRIES_SHOWN:,} more"),
        ({str(i): {"a": [1, 2, 3]} for i in range(30_000)}, "more"),
        ("x" * 1024 * 1024, "1,048,576 characters"),
        ([["y" * 4000] * 100] * 100, "80 more"),
        (nested(1000), "not shown"),
        (10**4000, "4,001 digits"),
    ],
    ids=["entries", "fields", "text", "texts", "levels", "digits"],
)
def test_large_values_are_cut_and_say_so(value: object, says: str) -> None:
    shown = tree(value, "payload")
    assert says in shown
    assert shown.count("<li") <= VALUES_SHOWN * 2
    assert len(shown) < VALUES_SHOWN * 400 + TEXTS_FOLDED * 6
    text, _ = raw(value, 5000)
    assert len(text) <= 5000


def test_raw_is_json_and_says_if_it_was_cut() -> None:
    assert raw({"a": [1, "ü"]}) == ('{\n  "a": [\n    1,\n    "ü"\n  ]\n}', False)
    assert raw(["x" * 100], 10) == ('[\n  "xxxxx', True)
