"""Patterns, the registry, and the progress of handlers as it is kept with a record."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from pollwise.errors import HandlerError
from pollwise.outbox import NewRecord, Outbox
from pollwise.outbox.handlers import FailedRecord, RecordHandlers, matcher, record_handler
from pollwise.outbox.progress import HandlerProgress, RecordProgress
from pollwise.outbox.records import PROGRESS_BYTES_MAX, Record
from pollwise.outbox.stores.memory import MemoryOutboxStore
from tests.outbox.relays import Bench
from tests.support.traces import Traces


@pytest.mark.parametrize(
    ("pattern", "kinds", "others"),
    [
        ("order.placed", ["order.placed"], ["order.placed.twice", "orderXplaced", "Order.placed"]),
        ("order.*", ["order.placed", "order.line.added", "order."], ["order", "reorder.placed"]),
        ("*", ["a", "order.placed", "ü"], []),
        ("*.failed", ["mail.failed", "a.b.failed"], ["failed", "mail.failed.late"]),
        ("a*c", ["ac", "abc", "a.b.c"], ["acd"]),
        ("a?[b]", ["a?[b]"], ["axb", "a?b"]),
    ],
)
def test_patterns(pattern: str, kinds: list[str], others: list[str]) -> None:
    assert all(matcher(pattern).fullmatch(kind) for kind in kinds)
    assert not any(matcher(pattern).fullmatch(kind) for kind in others)


def registry(**patterns: list[str]) -> RecordHandlers:
    made = RecordHandlers()
    for name, given_patterns in patterns.items():
        handler = record_handler(
            given_patterns, lambda record: None, name=name, retry=None, timeout=None,
            fallback=None, breaker=None,
        )  # fmt: skip
        made.add(handler)
    return made


def test_a_fallback_gets_what_its_decorator_takes() -> None:
    got: list[Any] = []

    def save(record: Any, session: str) -> None:
        got.append((record, session))

    @functools.wraps(save)
    def with_session(record: Any) -> None:
        save(record, "session")

    handler = record_handler(
        ["x"], lambda record: None, name="x", retry=None, timeout=None, fallback=with_session,
        breaker=None,
    )  # fmt: skip
    assert handler.fallback is not None
    record: Any = object()
    handler.fallback.function(FailedRecord(record, "no"))
    assert got == [(record, "session")]


def test_handlers_match_in_the_order_they_were_registered() -> None:
    made = registry(audit=["*"], publish=["order.*", "invoice.*"], mail=["order.placed"])
    names = [handler.name for handler in made.matching("order.placed")]
    assert names == ["audit", "publish", "mail"]
    assert [handler.name for handler in made.matching("invoice.sent")] == ["audit", "publish"]
    assert made.patterns()["publish"] == ("order.*", "invoice.*")
    assert made.unmatched(["order.paid"]) == [("publish", "invoice.*"), ("mail", "order.placed")]


def test_kinds_without_end_are_not_remembered_without_end() -> None:
    made = registry(audit=["*"])
    for number in range(25_000):
        assert made.matching(f"kind-{number}")
    assert len(made._by_kind) <= 10_000


def test_too_many_handlers_are_refused_before_their_progress_does_not_fit() -> None:
    names = {f"{'n' * 190}{number:03}": ["*"] for number in range(60)}
    with pytest.raises(HandlerError, match="too many, or their names are too long"):
        registry(**names)


states = st.builds(
    HandlerProgress,
    ended=st.sampled_from(["", "done", "fell back", "gave up"]),
    attempts=st.integers(0, 1000),
    due=st.floats(0, 4e9).map(lambda due: round(due, 3)),
    error=st.text(max_size=300),
    last_resort=st.booleans(),
)


@given(st.dictionaries(st.text(min_size=1, max_size=40), states, max_size=20))
def test_progress_reads_back_what_was_written(handlers: dict[str, HandlerProgress]) -> None:
    text = RecordProgress(handlers).text()
    assert len(text.encode()) <= PROGRESS_BYTES_MAX
    assert "\0" not in json.loads(text).__repr__()
    again = RecordProgress.read(text)
    for name, state in handlers.items():
        read = again.of(name)
        assert read.ended == state.ended
        if not state.ended:
            assert (read.attempts, read.last_resort) == (state.attempts, state.last_resort)
            assert read.due == pytest.approx(state.due)


@given(st.text() | st.sampled_from(["[]", "{", '{"a": []}', '{"a": {"a": "x"}}', "1", "null"]))
def test_progress_that_cannot_be_read_counts_as_not_done(text: str) -> None:
    assert not RecordProgress.read(text).of("publish").ended


def test_a_fresh_record_keeps_what_is_done_only() -> None:
    text = RecordProgress(
        {
            "done": HandlerProgress("done"),
            "fell": HandlerProgress("fell back"),
            "gave up": HandlerProgress("gave up", 4, error="no"),
            "waits": HandlerProgress("", 2, 9e9, "no", True),
        }
    ).text()
    fresh = RecordProgress.read(text, retried=True)
    assert fresh.of("done").ended == "done"
    assert fresh.of("fell").ended == "fell back"
    assert fresh.of("gave up") == fresh.of("waits") == HandlerProgress()


def test_the_trace_of_the_put_goes_on_in_handlers(traces: Traces) -> None:
    bench = Bench()
    seen: list[tuple[str, int]] = []
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def main() -> None:
        outbox = bench.outbox(trace_context="parent")

        @outbox.handle("*")
        async def inside(record: Record) -> None:
            context = trace.get_current_span().get_span_context()
            seen.append(("async", context.trace_id))

        @outbox.handle("*")
        def in_thread(record: Record) -> None:
            context = trace.get_current_span().get_span_context()
            seen.append(("thread", context.trace_id))

        await bench.store.put(NewRecord("k", headers={"traceparent": parent}))
        async with outbox.running():
            await bench.clock.advance(5)

    bench.run(main())
    assert seen == [(how, 0x4BF92F3577B34DA6A3CE929D0E0E4736) for how in ("async", "thread")]


def test_a_publisher_gives_its_own_name() -> None:
    class Publisher:
        name = "rabbit"

        async def __call__(self, record: Record) -> None: ...

    outbox = Outbox(MemoryOutboxStore())
    outbox.handle("*")(Publisher())
    assert list(outbox.handlers) == ["rabbit"]
