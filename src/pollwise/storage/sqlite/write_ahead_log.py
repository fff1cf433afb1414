"""The write-ahead log of a SQLite file: its size, what keeps it, and whether it is in use."""

from __future__ import annotations

import sqlite3
from pathlib import Path

#: The write-ahead log is cut to this size when it begins again, in bytes. SQLite alone keeps it as
#: large as it ever was.
LOG_KEPT = 8 * 1024 * 1024
#: A log of this size is reported if readers keep it from beginning again; then at twice the size.
LOG_REPORTED = 32 * 1024 * 1024


def log_of(path: Path) -> Path:
    """The write-ahead log of a database."""
    return path.with_name(f"{path.name}-wal")


def log_size(path: Path) -> int:
    """The size of a database's write-ahead log, in bytes."""
    try:
        return log_of(path).stat().st_size
    except OSError:
        return 0


def text_of_large_log(path: Path, size: int) -> tuple[str, str]:
    """Why a write-ahead log is large, and what to do about it."""
    why = (
        f"{log_of(path)} has {size // 2**20} MiB: a transaction that reads was open for long, and "
        "SQLite cannot use the log again before it ends"
    )
    advice = (
        "end that transaction, such as that of a backup, an open sqlite3 shell or an idle program; "
        f"`fuser -v {log_of(path)}` lists the processes that have the file open"
    )
    return why, advice


def readers_keep_log(connection: sqlite3.Connection) -> bool:
    """True if SQLite cannot begin the log again, because a transaction reads. Waits for none."""
    [(_, pages, copied)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return bool(copied < pages)


def is_in_use(path: Path) -> bool:
    """True if a process has the database open, or has died while it had."""
    return log_of(path).exists() or path.with_name(f"{path.name}-shm").exists()
