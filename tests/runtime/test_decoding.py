"""Payloads and headers from stores: each decoded by itself, and never with an exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.runtime.decoding import NotUtf8, decode_document, decode_job, decode_result
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.payloads.depth import DEPTH_MAX

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
DIGITS = "7" * 5000
BAD = ("{bad", "", DIGITS, "NaN", "[" * 5000, r'"\udc00"', NotUtf8('"\ufffd"'), b'"\xff"')


@settings(max_examples=50)
@given(JSON, st.dictionaries(st.text(), st.text(), max_size=3))
def test_what_encodes_decodes(payload: Any, headers: dict[str, str]) -> None:
    text = json.dumps(payload), json.dumps(headers)
    assert decode_job(*text) == (payload, headers, None)
    assert decode_job(text[0].encode(), text[1].encode()) == (payload, headers, None)


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_does_not_decode_is_its_text_and_a_reason(text: str | bytes) -> None:
    payload, headers, unreadable = decode_job(text, '{"trace": "1"}')
    shown = text if isinstance(text, str) else '"\ufffd"'
    assert (payload, headers) == (shown, {"trace": "1"})
    assert (unreadable or "").startswith("its payload cannot be decoded: ")
    assert decode_result(text) == (shown or None)


def test_as_deep_as_a_put_may_nest() -> None:
    deepest = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    assert decode_job(deepest).unreadable is None
    assert NewJob("job", decode_job(deepest).payload).encoded == deepest
    assert "nests deeper" in (decode_job(f"[{deepest}]").unreadable or "")


@settings(max_examples=25)
@given(st.lists(JSON, max_size=3), st.text())
def test_only_the_bad_values_of_a_document_become_text(payloads: list[Any], text: str) -> None:
    nested = {"payload": {"payload": [1, "}"], "result": text}}
    jobs = [{"kind": text, "payload": each, "headers": {"payload": text}} for each in payloads]
    document = json.dumps({"jobs": [*jobs, nested]}, ensure_ascii=False)
    bad = f'{{"kind": "b", "payload": {{"payload": [{DIGITS}, "]}}\\""]}}, "result": [{DIGITS}]}}'
    raw = f"{document[:-2]}, {bad}]}}"
    found = decode_document(raw.encode())
    *others, last = found["jobs"]
    assert others == [*jobs, nested]
    assert last["payload"] == f'{{"payload": [{DIGITS}, "]}}\\""]}}'
    assert last["result"] == f"[{DIGITS}]"
    assert "digits" in last["unreadable"]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"payload": ', b'{"payload": {', b"\xff", b'["'])
def test_a_document_that_is_not_json_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_document(raw)
