"""What users may rely on, from architecture.toml: docs/reference/stability.md, and a line on the
first page of each part. scripts/reference.py writes both.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
TIERS = {
    "stable": "Names and behaviour change only in a major version, or after a deprecation of at "
    "least two minor versions and six months. Data in stores is migrated for you, and workers of "
    "two neighbouring minor versions can share a queue.",
    "beta": "Complete and tested like the rest. A minor version may change names and options; the "
    "changelog says what to do. Data in stores is migrated for you.",
    "experimental": "To try out. A minor version may change or remove it, so pin the version that "
    "you build on.",
}
INTRODUCTION = (
    "What may change between versions depends on the part. Versions follow "
    "[Semantic Versioning](https://semver.org/spec/v2.0.0.html); before 1.0, the middle number "
    "counts as the major one for *stable* parts. Names that this page does not list are private, "
    "even without an underscore."
)


@dataclass(frozen=True)
class Promise:
    """A part of Pollwise, as `[[promises]]` of architecture.toml has it.

    page: where a new user begins. also: other pages that show its tier. without: what of it works
    without the extras.
    """

    part: str
    tier: str
    page: str
    also: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    without: str = ""
    modules: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        if not self.extras:
            return "no extra"
        names = [f"`pollwise[{extra}]`" for extra in self.extras]
        needed = names[0] if len(names) == 1 else "one or more of " + ", ".join(names)
        return f"no extra for {self.without}, else {needed}" if self.without else needed


def promises() -> list[Promise]:
    listed = tomllib.loads((ROOT / "architecture.toml").read_text("utf-8"))["promises"]
    return [
        Promise(
            each["part"], each["tier"], each["page"], tuple(each.get("also", ())),
            tuple(each.get("extras", ())), each.get("without", ""),
            tuple(each.get("modules", ())),
        )
        for each in listed
    ]  # fmt: skip


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: its `__all__`, or what it defines without an underscore."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def lines() -> Iterator[tuple[str, str]]:
    """Each page that shows the tier of a part, and what it says."""
    for each in promises():
        for page in (each.page, *each.also):
            up = "../" * page.count("/")
            tier = f"[{each.tier.capitalize()}]({up}reference/stability.md)"
            yield page, f"{tier} · needs {each.needs}"


def page() -> str:
    return "\n\n".join(("# Stability", INTRODUCTION, *_tiers(), *_names()))


def _tiers() -> Iterator[str]:
    for tier, meaning in TIERS.items():
        rows = [
            f"| [{each.part}](../{each.page}) | {each.needs} |"
            for each in promises()
            if each.tier == tier
        ]
        yield f"## {tier.capitalize()}"
        yield meaning
        yield "\n".join(("| part | needs |", "| --- | --- |", *rows))


def _names() -> Iterator[str]:
    yield "## Public names"
    yield (
        "A test fails when this list and the code differ, so that a public name changes only on "
        "purpose. The commands, settings, metrics, events and HTTP paths of the "
        "[reference](python.md) belong to their parts in the same way."
    )
    for promise in promises():
        for name in promise.modules:
            names = public_names(importlib.import_module(name))
            yield f"### `{name}`\n\n{promise.tier.capitalize()}. " + ", ".join(
                f"`{each}`" for each in names
            )
