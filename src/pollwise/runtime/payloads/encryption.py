"""Encryption of payloads and results with AES-256-GCM, and keys that can be replaced.

What it writes: a version, the length of the key's id, the id, a nonce of 12 random bytes, and the
ciphertext with its tag. The context is bound to it: a payload that is moved to another kind or
queue, or changed in any way, is not decrypted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pollwise.errors import CodecError, ConfigError, KeyMissing, MissingExtra
from pollwise.runtime.payloads.codec import Codec, CodecContext
from pollwise.runtime.payloads.keys import Key, Keys, is_key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = 1
NONCE_BYTES = 12
#: How often a key file is read again because of a key that is not in it, in seconds.
READ_AGAIN_AFTER = 5.0
#: How many keys, the newest ones, make fingerprints.
FINGERPRINTS_MAX = 8


class AesGcm(Codec):
    """Encrypts with AES-256-GCM. The newest key encrypts; all keys decrypt.

    keys: `Keys`; or the path of a key file, which is read again when a key is missing, so that a
        new key needs no restart.
    """

    name = "aes-gcm"
    secret = True

    def __init__(self, keys: Keys | str | os.PathLike[str]) -> None:
        try:
            import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
        except ImportError as error:
            raise MissingExtra("encryption of payloads", "crypto") from error
        self._file: Path | None = None
        if not isinstance(keys, Keys):
            if not isinstance(keys, (str, os.PathLike)):
                raise ConfigError("keys must be Keys, or the path of a key file")
            self._file = Path(keys)
            keys = Keys.from_file(self._file)
        self._lock = threading.Lock()
        self._read_at = time.monotonic()
        self._use(keys)

    def encode(self, data: bytes, context: CodecContext) -> bytes:
        key, nonce = self._newest, os.urandom(NONCE_BYTES)
        return key.head + nonce + key.cipher.encrypt(nonce, data, context.bound())

    def decode(self, data: bytes, context: CodecContext) -> bytes:
        from cryptography.exceptions import InvalidTag

        key_id = key_id_of(data)
        if key_id is None:
            raise CodecError("it is not what AesGcm wrote")
        key = self._by_id.get(key_id) or self._read_again(key_id)
        if key is None:
            raise KeyMissing(
                f"it is encrypted with the key {key_id!r}, which is not in {self._origin}; add it"
            )
        rest = data[len(key.head) :]
        try:
            return key.cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], context.bound())
        except (InvalidTag, ValueError):
            raise CodecError(
                "it was changed since it was encrypted, or moved here from another kind or queue, "
                f"or this process has a different key under the id {key_id!r}"
            ) from None

    def fingerprints(self, data: bytes, context: CodecContext) -> Mapping[str, str]:
        newest = [*self._by_id.items()][-FINGERPRINTS_MAX:]
        return {key_id: key.fingerprint(data, context) for key_id, key in newest}

    def __repr__(self) -> str:
        return f"AesGcm({', '.join(self._by_id)})"

    def _use(self, keys: Keys) -> None:
        self._origin = keys.origin
        self._by_id = {key.id: _Cipher(key) for key in keys.keys}
        self._newest = self._by_id[keys.newest.id]

    def _read_again(self, key_id: str) -> _Cipher | None:
        """Read the key file again; the key, if it is there now."""
        with self._lock:
            if self._file is not None and time.monotonic() >= self._read_at + READ_AGAIN_AFTER:
                self._read_at = time.monotonic()
                try:
                    self._use(Keys.from_file(self._file))
                except ConfigError as error:
                    raise KeyMissing(f"it is encrypted with another key, and {error}") from None
            return self._by_id.get(key_id)


class _Cipher:
    """A key, ready to use. Encryption and fingerprints use keys that are derived from it."""

    def __init__(self, key: Key) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        name = key.id.encode()
        self.head = bytes([VERSION, len(name)]) + name
        self.cipher: AESGCM = AESGCM(_derived(key, b"pollwise aes-gcm"))
        self._fingerprint_key = _derived(key, b"pollwise fingerprint")

    def fingerprint(self, data: bytes, context: CodecContext) -> str:
        bound = context.bound()
        text = len(bound).to_bytes(8, "big") + bound + data
        digest = hmac.digest(self._fingerprint_key, text, hashlib.sha256)
        return base64.b64encode(digest[:18]).decode()


def _derived(key: Key, purpose: bytes) -> bytes:
    return hmac.digest(key.secret, purpose, hashlib.sha256)


def key_id_of(data: bytes) -> str | None:
    """The id of the key that encrypted these bytes; None if AesGcm did not write them."""
    if len(data) < 2 or data[0] != VERSION or len(data) < 2 + data[1] + NONCE_BYTES:
        return None
    name = data[2 : 2 + data[1]].decode("latin-1")
    return name if is_key_id(name) else None
