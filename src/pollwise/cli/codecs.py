"""The codec of the settings, for workers, relays and puts."""

from __future__ import annotations

import os

from pollwise.errors import ConfigError
from pollwise.runtime.payloads.codec import Codec
from pollwise.runtime.payloads.compression import Zlib
from pollwise.runtime.payloads.encryption import AesGcm
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.payloads.keys import Keys
from pollwise.runtime.variables import KEYS
from pollwise.settings import Settings


def codec_of(settings: Settings) -> CodecChain | None:
    """The codecs that `[codec]` names; None if it names none."""
    own = settings.codec
    names = [] if own.payloads is None else own.payloads.split("+")
    for key, needs in (("key_file", "aes-gcm"), ("required", "aes-gcm"), ("max_bytes", "zlib")):
        if settings.is_set(f"codec.{key}") and needs not in names:
            raise ConfigError(
                f"codec.{key} is set, but codec.payloads is {own.payloads or 'none'}, without "
                f"{needs}; set codec.payloads, or leave out codec.{key}"
            )
    codecs: list[Codec] = [
        Zlib(max_bytes=own.max_bytes) if name == "zlib" else _encryption(own.key_file)
        for name in names
    ]
    return CodecChain(codecs, required=own.required) if codecs else None


def _encryption(key_file: str | None) -> AesGcm:
    if key_file is not None and os.environ.get(KEYS):
        raise ConfigError(f"codec.key_file = {key_file!r}, but {KEYS} has keys too; keep one")
    if key_file is None and not os.environ.get(KEYS):
        raise ConfigError(
            f"codec.payloads is aes-gcm, but there is no key; set codec.key_file or {KEYS}. Make a "
            "key with `pollwise keys new FILE`"
        )
    return AesGcm(Keys.from_environment() if key_file is None else key_file)
