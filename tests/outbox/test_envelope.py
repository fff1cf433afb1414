"""CloudEvents 1.0: what the specification asks for, and what becomes of a record's headers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.outbox.envelope import CloudEvents, percent_encoded, timestamp, unique_of
from pollwise.outbox.records import NewRecord, Record
from tests.outbox.publishers.kit import TRACEPARENT, attributes, event, record

printable = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
names = st.text(printable, min_size=1, max_size=30).filter(str.strip)
headers = st.dictionaries(
    st.one_of(names, st.sampled_from(["id", "data", "traceparent", "Time", "x1"])), names
)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def put(kind: str, payload: Any, key: str | None, headers: dict[str, str]) -> Record:
    new = NewRecord(kind, payload, key, headers)
    return Record("7", "default", kind, json.loads(new.encoded), key, new.headers, 1e9, 1)


def test_structured_is_one_document_and_the_rest_are_headers() -> None:
    message = CloudEvents()(record())
    assert json.loads(message.body) == event()
    assert message.content_type == "application/cloudevents+json; charset=UTF-8"
    assert message.attributes == {}
    assert message.headers == {"X-Region": "eu"}
    assert "€".encode() in message.body  # as it is, not as \\u20ac


def test_binary_is_the_payload_and_attributes() -> None:
    message = CloudEvents(mode="binary")(record())
    assert message.body == '{"total":"12 €"}'.encode()
    assert message.content_type == "application/json"
    assert message.attributes == attributes()
    assert message.prefixed("ce-") == attributes(prefix="ce-")


def test_source_type_and_schema_can_be_given() -> None:
    envelope = CloudEvents(
        source="https://shop.example/orders", type_prefix="com.example.", dataschema="urn:order:1"
    )
    whole = json.loads(envelope(record()).body)
    assert whole["source"] == "https://shop.example/orders"
    assert whole["type"] == "com.example.order.placed"
    assert whole["dataschema"] == "urn:order:1"


def test_the_outbox_is_the_source_unless_given() -> None:
    message = CloudEvents()(record(outbox="größe/1"))
    assert json.loads(message.body)["source"] == "/pollwise/outbox/gr%C3%B6%C3%9Fe%2F1"


def test_a_record_without_a_key_has_no_subject() -> None:
    whole = json.loads(CloudEvents()(record(key=None)).body)
    assert "subject" not in whole
    assert "partitionkey" not in whole


def test_no_header_takes_the_place_of_an_attribute() -> None:
    forged = {"id": "x", "data": "x", "source": "x", "specversion": "x", "data_base64": "x"}
    message = CloudEvents()(record(headers=forged))
    whole = json.loads(message.body)
    assert whole["id"] == "1"
    assert whole["specversion"] == "1.0"
    assert "data_base64" not in whole
    assert message.headers == forged


def test_the_trace_context_is_an_extension_if_it_is_one() -> None:
    carried = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    assert json.loads(CloudEvents()(record(headers=carried)).body).items() >= carried.items()
    broken = {"traceparent": "00-0-0-00", "tracestate": "vendor=1"}
    message = CloudEvents()(record(headers=broken))
    assert not broken.keys() & json.loads(message.body).keys()
    assert message.headers == {}


@given(names, payloads, st.none() | names, headers)
def test_every_record_makes_a_legal_event(
    kind: str, payload: Any, key: str | None, headers: dict[str, str]
) -> None:
    given = put(kind.strip(), payload, key and key.strip(), headers)
    for mode in ("structured", "binary"):
        message = CloudEvents(mode=mode)(given)
        whole = json.loads(message.body)
        if mode == "binary":
            assert whole == given.payload
            whole = {**message.attributes, "data": whole}
        assert whole["data"] == given.payload
        # By the specification: names of lower-case letters and digits, no attribute empty.
        for name, value in whole.items():
            assert re.fullmatch("[a-z0-9]{1,20}", name)
            assert name == "data" or value
        assert {"id", "source", "specversion", "type"} <= whole.keys()
        # And nothing of the headers is lost but a broken trace context.
        carried = {**message.headers, **{n: v for n, v in whole.items() if n in given.headers}}
        assert given.headers.keys() - carried.keys() <= {"traceparent", "tracestate"}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_value_is_a_legal_header_and_reads_back(text: str) -> None:
    from urllib.parse import unquote

    encoded = percent_encoded(text)
    assert unquote(encoded) == text
    assert re.fullmatch(r"[!#-~]*", encoded)


@pytest.mark.parametrize(
    ("epoch", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_767_225_600.000001, "2026-01-01T00:00:00.000001Z"),
        (-1.5, "1969-12-31T23:59:58.500000Z"),
    ],
)
def test_times_are_as_rfc_3339_has_them(epoch: float, text: str) -> None:
    assert timestamp(epoch) == text


def test_repeats_are_the_same_and_others_are_not() -> None:
    assert unique_of(record(1)) == unique_of(record(1, payload={"other": 1}))
    assert len({unique_of(record(n, outbox=o)) for n in (1, 2) for o in ("a", "b")}) == 4


@pytest.mark.parametrize(
    "options", [{"mode": "both"}, {"source": ""}, {"source": "a b"}, {"dataschema": "a\nb"}]
)
def test_bad_arguments_are_refused_at_once(options: Any) -> None:
    with pytest.raises(ConfigError):
        CloudEvents(**options)
