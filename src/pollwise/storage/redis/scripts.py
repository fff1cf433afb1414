"""Lua scripts for Redis, each a file beside the code that runs it, read once.

Every script begins with common.lua, so that the layout of a job is written once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the digest by which a server knows it."""

    name: str
    text: str
    sha: str


@cache
def script(package: str, name: str, *shared: str) -> Script:
    """The script of this name in a package, after the package's common.lua and these others."""
    folder = resources.files(package)
    files = [f"{each}.lua" for each in ("common", *shared, name)]
    text = _without_comments("\n".join((folder / file).read_text("utf-8") for file in files))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)
