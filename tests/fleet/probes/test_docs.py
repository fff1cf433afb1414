"""The files of targets that the docs show are right, and every option they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pollwise.alerts.texts import FIELDS
from pollwise.fleet.file import read_text
from pollwise.fleet.probes import MODULES, facts_of

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "fleet-probes.md"
ALERTS = PAGE.with_name("alerts.md")
TOML = re.compile(r"^```toml[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = [text for page in (PAGE, ALERTS) for text in TOML.findall(page.read_text("utf-8"))]
ENVIRONMENT = {
    **dict.fromkeys(("API_TOKEN", "DB_PASSWORD", "HOOK_PATH", "HOOK_TOKEN", "SHOP_PASSWORD"), "x"),
    **dict.fromkeys(("OPS_URL", "SHOP_URL"), "mailto://user:password@example.org"),
    "DISCORD_URL": "https://discord.example/hook",
    "HOOK_SECRET": "a-secret-of-the-hook",
}


@pytest.mark.parametrize("text", FILES, ids=lambda text: text.split('name = "')[1].split('"')[0])
def test_a_file_of_the_docs_is_right(text: str) -> None:
    assert read_text(text, environment=ENVIRONMENT).targets


def test_every_field_of_templates_is_documented() -> None:
    page = ALERTS.read_text("utf-8")
    for name in FIELDS:
        assert f"`{{{name}}}`" in page


def test_every_type_is_documented() -> None:
    page = PAGE.read_text("utf-8")
    for name in MODULES:
        assert f"[`{name}`](#" in page


def test_every_type_says_which_facts_it_has() -> None:
    for name in MODULES:
        facts = facts_of(name)
        assert facts is None if name == "function" else facts and "value" in facts, name
    assert facts_of("a type of your own") is None
