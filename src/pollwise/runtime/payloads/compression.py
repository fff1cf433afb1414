"""Compression of payloads and results with zlib."""

from __future__ import annotations

import zlib

from pollwise.errors import CodecError, ConfigError, PayloadError
from pollwise.runtime.payloads.codec import Codec, CodecContext

#: How many bytes a compressed payload may have when it is decompressed.
MAX_BYTES = 16 * 1024 * 1024


class Zlib(Codec):
    """Compresses with zlib. What does not get smaller is kept as it is.

    level: from 1, the fastest, to 9, the smallest.
    max_bytes: larger data is refused when it is put, and never decompressed: a few bytes from a
        stranger could become gigabytes.
    """

    name = "zlib"
    secret = False

    def __init__(self, level: int = 6, *, max_bytes: int = MAX_BYTES) -> None:
        if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= 9:
            raise ConfigError(f"level = {level!r} must be a whole number from 1 to 9")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
            raise ConfigError(f"max_bytes = {max_bytes!r} must be a whole number of at least 1")
        self.level = level
        self.max_bytes = max_bytes

    def encode(self, data: bytes, context: CodecContext) -> bytes:
        if len(data) > self.max_bytes:
            raise PayloadError(
                f"the {context.what} of kind {context.kind!r} has {len(data)} bytes before it is "
                f"compressed; the limit of Zlib, max_bytes, is {self.max_bytes}"
            )
        smaller = zlib.compress(data, self.level)
        return b"\1" + smaller if len(smaller) < len(data) else b"\0" + data

    def decode(self, data: bytes, context: CodecContext) -> bytes:
        if data[:1] == b"\0":
            return data[1:]
        if data[:1] != b"\1":
            raise CodecError("it is not what Zlib wrote")
        reader = zlib.decompressobj()
        try:
            found = reader.decompress(data[1:], self.max_bytes + 1)
        except zlib.error as error:
            raise CodecError(f"it cannot be decompressed: {error}") from None
        if len(found) > self.max_bytes:
            raise CodecError(f"it has more than {self.max_bytes} bytes when decompressed")
        if not reader.eof or reader.unused_data or reader.unconsumed_tail:
            raise CodecError("it cannot be decompressed: its end is missing, or more follows")
        return found
