"""The password of a web interface: from a private file, or from the environment."""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.runtime.payloads.keys import read_private

#: The shortest and the longest password, in characters.
SHORTEST = 8
LONGEST = 1000


class Password:
    """A password, of which only a hash is kept."""

    def __init__(self, password: str, origin: str = "password") -> None:
        if not isinstance(password, str) or not SHORTEST <= len(password) <= LONGEST:
            length = len(password) if isinstance(password, str) else 0
            raise ConfigError(
                f"{origin}: the password has {length} characters; use {SHORTEST} to {LONGEST}"
            )
        self.hash: str = _hash(password)

    def is_it(self, given: str) -> bool:
        """Compare in a time that reveals nothing about the password."""
        return compare_digest(self.hash, _hash(given[: LONGEST + 1]))

    def __repr__(self) -> str:
        return "Password(***)"


def _hash(password: str) -> str:
    return sha256(password.encode("utf-8", "surrogatepass")).hexdigest()


def read_password(path: Path) -> str:
    """The first line of a file that only its owner may read."""
    text = read_private(path, "password file", "choose a new password", "utf-8")
    return text.partition("\n")[0].rstrip("\r")
