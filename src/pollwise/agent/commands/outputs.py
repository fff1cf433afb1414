"""The files that a command left in its folder `out`, and what is not sent.

A link that leads out of the folder is never followed: it may point to other people's files. A FIFO
is never read, because that could block for ever. The job's log lists what was left out.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

#: The most files of one job.
ARTEFACTS_MAX = 1000
#: The most files and folders that are looked at, and the most folders within each other.
ENTRIES_MAX = 100_000
DEPTH_MAX = 100
#: The most names in a line about what was left out, and the length of a name, in characters.
NAMED_MAX = 5
NAME_MAX = 80

LINKS = "symbolic links that lead out of it, to a folder, or nowhere"
KINDS = ((stat.S_ISFIFO, "FIFOs"), (stat.S_ISSOCK, "sockets"), (stat.S_ISBLK, "devices"),
         (stat.S_ISCHR, "devices"))  # fmt: skip
NOT_UTF8 = "names that are not UTF-8; rename the files"
UNPRINTABLE = "names with line breaks or other unprintable characters; rename the files"
TOO_DEEP = f"folders more than {DEPTH_MAX} levels deep"
UNREADABLE = "folders that cannot be read"


class OutputFiles:
    """The files in a folder that match a pattern.

    files: by name, the parts of the path in `out` that lead to the file without a link.
    too_many: a sentence if there is more than can be sent.
    """

    def __init__(self, out: Path, patterns: Sequence[str]) -> None:
        self.files: dict[str, tuple[str, ...]] = {}
        self.too_many: str | None = None
        self._left_out: dict[str, list[str]] = {}  # by kind: the first few
        self._counts: Counter[str] = Counter()
        self._out = out
        self._real = os.path.realpath(out.parent) + os.sep + out.name
        self._patterns = [Path(pattern).parts for pattern in patterns]
        self._seen = 0
        if out.is_symlink():  # the command may have replaced the folder by a link
            self._leave_out(LINKS, "$POLLWISE_OUT itself")
        else:
            self._walk()

    def left_out(self) -> Iterator[str]:
        """A line for each kind of thing that was left out."""
        for kind, names in self._left_out.items():
            count, shown = self._counts[kind], ", ".join(map(_shown, names))
            more = ", …" if count > len(names) else ""
            yield f"not sent from $POLLWISE_OUT: {kind} ({count}: {shown}{more})"

    def _leave_out(self, kind: str, name: str) -> None:
        self._counts[kind] += 1
        names = self._left_out.setdefault(kind, [])
        if len(names) < NAMED_MAX:
            names.append(name)

    def _walk(self) -> None:
        folders: list[tuple[str, ...]] = [()]
        while folders:
            parts = folders.pop()
            names = self._names(parts)
            for name in names:
                self._sort((*parts, name), folders)
            if len(self.files) > ARTEFACTS_MAX:
                self.too_many = f"there are more than {ARTEFACTS_MAX} artefacts"
            if self.too_many is not None:
                return

    def _names(self, parts: tuple[str, ...]) -> list[str]:
        """The names in a folder, sorted; none if it cannot be read."""
        found = []
        try:
            with os.scandir(self._out.joinpath(*parts)) as entries:
                for entry in entries:
                    self._seen += 1
                    if self._seen > ENTRIES_MAX:
                        self.too_many = (
                            f"there are more than {ENTRIES_MAX} files and folders in $POLLWISE_OUT"
                        )
                        return []
                    found.append(entry.name)
        except FileNotFoundError:
            pass
        except OSError:
            self._leave_out(UNREADABLE, "/".join(parts) or "$POLLWISE_OUT itself")
        return sorted(found)

    def _sort(self, parts: tuple[str, ...], folders: list[tuple[str, ...]]) -> None:
        name, path = "/".join(parts), self._out.joinpath(*parts)
        wanted = any(_matches(parts, pattern) for pattern in self._patterns)
        leads_on = any(_matches(parts, pattern, above=True) for pattern in self._patterns)
        if not wanted and not leads_on:
            return
        try:
            mode = path.lstat().st_mode
        except OSError:  # deleted meanwhile
            return
        if stat.S_ISDIR(mode):
            if leads_on and len(parts) < DEPTH_MAX:
                folders.append(parts)
            elif leads_on:
                self._leave_out(TOO_DEEP, name)
        elif stat.S_ISLNK(mode):
            target = self._target(path)
            if target is not None and wanted:
                self._add(name, target)
            elif wanted or (leads_on and path.is_dir()):
                self._leave_out(LINKS, name)
        elif not wanted:
            return
        elif stat.S_ISREG(mode):
            self._add(name, parts)
        else:
            for fits, kind in KINDS:
                if fits(mode):
                    self._leave_out(kind, name)

    def _add(self, name: str, parts: tuple[str, ...]) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            self._leave_out(NOT_UTF8, name)
        else:
            if name.isprintable():
                self.files[name] = parts
            else:  # the controller takes no such name
                self._leave_out(UNPRINTABLE, name)

    def _target(self, link: Path) -> tuple[str, ...] | None:
        """The path of the file in `out` to which a link leads; None if it leads elsewhere."""
        try:
            real = Path(os.path.realpath(link, strict=True))
            if stat.S_ISREG(real.lstat().st_mode):
                return real.relative_to(self._real).parts
        except (OSError, RuntimeError, ValueError):  # nowhere, a circle of links, or out of it
            pass
        return None


def _matches(parts: Sequence[str], pattern: Sequence[str], *, above: bool = False) -> bool:
    """True if a path matches a pattern; with `above`, if something below the path could."""
    if not parts:
        return bool(pattern) if above else all(each == "**" for each in pattern)
    if not pattern:
        return False
    if pattern[0] == "**":
        return _matches(parts, pattern[1:], above=above) or _matches(
            parts[1:], pattern, above=above
        )
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:], above=above)


def _shown(name: str) -> str:
    cut = name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}…"
    return "".join(c if c.isprintable() else "?" for c in cut)
