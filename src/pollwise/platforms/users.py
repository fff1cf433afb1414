"""Users of the machine. Windows does not know them by numbers."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any

from pollwise.errors import ConfigError

try:
    import pwd
except ImportError:  # Windows
    pwd = None  # type: ignore[assignment]


def named(name: str) -> Any:
    """The entry of a user in the password database; KeyError if there is none."""
    if pwd is None:
        raise ConfigError(
            f"user = {name!r} needs Linux or macOS, and this is Windows; leave it out"
        )
    return pwd.getpwnam(name)


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def is_ours(about: os.stat_result) -> bool:
    """True if this user owns a file; on Windows, where nobody can tell, always."""
    return not hasattr(os, "getuid") or about.st_uid == os.getuid()


def give(path: Path, uid: int, gid: int) -> None:
    """Change the owner of a file or a link."""
    os.chown(path, uid, gid, follow_symlinks=False)


def groups_of(name: str, gid: int) -> list[int]:
    return os.getgrouplist(name, gid)


def who_am_i() -> str:
    """The name of this user, or its number: a container may run as a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # the last one on Windows, before Python 3.13
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"
