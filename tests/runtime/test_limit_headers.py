"""What the headers of an answer say about when to come back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.budget import Allowance
from pollwise.runtime.limits.headers import (
    WAIT_MAX,
    allowance_in,
    asked_pause,
    moment,
    refused_for,
    retry_after,
)

#: 2026-01-01T00:00:00Z
NOW = 1_767_225_600.0


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, 0.0),
        ({"cache-control": "public, max-age=60"}, 60.0),
        ({"cache-control": 'Max-Age="60"'}, 60.0),
        ({"cache-control": "max-age=60", "age": "45"}, 15.0),
        ({"cache-control": "max-age=60", "age": "90"}, 0.0),
        ({"cache-control": "no-cache, max-age=60"}, 0.0),
        ({"cache-control": "no-store,max-age=60"}, 0.0),
        ({"cache-control": "s-maxage=60"}, 0.0),
        ({"cache-control": "max-age=-5"}, 0.0),
        ({"x-poll-interval": "60"}, 60.0),
        ({"x-poll-interval": "60", "cache-control": "max-age=120"}, 120.0),
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"x-poll-interval": "soon", "retry-after": "later"}, 0.0),
        ({"cache-control": "max-age=999999999"}, WAIT_MAX),
    ],
)
def test_an_answer_says_how_long_to_stay_away(headers: dict[str, str], pause: float) -> None:
    assert asked_pause(headers, NOW) == pause


@pytest.mark.parametrize(
    ("headers", "allowance"),
    [
        ({}, None),
        # GitHub: a time.
        ({"x-ratelimit-remaining": "7", "x-ratelimit-reset": str(int(NOW) + 90)}, (7, 90.0)),
        # A duration, and a time in milliseconds.
        ({"x-ratelimit-remaining": "7", "x-ratelimit-reset": "12.5"}, (7, 12.5)),
        ({"x-ratelimit-remaining": "7", "x-ratelimit-reset": f"{NOW + 90:.0f}000"}, (7, 90.0)),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW) - 5)}, (0, 0.0)),
        ({"x-ratelimit-remaining": "7"}, None),
        ({"x-ratelimit-remaining": "-7", "x-ratelimit-reset": "5"}, None),
        # The drafts of the IETF.
        ({"ratelimit-remaining": "50", "ratelimit-reset": "30"}, (50, 30.0)),
        ({"ratelimit": "limit=100, remaining=50, reset=30"}, (50, 30.0)),
        ({"ratelimit": '"default";r=50;t=30'}, (50, 30.0)),
        ({"ratelimit": '"burst";r=5;t=1, "day";r=10;t=3600'}, (10, 3600.0)),
        ({"ratelimit": '"default";r=50'}, None),
        ({"ratelimit": "nothing known"}, None),
        (
            {"ratelimit": '"a";r=9;t=9', "x-ratelimit-remaining": "1", "x-ratelimit-reset": "9"},
            (1, 9.0),
        ),
    ],
)
def test_an_answer_says_what_is_left(
    headers: dict[str, str], allowance: tuple[int, float] | None
) -> None:
    assert allowance_in(headers, NOW) == (None if allowance is None else Allowance(*allowance))


texts = st.one_of(
    st.text(max_size=60),
    st.from_regex(r"(max-age|r|t|remaining|reset|limit)=[0-9]{0,30}[;, ]{0,2}"),
    st.integers().map(str),
    st.floats().map(str),
)


@given(texts, texts, texts, texts)
def test_no_header_raises_or_asks_for_more_than_the_maximum(a: str, b: str, c: str, d: str) -> None:
    headers = {
        "cache-control": a, "age": b, "x-poll-interval": c, "retry-after": d, "ratelimit": a,
        "ratelimit-remaining": b, "ratelimit-reset": c, "x-ratelimit-remaining": c,
        "x-ratelimit-reset": d,
    }  # fmt: skip
    assert 0 <= asked_pause(headers, NOW) <= WAIT_MAX
    allowance = allowance_in(headers, NOW)
    if allowance is not None:
        assert allowance.remaining >= 0
        assert 0 <= allowance.resets_in <= WAIT_MAX
    wait = retry_after(d, NOW)
    assert wait is None or 0 <= wait <= WAIT_MAX
    at = moment(d)
    assert at is None or math.isfinite(at)


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {}, 0.0),
        (429, {"retry-after": "7"}, 7.0),
        (403, {}, None),
        (403, {"retry-after": "7", "x-ratelimit-remaining": "9", "x-ratelimit-reset": "3"}, 7.0),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "3"}, 3.0),
        (403, {"retry-after": "later"}, None),
        (503, {"retry-after": "7"}, None),
        (401, {"retry-after": "7"}, None),
    ],
)
def test_a_refusal_for_now_is_told_from_one_for_good(
    status: int, headers: dict[str, str], wait: float | None
) -> None:
    assert refused_for(status, headers, NOW) == wait
