"""The shapes of results: written into a header, and read from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import JobError
from pollwise.worker.flows.shape import GROUPS_DEEP_MAX, ONE, fits, in_shape, shape_of_group


def shape_of(nested: Any) -> str:
    return ONE if not isinstance(nested, list) else shape_of_group([shape_of(n) for n in nested])


def flat(nested: Any) -> list[Any]:
    return [nested] if not isinstance(nested, list) else [n for each in nested for n in flat(each)]


@given(
    st.recursive(
        st.integers(), lambda inner: st.lists(inner, min_size=1, max_size=5), max_leaves=40
    )
)
def test_results_come_back_as_they_were_nested(nested: Any) -> None:
    assert in_shape(shape_of(nested), flat(nested)) == nested
    assert fits(shape_of(nested), len(flat(nested)))
    assert not fits(shape_of(nested), len(flat(nested)) + 1)


def test_equal_members_are_written_once() -> None:
    pairs = shape_of_group([shape_of_group([ONE, ONE])] * 5000)
    assert pairs == "(5000(2.))"
    assert in_shape(pairs, range(10_000))[4999] == [9998, 9999]


def test_missing_results_are_none() -> None:
    assert in_shape("(3.)", [1]) == [1, None, None]
    assert in_shape(".", []) is None


def test_shapes_are_bounded() -> None:
    with pytest.raises(JobError, match="the 400 members of this group end in groups of too many"):
        shape_of_group([shape_of_group([ONE] * (n + 1)) for n in range(400)])
    deep = ONE
    for _ in range(GROUPS_DEEP_MAX):
        deep = shape_of_group([deep])
    assert in_shape(deep, [7]) is not None
    with pytest.raises(JobError, match="groups are nested 51 deep; the limit is 50"):
        shape_of_group([deep])


@pytest.mark.parametrize(
    "shape",
    [
        "", "x", "(", ")", "()", "(.", ".)", "0(.)", "(0.)", "2.", "..", "01.", "(.) ", "(\u0663.)",
        "(9(9(9(9(9(9(9(9(9(.))))))))))", "1000000000000.", f"(10000{'0' * 900}.)",
        "(" * 51 + "." + ")" * 51, "1000000000000()", "(.)" * 400,
    ],
    ids=lambda shape: repr(shape[:20]),
)  # fmt: skip
def test_shapes_that_do_not_fit_are_known_without_making_them(shape: str) -> None:
    assert not fits(shape, 1)
