"""Changes of files, reported by the kernel: inotify, which only Linux has.

macOS and Windows report changes in ways of their own, which are not used: there, callers compare
time stamps.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from pollwise.platforms.system import is_linux

# From <linux/inotify.h>.
MODIFIED = 0x002
ATTRIBUTES = 0x004  # a new time stamp is a change of attributes
WRITTEN = 0x008  # closed after writing
MOVED_TO = 0x080
CREATED = 0x100


def can_watch() -> bool:
    """True if the kernel can report changes of files."""
    return is_linux()


def inotify(paths: Iterable[Path], events: int) -> int:
    """A file descriptor that becomes readable whenever one of the files has such an event."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    for path in paths:
        if libc.inotify_add_watch(descriptor, os.fsencode(path), events) < 0:
            error = ctypes.get_errno()
            os.close(descriptor)
            raise OSError(error, "inotify_add_watch")
    return descriptor
