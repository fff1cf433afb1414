"""The contract of a codec: bytes in, bytes out, such as compressed or encrypted ones."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pollwise.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CodecContext:
    """Describes what is encoded and where it belongs. It is the same when it is decoded.

    what: "payload" or "result".
    place: the queue or the outbox, such as "queue mail".
    kind: of the job or record.
    job: the id of the job, for a result; a payload is encoded before its job has an id.
    envelope: the other fields of the envelope, as JSON.
    """

    what: Literal["payload", "result"]
    place: str
    kind: str
    job: str = ""
    envelope: str = ""

    def bound(self) -> bytes:
        """All of it as bytes: for an encryption to bind, so that nothing can be moved elsewhere."""
        parts = [self.what, self.place, self.kind, self.job, self.envelope]
        return json.dumps(parts).encode()


class Codec(ABC):
    """Encodes payloads and results before they reach a store, and decodes what comes back.

    Calls come from any thread, and must not block: they run in the event loop.

    name: is stored with what it encoded: 1 to 20 letters, digits, '-' and '_'. Keep it for as long
        as jobs that it encoded exist.
    secret: hides what it encoded from commands, views, logs and errors.
    """

    name: ClassVar[str]
    secret: ClassVar[bool] = True

    @abstractmethod
    def encode(self, data: bytes, context: CodecContext) -> bytes: ...

    @abstractmethod
    def decode(self, data: bytes, context: CodecContext) -> bytes:
        """The bytes that were encoded.

        Raises `CodecError` if they were changed or belong to another context, and `KeyMissing` if
        another process may have what is needed to decode them.
        """

    def fingerprints(self, data: bytes, context: CodecContext) -> Mapping[str, str]:
        """Short texts that are equal for equal data, by the id of the key that made each.

        They are stored with jobs that have a `unique`, so that a store can see that a job is put
        again. A secret codec without them makes each repeat a `UniqueConflict`.
        """
        return {}


def check_codec(codec: object) -> Codec:
    """Refuse what is not a codec."""
    if not isinstance(codec, Codec):
        raise ConfigError(f"codec = {codec!r} must be a Codec, such as Zlib(), or a list of them")
    name = getattr(codec, "name", None)
    plain = isinstance(name, str) and name.replace("-", "").replace("_", "")
    if not plain or not plain.isalnum() or not plain.isascii() or len(str(name)) > 20:
        raise ConfigError(
            f"the name {name!r} of the codec {type(codec).__name__} must have 1 to 20 letters, "
            "digits, '-' and '_'"
        )
    return codec
