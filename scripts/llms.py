"""docs/llms.txt: the pages of the documentation in the order of its navigation, a line for each.

The form is that of llmstxt.org: a title, a summary, and lists of links with a description. The
description of a page is its first sentence, or two short ones. scripts/reference.py writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: The address of the newest version. Read the Docs has the page `a/b.md` at `a/b/`.
BASE = "https://pollwise.readthedocs.io/en/latest/"
#: The longest description, in characters.
DESCRIPTION_MAX = 200
#: A first sentence that is shorter than this is followed by the second.
SENTENCE_MIN = 40

#: Where a sentence ends: before a space and a capital letter, or at the end of its paragraph.
SENTENCE = re.compile(r"(.+?[.!?:])(?=\s+[A-Z`*\[]|$)", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def index(made: Mapping[Path, str]) -> str:
    """The text of the file. made: pages that are written now, by their paths."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}", ""]
    for entry in settings["nav"]:
        [(title, inside)] = entry.items()
        if isinstance(inside, str):
            lines.append(_line(title, inside, made))
        else:
            lines += ["", f"## {title}", ""]
            lines += [_line(*page, made) for page in _pages(inside)]
    return "\n".join(lines) + "\n"


def _pages(entries: list[dict[str, object]]) -> Iterator[tuple[str, str]]:
    """The pages of a section and of the sections in it, with their titles."""
    for entry in entries:
        [(title, inside)] = entry.items()
        if isinstance(inside, list):
            yield from _pages(inside)
        else:
            yield title, str(inside)


def _line(title: str, page: str, made: Mapping[Path, str]) -> str:
    path = DOCS / page
    text = made.get(path) or path.read_text("utf-8")
    address = page.removesuffix("index.md") if page.endswith("index.md") else f"{page[:-3]}/"
    return f"- [{title}]({BASE}{address}): {description(text)}"


def description(text: str) -> str:
    """The beginning of the first paragraph below the title, without links and marks."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(LINK.sub(r"\1", paragraph).split())
        if words and not words.startswith(("#", "|", "-")) and " · needs " not in words:
            return _shortened(_beginning(words))
    raise SystemExit("a page has no sentence below its title; write one")


def _beginning(words: str) -> str:
    """The first sentence of a paragraph; the second too if the first is short."""
    first = SENTENCE.match(words)
    if not first or len(first[1]) >= SENTENCE_MIN:
        return first[1] if first else words
    rest = words[first.end() :].strip()
    second = SENTENCE.match(rest)
    return f"{first[1]} {second[1] if second else rest}".strip()


def _shortened(sentence: str) -> str:
    sentence = sentence.replace("**", "").removesuffix(":").rstrip()
    if len(sentence) <= DESCRIPTION_MAX:
        return sentence
    return sentence[: DESCRIPTION_MAX - 2].rpartition(" ")[0] + " …"
