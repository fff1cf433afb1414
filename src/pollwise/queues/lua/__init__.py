"""Lua scripts for Redis, each in a file of its own, read once.

Every script begins with the text of common.lua, so that the layout of a job is written down once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the name under which a server keeps it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of a name, with what all of them share."""
    folder = resources.files(__name__)
    files = ("common.lua", f"{name}.lua")
    text = _without_comments("\n".join((folder / file).read_text("utf-8") for file in files))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)
