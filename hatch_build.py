"""Hatchling asks this for the text of the package's page on the index: the README.

The index has no other files of the project, so links to them become links to the repository, at the
tag of this version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/pollwise/pollwise"
PICTURES = "https://raw.githubusercontent.com/pollwise/pollwise"
#: A link of Markdown to a file of the project, or a picture.
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        page = of_index(text, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": page}


def of_index(text: str, tag: str) -> str:
    """The README, with the addresses of what it links to."""

    def absolute(link: re.Match[str]) -> str:
        picture, name, path = link.groups()
        base = f"{PICTURES}/{tag}" if picture else f"{REPOSITORY}/blob/{tag}"
        return f"{picture}{name}({base}/{path})"

    return LINK.sub(absolute, text)
