"""How much a process uses, and how much it may use. Windows has no such limits."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pollwise.platforms.system import is_macos

#: macOS refuses more open files than this, even where it says that there is no limit.
_MACOS_FILES_MAX = 10_240
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The memory of this process: now on Linux, its peak on macOS; 0 if it is not known."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if is_macos() else peak * 1024  # macOS counts bytes


def limit_this_process(*, memory: int, cpu_seconds: int) -> None:
    """Bound what this process may use, as far as the system can; it also gets a low priority."""
    with suppress(ImportError):
        import resource

        wanted = {
            resource.RLIMIT_AS: (memory, memory),  # macOS may refuse it
            resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
            resource.RLIMIT_CORE: (0, 0),
        }
        for each, values in wanted.items():
            with suppress(ValueError, OSError):
                resource.setrlimit(each, values)
    with suppress(AttributeError, OSError):
        os.nice(10)


def allow_open_files() -> None:
    """Raise the limit of open files as far as this process may: many systems allow few."""
    try:
        import resource
    except ImportError:
        return
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if is_macos() and (hard == resource.RLIM_INFINITY or hard > _MACOS_FILES_MAX):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_MACOS_FILES_MAX, hard))
        else:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
