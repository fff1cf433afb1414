"""Flows before they are put: what is linked to what, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_type

import pytest

from pollwise import Flow, Job, NewJob, Worker, from_context, group, results_before, task_ref
from pollwise.errors import JobError, PayloadError, StoreUnavailable
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.worker.flows.taking import TAKES_HEADER
from tests.support.kit import virtually

QUEUE = MemoryQueue()
worker = Worker(QUEUE)


@worker.task
async def fetch(url: str) -> int:
    return len(url)


@worker.task
async def double(number: int, times: int = 2) -> int:
    return number * times


@worker.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@worker.task
async def report(job: Job, error: str, app: Any = from_context) -> None: ...


@worker.task
def flatten(numbers: Any) -> list[int]:
    return []


@worker.task
async def both(number: int, other: int) -> int:
    return number + other


@worker.task
async def clean(before: list[Any] = results_before) -> None: ...


loose: Any = fetch  # for calls that type checkers refuse
loosely_grouped: Any = group

Links = list[tuple[str, list[int], bool, str]]


def links(flow: Flow[Any]) -> Links:
    """Each job: its kind, the places of those before it, and what it takes."""
    jobs = flow.jobs()
    return [
        (
            job.kind,
            [jobs.index(each) for each in job.after],
            job.on_failure,
            job.headers.get(TAKES_HEADER, ""),
        )
        for job in jobs
    ]


def test_a_chain_waits_and_takes_results() -> None:
    flow = fetch.s("a").then(double).then(double.s(3, times=4)).then(double.options(priority=5))
    assert links(flow) == [
        ("fetch", [], False, ""),
        ("double", [0], False, "."),
        ("double", [1], False, ""),
        ("double", [2], False, "."),
    ]
    jobs = fetch.s("a").then(double.options(priority=5, key="k")).jobs()
    assert [(job.payload, job.priority, job.key) for job in jobs] == [
        ({"url": "a"}, 0, None),
        ({}, 5, "k"),
    ]


def test_type_checkers_know_what_a_flow_gives() -> None:
    assert_type(fetch.s("a").then(double), Flow[int])
    assert_type(group([fetch.s("a"), fetch.s("b")]), Flow[list[int]])
    assert_type(fetch.s("a").then(group([double.then(double)])).then(total), Flow[int])
    assert_type(fetch.s("a").then(on_failure=report), Flow[int])
    assert_type(fetch.s("a").then(double.options(priority=1), report), Flow[int])
    assert_type(fetch.s("a").then(task_ref("double", QUEUE)), Flow[Any])
    fetch.s("a").then(total)  # type: ignore[arg-type]  # it takes a list
    with pytest.raises(PayloadError):
        fetch.s("a").then(both)  # type: ignore[arg-type]  # it takes two numbers


def test_a_chain_in_a_chain_is_one_chain() -> None:
    inner = double.s(1).then(double)
    assert links(fetch.s("a").then(inner).then(double)) == [
        ("fetch", [], False, ""),
        ("double", [0], False, ""),
        ("double", [1], False, "."),
        ("double", [2], False, "."),
    ]


def test_a_group_fans_out_and_in() -> None:
    flow = fetch.s("a").then(group([double, double.then(double), double.s(7)])).then(total)
    assert links(flow) == [
        ("fetch", [], False, ""),
        ("double", [0], False, "."),
        ("double", [0], False, "."),
        ("double", [2], False, "."),
        ("double", [0], False, ""),
        ("total", [1, 3, 4], False, "(3.)"),
    ]


def test_a_group_of_groups_nests_its_results() -> None:
    inner = group([fetch.s("a"), fetch.s("b")])
    chain = group([fetch.s("c"), fetch.s("d")]).then(total)
    flow = group([inner, chain, fetch.s("e")]).then(flatten)
    assert links(flow)[-1] == ("flatten", [0, 1, 4, 5], False, "((2.)2.)")


def test_a_group_of_one_still_gives_a_list() -> None:
    assert links(group([fetch.s("a")]).then(total))[-1] == ("total", [0], False, "(.)")


def test_a_failure_of_any_job_before_it_starts_on_failure() -> None:
    flow = group([fetch.s("a"), fetch.s("b")]).then(total, on_failure=report)
    assert links(flow) == [
        ("fetch", [], False, ""),
        ("fetch", [], False, ""),
        ("total", [0, 1], False, "(2.)"),
        ("report", [0, 1], True, "error"),
    ]


def test_on_failure_alone_covers_the_whole_flow_and_no_other_on_failure() -> None:
    flow = fetch.s("a").then(double, on_failure=report.s("known")).then(on_failure=report)
    assert links(flow.then(double)) == [
        ("fetch", [], False, ""),
        ("double", [0], False, "."),
        ("report", [0], True, ""),
        ("report", [0, 1], True, "error"),
        ("double", [1], False, "."),
    ]


def test_on_failure_can_be_a_chain_of_its_own() -> None:
    flow = fetch.s("a").then(double, on_failure=report.then(clean.s()))
    assert links(flow) == [
        ("fetch", [], False, ""),
        ("double", [0], False, "."),
        ("report", [0], True, "error"),
        ("clean", [2], False, ""),
    ]


def test_a_task_by_its_name_links_as_well() -> None:
    ref = task_ref("double", QUEUE)
    flow = fetch.s("a").then(ref).then(ref.options(priority=1)).then(ref.s(number=3))
    assert links(flow)[1:] == [
        ("double", [0], False, "."),
        ("double", [1], False, "."),
        ("double", [2], False, ""),
    ]
    with pytest.raises(JobError, match="give the arguments of the task 'double' by name"):
        ref.s(3)


def test_long_chains_and_wide_groups_are_built_quickly() -> None:
    flow: Flow[Any] = fetch.s("a")
    for _ in range(2000):
        flow = flow.then(double)
    assert len(flow.jobs()) == 2001
    wide = group([fetch.s(str(n)) for n in range(2000)]).then(total)
    assert len(wide.jobs()[-1].after) == 2000
    assert len(QUEUE.check_jobs(wide.jobs())) == 2001


def test_headers_of_options_stay() -> None:
    job = fetch.s("a").then(double.options(headers={"trace": "7"})).jobs()[1]
    assert job.headers == {"trace": "7", TAKES_HEADER: "."}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: loose.s("a").then(), r"then\(\) needs what comes next: a task, a call of one"),
        (lambda: loosely_grouped([]), "the group is empty; give at least one call"),
        (lambda: loosely_grouped(loose.s("a")), r"give a list, as in group\(\["),
        (lambda: loose.s("a").then(len), "decorate it with @worker.task"),
        (lambda: loose.s("a").then(NewJob("a")), "link jobs without tasks by their `after`"),
        (lambda: loose.s("a").then("double"), "then got 'double', which cannot be linked"),
        (lambda: loosely_grouped([loose.s("a"), 7]), "group got 7, which cannot be linked"),
        (lambda: loose.s("a").then(double, on_failure=print), "on_failure got <built-in"),
        (lambda: double.then(double).jobs(), "'double' takes the result of the job before it, but"),
        (
            lambda: loosely_grouped([loose.s("a"), double]).jobs(),
            "takes the result of the job before it, but",
        ),
    ],
)
def test_what_cannot_be_linked_is_refused(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        wrong()


def test_a_task_that_cannot_take_a_result_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"'both' cannot take a result.*: it also needs other"):
        loose.s("a").then(both)
    with pytest.raises(
        PayloadError, match=r"'clean' cannot take a result.*it has no argument that"
    ):
        loose.s("a").then(clean)
    with pytest.raises(PayloadError, match=r"as in \.then\(clean\.s\(…\)\)"):
        loose.s("a").then(double, on_failure=clean)
    with pytest.raises(PayloadError, match="wrong arguments for the task 'fetch'"):
        loose.s()


def test_a_flow_is_part_of_one_flow() -> None:
    first = loose.s("a")
    with pytest.raises(JobError, match="the same flow is given twice"):
        group([first, first])
    then = first.then(double)
    with pytest.raises(JobError, match=r"part of another flow already.*\.then\(pollwise\.group"):
        first.then(total)
    with pytest.raises(JobError, match="part of another flow already"):
        group([fetch.s("b"), first])
    with pytest.raises(JobError, match="part of another flow already"):
        asyncio.run(first.put())
    assert len(then.jobs()) == 2


def test_what_is_refused_leaves_its_parts_as_they_were() -> None:
    first, second = loose.s("a"), fetch.s("b")
    with pytest.raises(JobError):
        loosely_grouped([first, second, "c"])
    with pytest.raises(JobError):
        first.then(second, on_failure="c")
    with pytest.raises(PayloadError):
        first.then(both)
    assert len(group([first, second]).jobs()) == 2


def test_a_flow_is_put_once_unless_that_failed() -> None:
    async def main(clock: VirtualClock) -> None:
        class Broken(MemoryQueue):
            fails = True

            async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
                if self.fails:
                    raise StoreUnavailable("on purpose")
                return await super()._put(jobs)

        queue = Broken(clock=clock)
        with worker.using(queue):
            flow = fetch.s("a").then(double)
            with pytest.raises(StoreUnavailable):
                await flow.put()
            queue.fails = False
            handle = await flow.put()
            assert handle.ids == ("1", "2")
            assert handle.id == "1"
            with pytest.raises(JobError, match="was put already; build it again to put it again"):
                await flow.put()
            with pytest.raises(JobError, match="was put already"):
                flow.then(double)
        assert (await queue.stats()).blocked == 1

    virtually(main)


def test_tasks_of_another_queue_are_refused() -> None:
    elsewhere = Worker("sqlite:///elsewhere.db")

    @elsewhere.task
    async def ship(number: int) -> None: ...

    flow = fetch.s("a").then(ship)
    with pytest.raises(
        JobError, match=r"'ship' belongs to another queue \(sqlite:.*elsewhere\.db.*\) th"
    ):
        asyncio.run(flow.put())
    beside = Worker(QUEUE)

    @beside.task
    async def store(number: int) -> None: ...

    assert asyncio.run(fetch.s("a").then(store).put()).ids


def test_unique_is_refused_by_name() -> None:
    flow = fetch.options(unique="u").s("a").then(double)
    with pytest.raises(JobError, match="has unique = 'u' and is linked to others"):
        asyncio.run(flow.put())


def test_too_many_jobs_are_refused_with_what_to_do() -> None:
    flow = group([double.s(n) for n in range(10_000)]).then(total)
    with pytest.raises(JobError, match=r"has 10001 jobs; at most 10000, .* put the next part"):
        flow.jobs()


def test_the_jobs_of_a_flow_can_be_put_by_the_caller() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        ids = await queue.put(fetch.s("a").then(double).jobs())
        view = await queue.flow(ids[1])
        assert view is not None
        assert [each.info.state for each in view.jobs] == ["ready", "blocked"]
        assert view.name == view.jobs[0].info.job.headers[FLOW_HEADER]

    virtually(main)


def test_a_flow_shows_what_it_is() -> None:
    assert repr(fetch.s("a").then(double)) == "<flow of fetch, double>"
    assert repr(group([fetch.s("a")] + [double.s(1) for _ in range(6)])).endswith("double …>")
