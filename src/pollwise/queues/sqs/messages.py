"""A job as an SQS message, and back.

The body is the payload as JSON. The attribute `pollwise.kind` names the kind; a producer in any
language needs no more than that. `pollwise.job` has the rest. A message without a kind, or whose
body is not JSON, is foreign: it is delivered as a job of the kind `sqs.raw`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from pollwise.runtime.decoding import decode
from pollwise.runtime.jobs import Job, NewJob, checked_name, encode

#: The kind of foreign messages; the payload has their body and attributes.
RAW = "sqs.raw"
#: The names of our message attributes.
KIND = "pollwise.kind"
JOB = "pollwise.job"
ERROR = "pollwise.error"
#: The maximum number of attributes of a message.
ATTRIBUTES_MAX = 10
#: Characters that JSON allows but XML, and so SQS, does not: written as an escape.
_NOT_XML = re.compile("[\ufffe\uffff]")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")

Message = Mapping[str, Any]
Entry = dict[str, Any]


def new_id() -> str:
    return uuid.uuid4().hex


def entry_of(job: NewJob, job_id: str, now: float) -> Entry:
    """The arguments of SendMessage for a job."""
    about: dict[str, Any] = {"id": job_id}
    due = job.due_at(now)
    if due > now:
        about["due"] = due
    if job.key is not None:
        about["key"] = job.key
    if job.unique is not None:
        about["unique"] = job.unique
    return {
        "MessageBody": _storable(job.encoded),
        "MessageAttributes": {KIND: _text(job.kind), JOB: _text(json.dumps(about))},
    }


def fifo_entry(entry: Entry, job: NewJob, job_id: str, by_content: bool) -> Entry:
    """The same for a FIFO queue: a key is a group, and a job without one is its own group."""
    if job.unique is not None:
        once = plain_name(job.unique)
    elif by_content:
        once = _digest(job.kind, job.key or "", job.encoded)
    else:
        once = job_id  # a repeated send puts it once
    group = job_id if job.key is None else plain_name(job.key)
    return {**entry, "MessageGroupId": group, "MessageDeduplicationId": once}


def unique_id(unique: str) -> str:
    """The id of a job with this `unique`, the same for every producer."""
    return _digest("unique", unique)[:32]


def plain_name(name: str) -> str:
    """A key that SQS accepts: the key itself, or a digest of it."""
    return name if _PLAIN_NAME.fullmatch(name) else _digest(name)


def job_of(message: Message, queue: str, now: float) -> Job:
    """The job in a message; of the kind `sqs.raw` if the message is foreign."""
    system = message.get("Attributes", {})
    sent = float(system.get("SentTimestamp", now * 1000)) / 1000
    attempt = max(int(system.get("ApproximateReceiveCount", 1)), 1)
    kind = _value(message, KIND)
    about = _json_object(_value(message, JOB))
    try:
        payload = decode(message["Body"])
        kind = checked_name(kind, "kind")
    except ValueError:
        kind, payload = RAW, _raw_payload(message)
    due = about.get("due")
    return Job(
        id=_text_or(about.get("id"), message["MessageId"]),
        queue=queue,
        kind=kind,
        payload=payload,
        key=_text_or(about.get("key"), system.get("MessageGroupId") if kind == RAW else None),
        priority=0,
        attempt=attempt,
        created_at=sent,
        # SQS does not say when a retry fell due; a first run was due when it was sent.
        run_at=now if attempt > 1 else due if isinstance(due, float) and due > sent else sent,
        unique=_text_or(about.get("unique"), None),
    )


def dead_entry(job: Job, error: str, *, fifo: bool) -> Entry:
    """The entry of a job for the dead-letter queue: its message, and why it is dead."""
    if job.kind == RAW:
        body = job.payload["body"]
        attributes = {name: _typed(value) for name, value in job.payload["attributes"].items()}
    else:
        body = _storable(encode(job.payload, job.kind))
        # The message gets a new id there; the job keeps its own.
        about = {"id": job.id, "key": job.key, "unique": job.unique}
        given = {name: value for name, value in about.items() if value is not None}
        attributes = {KIND: _text(job.kind), JOB: _text(json.dumps(given))}
    if len(attributes) < ATTRIBUTES_MAX:
        attributes[ERROR] = _text(json.dumps({"error": error, "attempt": job.attempt}))
    entry: Entry = {"MessageBody": body, "MessageAttributes": attributes}
    if fifo:
        group = job.id if job.key is None else plain_name(job.key)
        entry |= _moved_to(group)
    return entry


def retried_entry(message: Message) -> Entry:
    """The entry of a dead job that is retried, for its queue."""
    attributes = dict(message.get("MessageAttributes", {}))
    attributes.pop(ERROR, None)
    entry: Entry = {"MessageBody": message["Body"]}
    if attributes:
        entry["MessageAttributes"] = attributes
    group = message.get("Attributes", {}).get("MessageGroupId")
    return entry if group is None else entry | _moved_to(group)


def _moved_to(group: str) -> Entry:
    # A new id for each move: SQS drops an id that was used in the last minutes.
    return {"MessageGroupId": group, "MessageDeduplicationId": new_id()}


def why_dead(message: Message) -> tuple[str | None, int | None]:
    """The error of a dead job and its attempts, if Pollwise put it there."""
    about = _json_object(_value(message, ERROR))
    error, attempt = about.get("error"), about.get("attempt")
    return (
        error if isinstance(error, str) else None,
        attempt if isinstance(attempt, int) else None,
    )


def size_of(entry: Entry) -> int:
    """The number of bytes that SQS counts."""
    size = len(entry["MessageBody"].encode())
    for name, attribute in entry.get("MessageAttributes", {}).items():
        size += len(name) + len(attribute["DataType"])
        size += len(attribute.get("StringValue", "").encode())
        size += len(attribute.get("BinaryValue", b""))
    return size


def _raw_payload(message: Message) -> dict[str, Any]:
    attributes = {}
    for name, attribute in message.get("MessageAttributes", {}).items():
        value = attribute.get("StringValue")
        if value is None:
            value = base64.b64encode(attribute.get("BinaryValue", b"")).decode()
        attributes[name] = {"type": attribute["DataType"], "value": value}
    return {"body": message["Body"], "attributes": attributes}


def _typed(attribute: Mapping[str, str]) -> dict[str, Any]:
    """An attribute of a raw payload in SQS's form."""
    if attribute["type"].startswith("Binary"):
        return {"DataType": attribute["type"], "BinaryValue": base64.b64decode(attribute["value"])}
    return {"DataType": attribute["type"], "StringValue": attribute["value"]}


def _text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": _storable(value)}


def _storable(text: str) -> str:
    return _NOT_XML.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _value(message: Message, name: str) -> str | None:
    attribute = message.get("MessageAttributes", {}).get(name, {})
    value = attribute.get("StringValue")
    return value if isinstance(value, str) else None


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = decode(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text_or(value: object, other: Any) -> Any:
    return value if isinstance(value, str) and value else other


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
