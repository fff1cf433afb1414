"""Keys for encryption: read from a file or a variable, never printed.

A key is a line `ID BASE64`, the newest last. The last one encrypts; all of them decrypt. The word
`decrypt-only` behind a key keeps it from encrypting, until every process has it.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pollwise.errors import ConfigError
from pollwise.platforms import files
from pollwise.runtime.variables import KEYS

KEY_BYTES = 32
#: The maximum number of keys.
KEYS_MAX = 100
#: The maximum size of a key file, in bytes.
FILE_BYTES_MAX = 64 * 1024
#: The word behind a key that does not encrypt.
DECRYPT_ONLY = "decrypt-only"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_LINES = re.compile(r"[\n,;]")


def is_key_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Key:
    """A key and its id, which is stored with what it encrypted."""

    id: str
    secret: bytes = field(repr=False)
    decrypt_only: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not is_key_id(self.id):
            raise ConfigError(
                f"the id of a key, {str(self.id)[:8]!r}…, must have 1 to 40 letters, digits, '.', "
                "'-' and '_', and begin with a letter or digit"
            )
        if not isinstance(self.secret, bytes) or len(self.secret) != KEY_BYTES:
            raise ConfigError(
                f"the key {self.id} must have {KEY_BYTES} bytes; make one with "
                "`pollwise keys new FILE`"
            )

    @classmethod
    def new(cls, *, decrypt_only: bool = False) -> Key:
        """A random key, whose id has the date of today."""
        made = datetime.now(UTC).strftime("%Y-%m-%d")
        return cls(f"{made}-{secrets.token_hex(2)}", secrets.token_bytes(KEY_BYTES), decrypt_only)

    def line(self) -> str:
        """The key as a line of a file. Do not print it."""
        words = [self.id, base64.b64encode(self.secret).decode()]
        return " ".join([*words, DECRYPT_ONLY] if self.decrypt_only else words)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys by id, in order: the last one that is not `decrypt-only` encrypts."""

    keys: tuple[Key, ...]
    origin: str = "the program"

    def __post_init__(self) -> None:
        ids = [key.id for key in self.keys]
        twice = [each for each in ids if ids.count(each) > 1]
        if twice:
            raise ConfigError(f"two keys in {self.origin} have the id {twice[0]}")
        if len(ids) > KEYS_MAX:
            raise ConfigError(f"{self.origin} has {len(ids)} keys; at most {KEYS_MAX}")
        if all(key.decrypt_only for key in self.keys):
            raise ConfigError(
                f"{self.origin} has no key that may encrypt; make one with `pollwise keys new FILE`"
            )

    @property
    def newest(self) -> Key:
        """The key that encrypts."""
        return [key for key in self.keys if not key.decrypt_only][-1]

    def by_id(self) -> dict[str, Key]:
        return {key.id: key for key in self.keys}

    def with_key(self, key: Key) -> Keys:
        return replace(self, keys=(*self.keys, key))

    def used(self, key_id: str) -> Keys:
        """The same keys; this one is the last, so it encrypts."""
        chosen = self.by_id().get(key_id)
        if chosen is None:
            raise ConfigError(f"{self.origin} has no key {key_id!r}; it has {self.listed()}")
        others = tuple(key for key in self.keys if key is not chosen)
        return replace(self, keys=(*others, replace(chosen, decrypt_only=False)))

    def listed(self) -> str:
        """The ids, for messages."""
        return ", ".join(key.id for key in self.keys)

    @classmethod
    def read(cls, text: str, origin: str) -> Keys:
        """Read keys from lines `ID BASE64`; commas and semicolons count as ends of lines."""
        found = []
        for number, line in enumerate(_LINES.split(text), 1):
            words = line.partition("#")[0].split()
            if words:
                found.append(_key_of(words, f"line {number} of {origin}"))
        return cls(tuple(found), origin)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keys:
        """Read keys from a file that only its owner may read."""
        return cls.read(read_private(Path(path)), f"the key file {path}")

    @classmethod
    def from_environment(cls, name: str = KEYS, environ: Mapping[str, str] | None = None) -> Keys:
        """Read keys from an environment variable, POLLWISE_KEYS by default."""
        text = (os.environ if environ is None else environ).get(name, "")
        if not text.strip():
            raise ConfigError(f"the environment variable {name} has no key; set it, or give a file")
        return cls.read(text, f"the environment variable {name}")

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the whole file, readable by its owner only."""
        path = Path(file)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        text = "".join(f"{key.line()}\n" for key in self.keys)
        try:
            place = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(place, "w", encoding="ascii") as written:
                written.write(text)
                written.flush()
                os.fsync(written.fileno())
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ConfigError(f"the key file {path} cannot be written: {error.strerror}") from None


def _key_of(words: Sequence[str], where: str) -> Key:
    """A key from its words. Errors do not quote them: any of them may be the key."""
    if len(words) not in (2, 3) or words[2:] not in ([], [DECRYPT_ONLY]):
        raise ConfigError(
            f"{where} must be an id and a key in base64, with a space between; make one with "
            "`pollwise keys new FILE`"
        )
    try:
        secret = base64.b64decode(words[1].replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"the key in {where} is not base64") from None
    if not is_key_id(words[0]) or len(secret) != KEY_BYTES:
        raise ConfigError(
            f"{where} must be an id of letters, digits, '.', '-' and '_', and a key of "
            f"{KEY_BYTES} bytes in base64; make one with `pollwise keys new FILE`"
        )
    return Key(words[0], secret, len(words) == 3)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | files.NO_WAIT)


def _is_credential(path: Path, about: os.stat_result) -> bool:
    """True for a file that systemd passes to a service with `LoadCredential=`.

    Such a file and its folder belong to root. The service's user may read it by an access list,
    which the mode shows as a right of the group.
    """
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder or path.absolute().parent != Path(folder).absolute():
        return False
    return about.st_uid == 0 and not about.st_mode & 0o337


def read_private(
    path: Path,
    what: str = "key file",
    otherwise: str = "make a new key",
    encoding: str = "ascii",
) -> str:
    """The text of a file; a ConfigError if users other than its owner may read or change it.

    what, otherwise: what the file is, and what to do if others may have read it.
    """
    try:
        # A pipe must be refused, not waited for.
        with open(path, "rb", opener=_without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(f"the {what} {path} is not a file")
            if files.may_be_used_by_others(about.st_mode) and not _is_credential(path, about):
                raise ConfigError(
                    f"the {what} {path} has the mode {about.st_mode & 0o777:04o}, so users other "
                    f"than its owner can use it; run `chmod 600 {path}`, and {otherwise} if others "
                    "may have read it"
                )
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the {what} {path} has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise ConfigError(f"the {what} {path} is not text") from None
