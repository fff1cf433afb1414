"""Lua scripts for Redis, each a file beside the code that runs it, read once.

Every script begins with common.lua, so that the layout of a job is written once. A script names the
other files that it needs in its first lines: "-- Uses more/functions.lua."
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources

#: How a script names a file that goes before it.
_USES = re.compile(r"^-- Uses (\S+\.lua)\.$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the digest by which a server knows it."""

    name: str
    text: str
    sha: str


@cache
def script(package: str, name: str) -> Script:
    """The script of this name in a package, with common.lua and what it uses before it."""
    folder = resources.files(package)
    own = (folder / f"{name}.lua").read_text("utf-8")
    before = [(folder / file).read_text("utf-8") for file in ("common.lua", *_USES.findall(own))]
    text = _without_comments("\n".join([*before, own]))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)
