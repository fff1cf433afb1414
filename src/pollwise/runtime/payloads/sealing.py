"""Seals jobs and records on their way into a store, and opens them on their way out, so that no
store knows of codecs.

To seal is to put a payload or a result into an envelope, encoded by the codecs; to open is the
reverse. A job is *locked* if this process lacks a key or a codec that another process may have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, cast

from pollwise.errors import CodecError, KeyMissing, PayloadError
from pollwise.runtime.decoding import CutText
from pollwise.runtime.jobs import Claim, Job, JobInfo, NewJob, Settlement
from pollwise.runtime.payloads.codec import CodecContext
from pollwise.runtime.payloads.envelope import (
    CodecChain,
    describe,
    unknown_codecs,
)
from pollwise.runtime.payloads.envelope_fields import CODEC_NAMES, is_envelope

T = TypeVar("T")

NO_CODEC = "this process has no codec"
NOT_ENCRYPTED = "is not encrypted, which is required here"
_MARKED = f'"{CODEC_NAMES}"'


class Sealing:
    """Seals and opens what one queue or outbox holds.

    place: the queue or the outbox, such as "queue mail". It is bound to what is sealed.
    chain: the codecs; None if there are none, and then nothing is sealed or opened.
    """

    def __init__(self, place: str, chain: CodecChain | None) -> None:
        self._place = place
        self.chain = chain
        #: Envelopes that others made are taken as they are.
        self.passes_on = False

    # On the way in

    def text(self, encoded: str, kind: str, *, unique: bool) -> str:
        """The payload of a job or record, as JSON text, sealed."""
        if self.chain is None:
            return encoded
        return self.chain.seal(encoded, self._of_payload(kind), unique=unique)

    def jobs(self, jobs: list[NewJob], check: Callable[[str, int], None]) -> list[NewJob]:
        """Copies of jobs to put, with sealed payloads; `check` refuses a kind and a size."""
        if self.chain is None:
            for job in jobs:
                self._check_plain(job.encoded, f"the payload of the job of kind {job.kind!r}")
            return jobs
        sealed = [copy(job) for job in jobs]  # the caller may put its own again, elsewhere
        for job in sealed:
            job.encoded = self.text(job.encoded, job.kind, unique=job.unique is not None)
            job.size = len(job.encoded.encode())
            check(job.kind, job.size)
        return sealed

    def settlements(self, settlements: list[Settlement]) -> list[Settlement]:
        """Settlements with sealed results."""
        return [each if each.result is None else self._settlement(each) for each in settlements]

    def _settlement(self, settlement: Settlement) -> Settlement:
        """A job whose result cannot be sealed is dead: it ran, so a retry would not help."""
        assert settlement.result is not None  # noqa: S101
        job = settlement.claim.job
        try:
            if self.chain is None:
                self._check_plain(settlement.result, f"the result of kind {job.kind!r}")
                return settlement
            result = self.chain.seal(settlement.result, self._of_result(job.kind, job.id))
            return replace(settlement, result=result)
        except (PayloadError, CodecError) as error:
            return Settlement.dead(settlement.claim, f"its result cannot be kept: {error}")

    def _check_plain(self, encoded: str, what: str) -> None:
        """Refuse what looks like an envelope: it could never be read again."""
        if _MARKED in encoded and not self.passes_on and is_envelope(json.loads(encoded)):
            raise PayloadError(
                f"{what} has the field {CODEC_NAMES!r} at its top, which is reserved for encoded "
                "payloads; rename it, or put the whole into a field of its own"
            )

    # On the way out

    def claims(self, claims: list[Claim]) -> list[Claim]:
        if not self.concerns(claim.job.payload for claim in claims):
            return claims
        return [replace(claim, job=self.opened(claim.job)) for claim in claims]

    def info(self, info: JobInfo) -> JobInfo:
        """The record of a job.

        A result that cannot be opened stays an envelope; a plain one is left out where codecs are
        required, because anybody could have written it.
        """
        if not self.concerns((info.job.payload, info.result)):
            return info
        job = self.opened(info.job)
        claim = None if info.claim is None else replace(info.claim, job=job)
        return replace(info, job=job, claim=claim, result=self._result(info))

    def _result(self, info: JobInfo) -> Any:
        try:
            return self.opened_result(info.result, info.job.kind, info.job.id)
        except CodecError:
            return info.result if is_envelope(info.result) else None

    def opened_result(self, result: Any, kind: str, job_id: str) -> Any:
        """A result, decoded. Raises `KeyMissing` or `CodecError`. None means that there is none."""
        if not is_envelope(result):
            if result is not None and self.chain is not None and self.chain.required:
                raise CodecError(f"it {NOT_ENCRYPTED}")
            return result
        if self.chain is None:
            raise unknown_codecs(result, NO_CODEC)
        return self._open(result, self._of_result(kind, job_id))

    def opened(self, item: T) -> T:
        """A job or record with its payload, or with the reason why it cannot be decoded.

        `locked`: a key or a codec is missing here. `unreadable`: it can be decoded nowhere.
        """
        job = cast("Job", item)  # or a record, which has the same fields for this
        if job.unreadable is not None or type(job.payload) is CutText:
            return item
        found = self._found(job.payload, job.kind)
        return cast("T", replace(job, **found)) if found else item

    def _found(self, payload: Any, kind: str) -> dict[str, Any]:
        """The fields of a job or record that opening its payload sets."""
        chain = self.chain
        if not is_envelope(payload):
            if chain is None or not chain.required:
                return {}
            return {"unreadable": f"its payload {NOT_ENCRYPTED}"}
        sealed = describe(payload)
        try:
            if chain is None:
                raise unknown_codecs(payload, NO_CODEC)
            value = self._open(payload, self._of_payload(kind))
        except KeyMissing as error:
            return {"sealed": sealed, "locked": f"its payload cannot be decoded here: {error}"}
        except CodecError as error:
            return {"sealed": sealed, "unreadable": f"its payload cannot be decoded: {error}"}
        return {"payload": value, "sealed": sealed if chain.hides(payload) else None}

    def _open(self, envelope: Any, context: CodecContext) -> Any:
        assert self.chain is not None  # noqa: S101
        if self.chain.required and not self.chain.hides(envelope):
            raise CodecError(f"it {NOT_ENCRYPTED}")
        try:
            return self.chain.open(envelope, context)
        except CodecError:
            raise
        except Exception as error:  # a faulty codec must not stop other jobs
            raise CodecError(f"its codec failed with {type(error).__name__}") from error

    def concerns(self, values: Iterable[Any]) -> bool:
        """True if any value is an envelope, or must be one. Quick, as most queues have none."""
        if self.chain is not None:
            return True
        return any(type(value) is dict and CODEC_NAMES in value for value in values)

    def _of_payload(self, kind: str) -> CodecContext:
        return CodecContext("payload", self._place, kind)

    def _of_result(self, kind: str, job_id: str) -> CodecContext:
        return CodecContext("result", self._place, kind, job_id)
