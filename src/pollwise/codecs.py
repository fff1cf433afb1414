"""Codecs for payloads and results, and the names that the author of a new one needs."""

from pollwise.runtime.payloads.codec import Codec, CodecContext
from pollwise.runtime.payloads.compression import Zlib
from pollwise.runtime.payloads.encryption import AesGcm
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.payloads.keys import Key, Keys

__all__ = ["AesGcm", "Codec", "CodecChain", "CodecContext", "Key", "Keys", "Zlib"]
