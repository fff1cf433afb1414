"""Envelopes: an encoded payload or result is stored as a small JSON object.

    {"~codec": "zlib+aes-gcm", "data": "AQNr…"}

`~codec` names the codecs in the order in which they encoded. `same` is there if the job has a
`unique`: fingerprints of the payload, by key, so that a store that cannot decode the payload can
still see that the same job is put again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pollwise.errors import CodecError, ConfigError, KeyMissing
from pollwise.runtime.decoding import decode
from pollwise.runtime.payloads.codec import Codec, CodecContext, check_codec
from pollwise.runtime.payloads.envelope_fields import (
    CODEC_NAMES,
    DATA,
    SAME,
    canonical,
    is_envelope,
)

#: How many codecs a payload may have gone through.
CODECS_MAX = 8

Codecs = Codec | Sequence[Codec]


class CodecChain:
    """Codecs that encode one after the other, and decode in the reverse order.

    required: payloads and results that no secret codec encoded are refused, not accepted as they
        are.
    """

    def __init__(self, codecs: Codecs, *, required: bool = False) -> None:
        several = isinstance(codecs, Sequence) and not isinstance(codecs, str)
        given: Sequence[object] = codecs if several else [codecs]  # type: ignore[assignment]
        self.codecs: tuple[Codec, ...] = tuple(map(check_codec, given))
        names = [codec.name for codec in self.codecs]
        if not names or len(names) > CODECS_MAX or len(set(names)) < len(names):
            raise ConfigError(
                f"codec = {names!r} must be 1 to {CODECS_MAX} codecs with different names"
            )
        self.required = required
        self.secret: bool = any(codec.secret for codec in self.codecs)
        if required and not self.secret:
            raise ConfigError(f"required = True, but {'+'.join(names)} encrypts nothing")
        self._names = "+".join(names)
        self._by_name = {codec.name: codec for codec in self.codecs}

    def seal(self, text: str, context: CodecContext, *, unique: bool = False) -> str:
        """JSON text, encoded: the text of an envelope.

        Without a secret codec, the shorter of the two texts, because an envelope takes space too.
        """
        envelope: dict[str, Any] = {CODEC_NAMES: self._names}
        if unique:
            envelope[SAME] = self._fingerprints(canonical(json.loads(text)).encode(), context)
        context = replace(context, envelope=canonical(envelope))
        data = text.encode()
        for codec in self.codecs:
            data = codec.encode(data, context)
        envelope[DATA] = base64.b64encode(data).decode()
        sealed = json.dumps(envelope, separators=(",", ":"))
        if not self.secret and len(sealed) >= len(text.encode()) and CODEC_NAMES not in text:
            return text
        return sealed

    def open(self, envelope: dict[str, Any], context: CodecContext) -> Any:
        """The JSON value inside an envelope.

        Raises `KeyMissing` if a codec or a key is missing here, else `CodecError`.
        """
        names = str(envelope[CODEC_NAMES]).split("+")
        codecs = [self._by_name.get(name) for name in names[:CODECS_MAX]]
        if None in codecs or len(names) > CODECS_MAX:
            raise unknown_codecs(envelope, f"this process has {self._names}")
        data = encoded_bytes(envelope)
        others = {name: value for name, value in envelope.items() if name != DATA}
        context = replace(context, envelope=canonical(others))
        for codec in reversed(codecs):
            assert codec is not None  # noqa: S101
            data = codec.decode(data, context)
        try:
            return decode(data)
        except ValueError as error:
            raise CodecError(f"what it decodes to is not JSON: {error}") from None

    def hides(self, envelope: dict[str, Any]) -> bool:
        """True if a secret codec encoded it, or one that is not known here."""
        found = [self._by_name.get(name) for name in str(envelope[CODEC_NAMES]).split("+")]
        return any(codec is None or codec.secret for codec in found)

    def _fingerprints(self, data: bytes, context: CodecContext) -> dict[str, str]:
        for codec in self.codecs:
            if codec.secret:
                return dict(codec.fingerprints(data, context))
        return {"": hashlib.sha256(data).hexdigest()[:40]}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodecChain):
            return NotImplemented
        return (self.codecs, self.required) == (other.codecs, other.required)

    def __hash__(self) -> int:
        return hash((self.codecs, self.required))

    def __repr__(self) -> str:
        return f"CodecChain({self._names})"


def chain_of(codec: Codecs | CodecChain | None) -> CodecChain | None:
    """The argument `codec` of a queue or an outbox, checked."""
    return codec if codec is None or isinstance(codec, CodecChain) else CodecChain(codec)


def unknown_codecs(envelope: dict[str, Any], have: str) -> KeyMissing:
    names = str(envelope[CODEC_NAMES])[:100]
    return KeyMissing(f"it is encoded with {names!r}, but {have}; give the queue or outbox a codec")


def encoded_bytes(envelope: dict[str, Any]) -> bytes:
    text = envelope.get(DATA)
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if not data or base64.b64encode(data).decode() != text:
        raise CodecError("its envelope is damaged")
    return data


def describe(envelope: dict[str, Any]) -> str:
    """The text that is shown in place of an encoded payload.

    >>> describe({"~codec": "zlib", "data": "AAAA"})
    '<encoded with zlib, 3 bytes>'
    """
    from pollwise.runtime.payloads.encryption import key_id_of

    try:
        data = encoded_bytes(envelope)
    except CodecError:
        return "<encoded, damaged>"
    names = str(envelope[CODEC_NAMES])[:100]
    key_id = key_id_of(data) if names.rpartition("+")[2] == "aes-gcm" else None
    if key_id is None:
        return f"<encoded with {names}, {len(data)} bytes>"
    return f"<encrypted, key id {key_id}, {len(data)} bytes>"


def shown(value: Any) -> Any:
    """A payload or a result for people: as it is, or a description of what is encoded."""
    return describe(value) if is_envelope(value) else value
