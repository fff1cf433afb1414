"""The files that a command left in its folder `out`, and what is not sent.

A link that leads out of the folder is never followed: it may point to other people's files. To read
a FIFO could block for ever. The job's log lists what was left out.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

#: The most files of one job.
ARTEFACTS_MAX = 1000
#: The most names in a line about what was left out, and the length of a name, in characters.
NAMED_MAX = 5
NAME_MAX = 80

LINKS = "symbolic links that lead out of it, to a folder, or nowhere"
KINDS = ((stat.S_ISFIFO, "FIFOs"), (stat.S_ISSOCK, "sockets"), (stat.S_ISBLK, "devices"),
         (stat.S_ISCHR, "devices"))  # fmt: skip


class OutputFiles:
    """The files in a folder that match a pattern.

    files: by name; one more than the limit, if there are more.
    """

    def __init__(self, out: Path, patterns: Sequence[str]) -> None:
        self.files: dict[str, Path] = {}
        self._left_out: dict[str, list[str]] = {}  # by kind: the first few
        self._counts: Counter[str] = Counter()
        self._out = out
        # The command may have replaced the folder by a link.
        self._real = out.parent.resolve() / out.name
        if out.is_symlink():
            self._leave_out(LINKS, "$POLLWISE_OUT itself")
            return
        seen: set[Path] = set()
        for pattern in patterns:
            for path in sorted(out.glob(pattern)):
                if len(self.files) > ARTEFACTS_MAX:
                    return
                if path not in seen:
                    seen.add(path)
                    self._sort(path)

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

    def _sort(self, path: Path) -> None:
        name = path.relative_to(self._out).as_posix()
        try:
            mode = path.lstat().st_mode
            within = path.resolve().is_relative_to(self._real)
            is_file = path.is_file()
        except (OSError, RuntimeError):  # deleted meanwhile, or a circle of links
            mode, within, is_file = stat.S_IFLNK, False, False
        if is_file and within:
            self.files[name] = path
        elif stat.S_ISLNK(mode) or not within:
            self._leave_out(LINKS, name)
        else:
            for fits, kind in KINDS:
                if fits(mode):
                    self._leave_out(kind, name)


def _shown(name: str) -> str:
    cut = name if len(name) <= NAME_MAX else f"{name[:NAME_MAX]}…"
    return "".join(c if c.isprintable() else "?" for c in cut)
