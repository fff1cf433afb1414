"""Splits URLs that users give, with errors that do not contain their passwords."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from pollwise.errors import ConfigError
from pollwise.runtime.redact import without_user


def split_url(url: str) -> SplitResult:
    """The parts of a URL. Raises ConfigError, where `urlsplit` raises ValueError with the text."""
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigError(
            f"the host of the URL {without_user(url)!r} cannot be read; write special characters "
            "in a user or a password as %XX"
        ) from None


def has_late_at(parts: SplitResult) -> bool:
    """True if an @ follows the host: then a '?', '/' or '#' before it may be of a password."""
    return "@" not in parts.netloc and "@" in unquote(parts.path + parts.query + parts.fragment)
