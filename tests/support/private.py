"""Files with secrets, as the programs under test require them: for their owner only."""

from __future__ import annotations

from pathlib import Path

from pollwise.platforms.files import create_private


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read; its path."""
    path.unlink(missing_ok=True)
    create_private(path)
    path.write_text(text)
    return path
