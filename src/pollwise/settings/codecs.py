"""The codecs that the settings name, for workers, relays and puts."""

from __future__ import annotations

import os
from functools import lru_cache

from pollwise.errors import ConfigError
from pollwise.runtime.payloads.codec import Codec
from pollwise.runtime.payloads.compression import Zlib
from pollwise.runtime.payloads.encryption import AesGcm
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.payloads.keys import Keys
from pollwise.runtime.variables import KEYS
from pollwise.settings.models import Settings


def codec_of(settings: Settings) -> CodecChain | None:
    """The codecs that `[codec]` names; None if it names none."""
    own = settings.codec
    names = () if own.payloads is None else tuple(own.payloads.split("+"))
    for key, needs in (("key_file", "aes-gcm"), ("required", "aes-gcm"), ("max_bytes", "zlib")):
        if settings.is_set(f"codec.{key}") and needs not in names:
            raise ConfigError(
                f"codec.{key} is set, but codec.payloads is {own.payloads or 'none'}, without "
                f"{needs}; set codec.payloads, or leave out codec.{key}"
            )
    if not names:
        return None
    in_variable = os.environ.get(KEYS, "") if "aes-gcm" in names else ""
    return _made(names, own.key_file, own.required, own.max_bytes, in_variable)


@lru_cache(maxsize=8)
def _made(
    names: tuple[str, ...], key_file: str | None, required: bool, max_bytes: int, in_variable: str
) -> CodecChain:
    """The same object for the same settings, because queues with one codec share connections."""
    codecs: list[Codec] = [
        Zlib(max_bytes=max_bytes) if name == "zlib" else _encryption(key_file, in_variable)
        for name in names
    ]
    return CodecChain(codecs, required=required)


def _encryption(key_file: str | None, in_variable: str) -> AesGcm:
    if key_file is not None and in_variable:
        raise ConfigError(f"codec.key_file = {key_file!r}, but {KEYS} has keys too; keep one")
    if key_file is None and not in_variable:
        raise ConfigError(
            f"codec.payloads is aes-gcm, but there is no key; set codec.key_file or {KEYS}. Make a "
            "key with `pollwise keys new FILE`"
        )
    return AesGcm(Keys.from_environment() if key_file is None else key_file)
