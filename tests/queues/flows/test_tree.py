"""Flows as trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from pollwise.queues.flows.tree import DEPTH_MAX, NAMED_MAX, rows_of
from pollwise.queues.flows.view import FlowJob, FlowView


@dataclass
class OnlyId:
    id: str


@dataclass
class OnlyJob:
    job: OnlyId


def made(job_id: str, *after: str, on_failure: bool = False) -> FlowJob:
    return FlowJob(cast(Any, OnlyJob(OnlyId(job_id))), after, on_failure)


def drawn(*jobs: FlowJob) -> str:
    rows = rows_of(FlowView("f", jobs))
    return "\n".join(f"{row.lines}{row.job.info.job.id} {row.note}".rstrip() for row in rows)


def test_a_chain_is_a_list() -> None:
    assert drawn(made("a"), made("b", "a"), made("c", "b")) == "a\nb\nc"


def test_a_group_is_branches_and_what_joins_them_is_below() -> None:
    jobs = (
        made("fetch"),
        made("resize", "fetch"),
        made("store", "resize"),
        made("classify", "fetch"),
        made("report", "store", "classify"),
        made("send", "report"),
        made("alert", "fetch", "resize", on_failure=True),
    )
    assert drawn(*jobs) == (
        "fetch\n"
        "├─ resize\n"
        "│  store\n"
        "└─ classify\n"
        "report after store, classify\n"
        "send\n"
        "└─ alert if one is dead: fetch, resize"
    )


def test_a_group_may_come_first_and_nest() -> None:
    jobs = (
        made("a"),
        made("b"),
        made("b1", "b"),
        made("b2", "b"),
        made("join", "b1", "b2"),
        made("end", "a", "join"),
    )
    assert drawn(*jobs) == (
        "├─ a\n└─ b\n   ├─ b1\n   └─ b2\n   join after b1, b2\nend after a, join"
    )


def test_two_groups_after_another_stay_apart() -> None:
    group = [made("a"), made("b")]
    after = [made("c", "a", "b"), made("d", "a", "b")]
    assert drawn(*group, *after) == ("├─ a\n└─ b\n├─ c after a, b\n└─ d after a, b")


def test_what_is_not_shown_is_left_out_and_many_are_counted() -> None:
    assert drawn(made("b", "gone")) == "b"
    first = [made(str(n)) for n in range(9)]
    [*_, last] = rows_of(FlowView("f", (*first, made("end", *(str(n) for n in range(9))))))
    assert last.note == f"after 0, 1, 2, 3, 4 and {9 - NAMED_MAX} more"


@given(st.data())
def test_every_job_is_drawn_once_and_below_what_it_waits_for(data: st.DataObject) -> None:
    jobs: list[FlowJob] = []
    for place in range(data.draw(st.integers(1, 30))):
        before = data.draw(st.sets(st.integers(0, place - 1), max_size=4)) if place else set()
        failing = bool(before) and data.draw(st.booleans())
        jobs.append(made(str(place), *map(str, sorted(before)), on_failure=failing))
    rows = rows_of(FlowView("f", tuple(jobs)))
    places = {row.job.info.job.id: place for place, row in enumerate(rows)}
    assert len(places) == len(rows) == len(jobs)
    assert all(places[each] < places[job.info.job.id] for job in jobs for each in job.after)
    assert all(row.depth <= DEPTH_MAX for row in rows)


def test_a_deep_flow_stays_narrow() -> None:
    jobs = [made("0")]
    for n in range(1, 300):
        jobs += [made(str(n), str(n - 1)), made(f"beside {n}", str(n - 1))]
    rows = rows_of(FlowView("f", tuple(jobs)))
    assert max(len(row.lines) for row in rows) == 3 * DEPTH_MAX
