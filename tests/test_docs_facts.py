"""What the pages quote is what the code says: errors, events, metrics, promises, tests by name."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import guarantees
import llms
import reference
from pollwise.fleet.file import read_text
from pollwise.observe.metrics import METRICS
from pollwise.queues.capabilities import Capabilities
from pollwise.runtime.events import action_of, all_events

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TROUBLE = (DOCS / "troubleshooting.md").read_text("utf-8")
DESIGN = (DOCS / "why" / "design.md").read_text("utf-8")

#: The texts of Pollwise that a page quotes, one on each line.
QUOTED = [
    line
    for block in re.findall(r"^```text\n(.*?)^```", TROUBLE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


#: The whole files of targets that pages show, by page.
FLEETS = [
    pytest.param(text, id=f"{path.relative_to(DOCS)}-{n}")
    for path in sorted(DOCS.rglob("*.md"))
    if path.parent.name != "extend"  # with probes of packages
    for n, text in enumerate(
        re.findall(
            r"^```toml title=\"fleet.toml\"\n(.*?)^```",
            path.read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    )
]


@pytest.mark.parametrize("text", FLEETS)
def test_the_files_of_targets_on_pages_are_correct(text: str) -> None:
    read_text(text, for_views=True)


@cache
def literals() -> str:
    """The texts in the code of the package, without what f-strings insert."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def unknown_parts(line: str) -> list[str]:
    """The parts of a quoted text, between `…`, that are nowhere in the code."""
    parts = [part.strip(" .;:,`()") for part in line.split("…")]
    return [part for part in parts if part and part not in literals()]


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_text_is_in_the_code(line: str) -> None:
    assert any(len(part.strip()) > 8 for part in line.split("…")), "too little to be found"
    assert unknown_parts(line) == []


def test_a_text_that_is_not_in_the_code_is_found() -> None:
    assert unknown_parts("lease lost on … job(s): …, and the dog ate them") == [
        "and the dog ate them"
    ]


def test_events_and_metrics_that_are_named_exist() -> None:
    actions = {action_of(event) for event in all_events()}
    named = set(re.findall(r"[Tt]he log has `(\w+)`", TROUBLE))
    named |= set(re.findall(r"^### `(\w+_\w+)`", TROUBLE, re.MULTILINE))
    assert len(named) > 5
    assert named - actions == set()
    metrics = set(re.findall(r"`(pollwise_\w+)`", TROUBLE))
    assert metrics - {each.name for each in METRICS} == set()


def test_the_table_of_guarantees_is_made_from_the_stores() -> None:
    page = (DOCS / "why" / "guarantees.md").read_text("utf-8")
    made = reference.table(guarantees.COLUMNS, guarantees.rows())
    assert f"<!-- guarantees:begin -->\n{made}\n\n{guarantees.meanings()}\n<!--" in page


def test_a_store_that_can_do_less_promises_less() -> None:
    less = Capabilities(fenced=False, exact_unique=False, ordered=False, hints="machine")
    said = {name: promise(less) for name, (_, promise) in guarantees.PROMISES.items()}
    assert (said["fencing"], said["unique"], said["order"]) == ("–", "briefly", "roughly")
    assert (said["hints"], said["keys"]) == ("machine", "yes")


CONTRACTS = re.split(r"^## ", DESIGN, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda text: text.partition("\n")[0])
def test_a_contract_names_tests_that_exist(contract: str) -> None:
    named = re.findall(r"`(tests/[\w/.*-]+|benchmarks/[\w/.-]+)`", contract)
    assert named, "name a test that guards it"
    missing = [name for name in named if not list(ROOT.glob(name))]
    assert missing == []


def test_the_list_for_programs_has_every_page() -> None:
    listed = (DOCS / "llms.txt").read_text("utf-8")
    assert llms.index({}) == listed
    for page in DOCS.rglob("*.md"):
        address = page.relative_to(DOCS).as_posix().removesuffix(".md").removesuffix("index")
        assert f"]({llms.BASE}{address.rstrip('/')}" in listed, address
    for line in listed.splitlines()[4:]:
        if line and not line.startswith("##"):
            assert re.fullmatch(r"- \[.+\]\(https://\S+/\): \S.+", line), line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# Name\n\n<!-- a mark -->\n\nOne [sentence](x.md). And two.", "One sentence. And two."),
        (
            "# Name\n\nThis sentence is long enough to stand by itself. And two.",
            "This sentence is long enough to stand by itself.",
        ),
        ("# Name\n\n```sh\npip\n```\n\nAfter code, e.g. this:\n\n- a", "After code, e.g. this"),
        ("# Name\n\n[Beta](x.md) · needs `x`\n\nIt is **bold**.", "It is bold."),
    ],
)
def test_a_page_is_described_by_its_first_sentence(text: str, says: str) -> None:
    assert llms.description(text) == says
