"""Writes the files of a queue in a folder, for its user alone.

obstore leaves modes to the umask, which usually lets all users of a machine read payloads. So we
write files of a folder ourselves, in the same way as obstore does: under another name first, which
its lists leave out, and then under the name by a hard link, which fails if the name exists.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from pollwise.platforms import files

#: How often to try again while another process removes folders that became empty.
TRIES = 20
#: The rights of a group that may write to the queue's folder: it has them inside, too.
GROUP = 0o070


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its user can use, unless it exists."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return
    files.set_mode(folder, 0o700)  # whatever the umask


def create_file(root: Path, name: str, body: bytes) -> bool:
    """Write a new file below the folder; False if it exists. Raises OSError."""
    path = root / name
    shared = root.stat().st_mode & GROUP if root.exists() else 0
    rights = shared if shared & stat.S_IWGRP else 0
    for tries in range(TRIES, 0, -1):
        try:
            _make_folders(root, path.parent, 0o700 | rights)
            return _write(path, body, 0o600 | rights & 0o060)
        except FileNotFoundError:  # a folder was empty, and somebody removed it
            if tries == 1:
                raise
    return False


def _make_folders(root: Path, folder: Path, mode: int) -> None:
    if folder.is_dir():
        return
    if folder == root:
        make_private_folder(folder)
        return
    _make_folders(root, folder.parent, mode)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        return
    if mode & GROUP:
        files.set_mode(folder, mode | folder.stat().st_mode & stat.S_ISGID)


def _write(path: Path, body: bytes, mode: int) -> bool:
    draft = path.with_name(f"{path.name}#{secrets.randbits(62)}")
    descriptor = files.open_private(draft)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
        if mode != 0o600:
            files.set_mode(draft, mode)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True
