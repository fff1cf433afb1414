"""Files: modes, locks, and how to open what somebody else may have put there.

Windows ignores modes: who may read a file there follows from the folder that it is in.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from pollwise.errors import ConfigError
from pollwise.platforms.system import is_windows

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Flags of `os.open`; 0 where the system has none.
#: Refuse a link at the end of the path.
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
#: Do not wait for the other end of a pipe.
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
#: Refuse what is not a folder.
FOLDER: int = getattr(os, "O_DIRECTORY", 0)
#: Opening a terminal does not make it the terminal of this process.
NO_TERMINAL: int = getattr(os, "O_NOCTTY", 0)
#: Programs that this one starts do not inherit it. Python sets it anyway, but not at once.
NOT_INHERITED: int = getattr(os, "O_CLOEXEC", 0)
#: Leave the ends of lines as they are.
BINARY: int = getattr(os, "O_BINARY", 0)


def open_private(path: str | Path) -> int:
    """Create a file that this user alone may use; its descriptor. OSError if the path exists.

    On Windows it gets the rights of its folder.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW | NOT_INHERITED
    file = os.open(path, flags, 0o600)
    if hasattr(os, "fchmod") and not is_windows():
        try:
            os.fchmod(file, 0o600)  # whatever the umask
        except BaseException:
            os.close(file)
            raise
    return file


def create_private(path: str | Path) -> None:
    """Create an empty file that this user alone may use; OSError if it exists."""
    os.close(open_private(path))


def may_create_in(folder: Path) -> bool:
    """True if this user may create files in a folder; always True on Windows."""
    effective = os.access in os.supports_effective_ids
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)


def may_be_used_by_others(mode: int) -> bool:
    """True if users other than its owner may read or change a file; never on Windows."""
    return not is_windows() and bool(mode & 0o077)


def set_mode(path: Path, mode: int) -> None:
    """Set who may read and write a file. On Windows, a mode would only make it read-only."""
    if not is_windows():
        path.chmod(mode)


def usual_mode() -> int:
    """The mode that a new file gets from the umask of this process."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; False if another process has locked it."""
    if fcntl is None:
        raise ConfigError("a lock of a file needs Linux or macOS; this is Windows")
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
