"""Writes files of the lab."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.platforms.files import set_mode, usual_mode


def write(path: Path, content: bytes) -> None:
    """Write a file completely, or not at all."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            set_mode(Path(name), usual_mode())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
