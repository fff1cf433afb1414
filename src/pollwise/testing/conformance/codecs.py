"""Codecs: the store holds envelopes, and a process that has the codec sees jobs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

from pollwise.errors import CodecError, JobFailed, KeyMissing, PayloadError, UniqueConflict
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.payloads.codec import Codec, CodecContext
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.payloads.envelope_fields import CODEC_NAMES, DATA, is_envelope
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    keeping,
    payloads,
    refused,
    require,
)


class Masked(Codec):
    """Hides bytes from readers of a store, differently each time. Not safe: for checks only."""

    name = "masked"

    def __init__(self, key: str = "key") -> None:
        self._key = key

    def encode(self, data: bytes, context: CodecContext) -> bytes:
        nonce = secrets.token_bytes(8)
        tag = self._tag(data, context).encode()
        return nonce + self._masked(data, nonce) + tag

    def decode(self, data: bytes, context: CodecContext) -> bytes:
        found = self._masked(data[8:-16], data[:8])
        if self._tag(found, context).encode() != data[-16:]:
            raise CodecError("it was changed")
        return found

    def fingerprints(self, data: bytes, context: CodecContext) -> Mapping[str, str]:
        return {self._key: self._tag(data, context)}

    def _masked(self, data: bytes, nonce: bytes) -> bytes:
        mask = hashlib.shake_256(self._key.encode() + nonce).digest(len(data))
        return bytes(one ^ other for one, other in zip(data, mask, strict=True))

    def _tag(self, data: bytes, context: CodecContext) -> str:
        return hashlib.sha256(self._key.encode() + context.bound() + data).hexdigest()[:16]


async def check_codec_round_trip(bench: Bench) -> None:
    """A process that has the codec sees the decoded payload; others see an envelope."""
    queue = await bench.queue()
    queue.use_codec(Masked())
    secret = {"card": "4111", "list": [1, None, "ü"]}
    [job_id] = await queue.put(NewJob("pay", secret))
    if queue.capabilities.views:
        view = await queue.get(job_id)
        expect(view is not None, "the job is there")
        equal(view and view.job.payload, secret, "the payload of a view with the codec")
        queue.use_codec(None)
        [view] = await queue.jobs()
        expect(is_envelope(view.job.payload), "the payload of a view without the codec")
        expect("4111" not in repr(view), "a view without the codec shows the payload")
        queue.use_codec(Masked())
    claim = await bench.take_one(queue)
    equal((claim.job.payload, claim.job.locked), (secret, None), "the payload of the claim")
    expect("4111" not in repr(claim), "the repr of a claim shows an encoded payload")
    await queue.settle(done([claim]))


async def check_codec_missing(bench: Bench) -> None:
    """A job whose codec is missing here says so. Given back, it has lost nothing."""
    queue = await bench.queue()
    queue.use_codec(Masked())
    await queue.put([NewJob("pay", {"card": "4111"})])
    queue.use_codec(None)
    claim = await bench.take_one(queue)
    expect("this process has no codec" in (claim.job.locked or ""), f"locked: {claim.job.locked!r}")
    equal(claim.job.unreadable, None, "unreadable: another process can read it")
    await queue.settle([Settlement.give_back(claim)])
    queue.use_codec(Masked())
    again = await bench.take_one(queue)
    equal((again.job.payload, again.job.locked), ({"card": "4111"}, None), "with the codec")
    if queue.capabilities.uncounted:
        equal(again.job.attempt, 1, "the attempt")
    await queue.settle(done([again]))


async def check_codec_damage(bench: Bench) -> None:
    """A payload that was changed is unreadable; the others of its batch are not."""
    queue = await bench.queue()
    queue.use_codec(Masked())
    ids = await queue.put([NewJob("pay", 1), NewJob("pay", 3)])
    moved = queue.sealed([NewJob("other", 2)])[0].encoded
    queue.use_codec(None)
    queue.pass_sealed_on()
    damaged = NewJob("pay", {CODEC_NAMES: "masked", DATA: "AAAA"})
    elsewhere = NewJob("pay")
    elsewhere.encoded = moved
    ids += await queue.put([damaged, elsewhere])
    queue.use_codec(Masked())
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    equal(sorted(claims), sorted(ids), "the jobs claimed")
    equal([claims[job_id].job.payload for job_id in ids[:2]], [1, 3], "the payloads of the others")
    reasons = [claims[job_id].job.unreadable for job_id in ids]
    equal(reasons[:2], [None, None], "unreadable of the others")
    for reason in reasons[2:]:
        expect("its payload cannot be decoded" in (reason or ""), f"unreadable = {reason!r}: why?")
    await queue.settle(done(claims.values()))


async def check_lookalike(bench: Bench) -> None:
    """Without a codec, a payload that looks like an encoded one is refused, and such a result makes
    its job dead: nobody could read it, and a worker would give the job back forever."""
    queue = await bench.queue()
    alike = {CODEC_NAMES: "masked", DATA: "AAAA"}
    await refused(PayloadError, queue.put(NewJob("pay", alike)), "a payload like an encoded one")
    await queue.put([NewJob("pay", [alike]), NewJob("pay", {CODEC_NAMES: 7})])
    claims = await bench.take(queue)
    expect(
        [alike] in payloads(claims) and {CODEC_NAMES: 7} in payloads(claims), "others are refused"
    )
    if queue.capabilities.results and queue.capabilities.views:
        await queue.settle([Settlement.done(claims[0], alike, keep=60)])
        info = await queue.get(claims[0].job.id)
        expect(info is not None and info.state == "dead", f"a result like an encoded one: {info}")


async def check_codec_unique(bench: Bench) -> None:
    """The same job under the same `unique` is one job, although it is encoded differently."""
    queue = await bench.queue()
    require(queue.capabilities.unique, "unique")
    queue.use_codec(Masked())
    once = NewJob("job", {"a": 1, "b": 2}, unique="once")
    first = await queue.put([once, NewJob("job", "other")])
    again = await queue.put([NewJob("job", {"b": 2, "a": 1}, unique="once"), once])
    equal(again, [first[0], first[0]], "the ids of the second put")
    if queue.capabilities.exact_unique:
        for other in (NewJob("job", {"a": 2}, unique="once"), NewJob("j", {"a": 1}, unique="once")):
            error = await refused(UniqueConflict, queue.put(other), "another job under the unique")
            expect("another kind or payload" in str(error), f"the error: {error}")
    claims = await bench.take(queue)
    found = sorted(map(repr, [claim.job.payload for claim in claims]))
    equal(found, sorted(map(repr, ["other", {"a": 1, "b": 2}])), "the jobs there are")
    await queue.settle(done(claims))


async def check_codec_size(bench: Bench) -> None:
    """The limit of a payload is for what is stored."""
    queue = await bench.queue(max_payload_bytes=200)
    queue.use_codec(Masked())
    await refused(PayloadError, queue.put(NewJob("job", "x" * 150)), "a payload that grows")
    await queue.put(NewJob("job", "x" * 50))
    [claim] = await bench.take(queue)
    equal(claim.job.payload, "x" * 50, "the payload")
    await queue.settle(done([claim]))


async def check_codec_result(bench: Bench) -> None:
    """A result is encoded too, and bound to its job."""
    queue = await keeping(bench, 1000)
    require(queue.capabilities.results, "results")
    queue.use_codec(Masked())
    [job_id] = await queue.put(NewJob("job"))
    await queue.settle([Settlement.done(await bench.take_one(queue), {"iban": "DE02"})])
    view = await queue.get(job_id)
    equal(view and view.result, {"iban": "DE02"}, "the result of a view with the codec")
    expect("DE02" not in repr(view), "the repr of a view shows a result")
    equal(await queue.result(job_id), {"iban": "DE02"}, "the result that was waited for")
    equal(await queue.wait([job_id]), {job_id: {"iban": "DE02"}}, "the results of a wait")
    queue.use_codec(None)
    view = await queue.get(job_id)
    expect(view is not None and is_envelope(view.result), "the result without the codec")
    await refused(KeyMissing, queue.result(job_id), "to wait for a result without the codec")


async def check_codec_required(bench: Bench) -> None:
    """Where codecs are required, a plain result is refused: anybody could have written it."""
    queue = await keeping(bench, 1000)
    require(queue.capabilities.results, "results")
    linked = queue.capabilities.flows
    first = NewJob("job")
    jobs = [first, NewJob("next", after=[first])] if linked else [first]
    required = CodecChain(Masked(), required=True)
    queue.use_codec(required)
    ids = await queue.put(jobs)
    claim = await bench.take_one(queue)
    queue.use_codec(None)  # an attacker has no key
    await queue.settle([Settlement.done(claim, {"paid": True})])
    queue.use_codec(required)
    error = await refused(CodecError, queue.result(ids[0]), "a plain result that was waited for")
    expect("is not encrypted, which is required here" in str(error), f"the error: {error}")
    waited = await queue.wait(ids[:1])
    expect(isinstance(waited[ids[0]], JobFailed), "a wait of several returns a plain result")
    views = [await queue.get(ids[0]), *await queue.jobs("done")]
    equal([view and view.result for view in views], [None, None], "a plain result in views")
    if linked:
        await refused(CodecError, queue.predecessors(ids[1]), "a plain result of a predecessor")
        flow = await queue.flow(ids[1])
        results = [each.info.result for each in flow.jobs] if flow else None
        equal(results, [None, None], "a plain result in the view of a flow")
