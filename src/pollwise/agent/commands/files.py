"""Opens and removes what a command left behind, whatever it is.

A command may replace any file of its folder by a FIFO, a link to a device or somebody else's file,
or leave folders that nobody can read or that nest for ever. Nothing here waits for such a file,
follows a link, or reads more than it was asked for.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import IO

from pollwise.platforms.files import FOLDER, NO_FOLLOW, NO_TERMINAL, NO_WAIT, NOT_INHERITED

_FOLDER = os.O_RDONLY | FOLDER | NO_FOLLOW | NOT_INHERITED
_FILE = os.O_RDONLY | NO_FOLLOW | NO_WAIT | NOT_INHERITED | NO_TERMINAL


def open_inside(folder: Path, *parts: str, owner: int | None = None) -> IO[bytes]:
    """Open a regular file in a folder for reading; no part of its path may be a link.

    owner: the id of the user that must own the file; a hard link may lead to somebody else's.
    """
    at = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        descriptor = os.open(parts[-1], _FILE, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise _not_a_file() from None
        raise
    finally:
        os.close(at)
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or owner not in (None, info.st_uid):
        os.close(descriptor)
        raise _not_a_file()
    return os.fdopen(descriptor, "rb", buffering=0)


def _not_a_file() -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file")


def read_at_most(file: IO[bytes], limit: int) -> bytes:
    """Up to `limit` bytes of a file, from where it is."""
    data = bytearray()
    while len(data) < limit and (piece := file.read(limit - len(data))):
        data += piece
    return bytes(data)


def write_new(path: Path, data: bytes) -> None:
    """Write a new file, in place of whatever has that name now; it is on disk at the return."""
    remove_tree(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | NOT_INHERITED
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; nothing, if there is none.

    Folders inside are moved to the top before they are emptied: no depth is too deep, and no path
    too long. Raises the first `OSError` after everything else was removed.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        parent = os.open(path.parent, _FOLDER & ~NO_FOLLOW)
    except FileNotFoundError:
        return
    try:
        top = _open_folder(path.name, parent)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path.name, dir_fd=parent)
    finally:
        os.close(parent)


def _open_folder(name: str, at: int) -> int:
    """Open a folder whose permissions may forbid it."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=at)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=at)
        folder = os.open(name, _FOLDER, dir_fd=at)
    if os.fstat(folder).st_mode & 0o700 != 0o700:
        with suppress(OSError):
            os.fchmod(folder, 0o700)
    return folder


def _empty(top: int) -> None:
    prefix, numbers = secrets.token_hex(8), count()
    problem: OSError | None = None
    progress = True
    while progress:
        progress, problem = False, None
        with os.scandir(top) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folder = _open_folder(entry.name, top)
                        try:
                            for name in _remove_files(folder):
                                _move_up(name, folder, f"{prefix}.{next(numbers)}", top)
                                progress = True
                        finally:
                            os.close(folder)
                        os.rmdir(entry.name, dir_fd=top)
                    else:
                        os.unlink(entry.name, dir_fd=top)
                    progress = True
                except OSError as error:
                    problem = problem or error
    if problem is not None:
        raise problem


def _remove_files(folder: int) -> list[str]:
    """Remove the files of a folder; the names of the folders in it."""
    inner = []
    with closing(os.scandir(folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return inner


def _move_up(name: str, folder: int, to: str, top: int) -> None:
    try:
        os.rename(name, to, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:  # a folder that is moved to another one must be writable
        os.chmod(name, 0o700, dir_fd=folder)
        os.rename(name, to, src_dir_fd=folder, dst_dir_fd=top)
