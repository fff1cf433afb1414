"""Views: stats, lists, pages and single jobs; actions over a filter; and closing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, replace

from pollwise.errors import ConfigError, PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.views import LIVE, JobFilter, Stats
from pollwise.runtime.decoding import LISTED_MAX
from pollwise.runtime.jobs import STATES, JobInfo, NewJob, Settlement, State
from pollwise.testing.conformance.bench import (
    LONG,
    Bench,
    done,
    equal,
    expect,
    keeping,
    nothing_left,
    numbered,
    refused,
    require,
)

GARBAGE = ("", "no-such-id", "0", "-1", "1.5", " 1", "9" * 30, "٣", "' OR 1=1 --", "\0", "\ud800")


async def check_stats_count(bench: Bench) -> None:
    """Stats count the jobs in every state."""
    queue = await keeping(bench, 100)
    can = queue.capabilities
    require(can.exact_depth, "exact depth")
    equal(await queue.stats(), Stats(0, 0, 0, 0, 0, 0, 0, None), "the stats of an empty queue")
    wanted = {"ready": 3, "delayed": 0, "blocked": 0, "leased": 2, "dead": 1, "done": 1}
    await queue.put(numbered(*range(4)))
    first, second, *_ = await bench.take(queue)
    await queue.settle([Settlement.done(first), Settlement.dead(second, "broken")])
    await queue.put(numbered(*range(3)))
    if can.keys:
        await queue.put([*numbered(1, key="k"), *numbered(2, 3, key="k")])
        wanted |= {"ready": 4, "blocked": 2}
    if can.delay:
        await queue.put(numbered(1, 2, delay=50 * bench.unit))
        wanted["delayed"] = 2
    stats = asdict(await queue.stats())
    del stats["oldest_age"], stats["cancelled"], stats["capped"]
    equal(stats, wanted, "the stats")


async def check_stats_follow_time(bench: Bench) -> None:
    """A job that is due, or whose lease ran out, counts as ready, even without a claim since."""
    queue = await bench.queue()
    require(queue.capabilities.exact_depth and queue.capabilities.delay, "exact depth and delay")
    await queue.put(NewJob("job", delay=2 * bench.unit))
    await queue.put(NewJob("job"))
    await bench.take_one(queue, lease=2)
    stats = await queue.stats()
    equal((stats.ready, stats.delayed, stats.leased), (0, 1, 1), "ready, delayed, leased before")
    await bench.elapse(2)
    stats = await queue.stats()
    equal((stats.ready, stats.delayed, stats.leased), (2, 0, 0), "ready, delayed, leased after")
    if queue.capabilities.views:
        states = [view.state for view in await queue.jobs()]
        equal(states, ["ready", "ready"], "the states in the list")


async def check_oldest_age(bench: Bench) -> None:
    """The oldest age is the waiting time of the ready job that was due first."""
    queue = await bench.queue()
    can = queue.capabilities
    require(can.exact_depth and can.ordered, "exact depth and order")
    await queue.put(NewJob("job", "old"))
    await bench.elapse(4)
    await queue.put(NewJob("job", "young"))
    await bench.elapse(2)
    age = (await queue.stats()).oldest_age
    _near(bench, age, 6, "with two ready")
    claim = await bench.take_one(queue)
    equal(claim.job.payload, "old", "the job claimed first")
    _near(bench, (await queue.stats()).oldest_age, 2, "when the older one is leased")
    await bench.take_one(queue)
    equal((await queue.stats()).oldest_age, None, "the oldest age with nothing ready")
    await queue.settle([Settlement.retry(claim, 3 * bench.unit)])
    await bench.elapse(4)
    _near(bench, (await queue.stats()).oldest_age, 1, "counted from when its retry was due")


def _near(bench: Bench, age: float | None, units: float, what: str) -> None:
    if age is None or not units - 0.01 <= age / bench.unit <= units + 1.5:
        raise AssertionError(f"oldest_age {what}: got {age} s, wanted {units * bench.unit} s")


async def _states(bench: Bench) -> tuple[Queue, dict[State, str]]:
    """A queue with a job in each state that the store has, by state."""
    queue = await keeping(bench, 100)
    can = queue.capabilities
    require(can.views, "view of jobs")
    put: dict[State, str] = {}
    put["done"], put["dead"], put["leased"] = await queue.put(numbered("done", "dead", "leased"))
    claims = {claim.job.payload: claim for claim in await bench.take(queue, worker="holder")}
    await queue.settle([Settlement.done(claims["done"]), Settlement.dead(claims["dead"], "why")])
    [put["ready"]] = await queue.put(NewJob("other", "ready", key="k" if can.keys else None))
    if can.keys:
        [put["blocked"]] = await queue.put(NewJob("job", "blocked", key="k"))
    if can.delay:
        [put["delayed"]] = await queue.put(NewJob("job", "delayed", delay=60 * bench.unit))
    return queue, put


async def check_peek(bench: Bench) -> None:
    """`get` returns a job's state, its holder, its error and since (or until) when."""
    queue, put = await _states(bench)
    now = queue.clock.epoch()
    for state, job_id in put.items():
        view = await queue.get(job_id)
        if view is None:
            raise AssertionError(f"get of the {state} job found nothing")
        equal((view.job.id, view.state, view.job.payload), (job_id, state, state), "the view")
        holder = "holder" if state in ("leased", "dead", "done") else None
        equal(view.worker, holder, f"who holds or ended the {state} job")
        equal(view.error, "why" if state == "dead" else None, f"the error of the {state} job")
        ahead = state == "delayed"
        expect(
            (view.since > now) == ahead,
            f"since = {view.since} of the {state} job should be {'after' if ahead else 'by'} {now}",
        )


async def check_leased_since_the_claim(bench: Bench) -> None:
    """`since` of a leased job is when it was claimed, also after its lease was renewed."""
    queue = await bench.queue()
    require(queue.capabilities.views, "view of jobs")
    [job_id] = await queue.put(NewJob("job"))
    claim = await bench.take_one(queue, lease=20)
    first = await queue.get(job_id)
    await bench.elapse(2)
    await queue.renew([claim], LONG * bench.unit)
    for view in (first, await queue.get(job_id), *await queue.jobs("leased")):
        if view is None:
            raise AssertionError("get of the leased job found nothing")
        equal((view.state, view.since), ("leased", view.claimed_at), "its state and since")
        equal(view.since, first and first.since, "since, before and after the renewal")
    expect(first and first.since < claim.until, "since is not before the end of the lease")


async def check_undecodable_payload(bench: Bench) -> None:
    """A payload that cannot be decoded affects only its own job: others run, views show it."""
    queue = await bench.queue()
    digits = sys.get_int_max_str_digits()
    require(digits, "a limit of digits in this process (PYTHONINTMAXSTRDIGITS)")
    bad = NewJob("job", "bad")
    bad.encoded = f'{{"n": {"7" * (digits + 1)}}}'  # as a process without the limit puts it
    try:
        ids = await queue.put([NewJob("job", 1), bad, NewJob("job", 3)])
    except PollwiseError:
        await nothing_left(queue, "the jobs after a put that was refused")
        return
    if queue.capabilities.views:
        listed = {view.job.id: view.job for view in await queue.jobs()}
        equal(sorted(listed), sorted(ids), "the jobs listed")
        equal(listed[ids[1]].payload, bad.encoded[:LISTED_MAX], "the payload of the bad job: text")
        shown = await queue.get(ids[1])
        equal(shown and shown.job.payload, bad.encoded, "its whole text")
    claims = {claim.job.id: claim for claim in await bench.take(queue)}
    equal([claims[ids[n]].job.payload for n in (0, 2)], [1, 3], "the payloads of the others")
    job = claims[ids[1]].job
    if job.kind != queue.foreign_kind:
        expect("digits" in (job.unreadable or ""), f"unreadable = {job.unreadable!r}: why?")
    equal([claims[ids[n]].job.unreadable for n in (0, 2)], [None, None], "unreadable of the others")
    await queue.settle([Settlement.dead(claims.pop(ids[1]), "unreadable"), *done(claims.values())])
    [dead] = await queue.jobs("dead")
    equal((dead.job.id, dead.error), (ids[1], "unreadable"), "the dead job")
    equal(await queue.retry(), 1, "how many were retried")
    again = await bench.take_one(queue)
    equal((again.job.id, again.job.kind), (ids[1], job.kind), "the job claimed again")
    equal(again.job.payload, job.payload, "its payload")
    equal(again.job.unreadable, job.unreadable, "the reason")


async def check_lists_are_short(bench: Bench) -> None:
    """Lists have the beginning of long payloads and results; `get` returns the whole."""
    queue = await bench.queue()
    require(queue.capabilities.views, "view of jobs")
    long = {"é": ["☃" * LISTED_MAX, *[[]] * LISTED_MAX]}
    small = "x" * (LISTED_MAX - 2)
    ids = await queue.put([NewJob("job", long), NewJob("job", small), NewJob("job", [1])])

    async def shown() -> dict[str, JobInfo]:
        paged: dict[str, JobInfo] = {}
        after: str | None = None
        while True:
            page = await queue.page(JobFilter(limit=2, after=after))
            paged |= {info.job.id: info for info in page.jobs}
            if (after := page.next) is None:
                break
        found = {info.job.id: info for info in await queue.jobs()}
        equal(found, paged, "the jobs of the list and of the page")
        return found

    found = await shown()
    text = found[ids[0]].job.payload
    expect(
        json.dumps(long, ensure_ascii=False).replace(" ", "").startswith(text.replace(" ", "")),
        f"the beginning of a long payload: {text!r}",
    )
    equal(len(text), LISTED_MAX, "its length")
    equal([found[each].cut_parts for each in ids], [["payload"], [], []], "what was cut")
    equal([found[each].job.payload for each in ids[1:]], [small, [1]], "short payloads")
    whole = await queue.get(ids[0])
    equal(whole and (whole.job.payload, whole.cut_parts), (long, []), "the whole payload")
    if queue.capabilities.results:
        claims = {claim.job.id: claim for claim in await bench.take(queue)}
        keep = 50 * bench.unit
        equal(claims[ids[0]].job.payload, long, "the payload that is claimed")
        await queue.settle(
            [
                Settlement.done(claims[ids[0]], 1, keep=keep),
                Settlement.done(claims[ids[1]], small, keep=keep),
                Settlement.done(claims[ids[2]], long, keep=keep),
            ]
        )
        found = await shown()
        cut = [found[each].cut_parts for each in ids]
        equal(cut, [["payload"], [], ["result"]], "what was cut of ended jobs")
        equal([found[each].result for each in ids[:2]], [1, small], "short results")
        equal(await queue.result(ids[2]), long, "the whole result")


async def check_peek_unknown(bench: Bench) -> None:
    """`get` of an unknown or impossible id returns None and is not an error."""
    queue = await bench.queue()
    require(queue.capabilities.views, "view of jobs")
    [job_id] = await queue.put(NewJob("job"))
    for garbage in GARBAGE:
        if garbage != job_id:
            equal(await queue.get(garbage), None, f"get of {garbage!r}")


async def check_list_filters(bench: Bench) -> None:
    """Lists narrow by state and kind; arrivals are in put order, whatever their states."""
    queue, put = await _states(bench)
    require(queue.capabilities.ordered, "order")
    equal([view.job.id for view in await queue.arrivals()], list(put.values()), "all arrivals")
    listed = [view.job.id for view in await queue.jobs()]
    equal(sorted(listed), sorted(put.values()), "the whole list")
    for state, job_id in put.items():
        equal([view.job.id for view in await queue.jobs(state)], [job_id], f"the {state} list")
    equal([v.job.payload for v in await queue.jobs(kind="other")], ["ready"], "the list of a kind")
    equal(await queue.jobs("dead", kind="other"), [], "a list of a state and a kind")
    equal(await queue.jobs(kind="none"), [], "the list of a kind that nobody put")


async def check_arrivals(bench: Bench) -> None:
    """Arrivals follow each other by `after` without repeats and gaps, also when jobs end."""
    queue = await bench.queue()
    require(queue.capabilities.views and queue.capabilities.ordered, "view of jobs by pages")
    put = await queue.put(numbered(*range(10)))
    seen: list[str] = []
    after = None
    while page := [view.job.id for view in await queue.arrivals(after, 4)]:
        expect(len(page) <= 4, f"a page with limit 4 has {len(page)} jobs")
        seen += page
        after = page[-1]
        if len(seen) == 4:  # the job that the next page begins after ends meanwhile
            claims = await bench.take(queue, 4)
            await queue.settle(done(claims))
    equal(seen, put, "the jobs of all pages")
    last = await queue.put(numbered(10))
    equal([view.job.id for view in await queue.arrivals(after)], last, "what was put later")
    await refused(ConfigError, queue.arrivals("no job"), "arrivals after an impossible id")


async def check_pages_show_what_matches(bench: Bench) -> None:
    """The pages of any filter show every job that matches exactly once, and nothing else."""
    queue = await _filled(bench)
    can = queue.capabilities
    everything = await queue.jobs(limit=1000)
    now = queue.clock.epoch()
    filters = [JobFilter(), JobFilter(live=True), JobFilter(kinds=("b", "c")), JobFilter(kinds=())]
    filters += [JobFilter(state) for state in STATES]
    filters += [JobFilter(state, ("a",)) for state in ("ready", "dead", "done")]
    filters += [JobFilter(worker="w2"), JobFilter("dead", error="BROKEN"), JobFilter(error="%")]
    filters += [JobFilter(older_than=3 * bench.unit), JobFilter(newer_than=3 * bench.unit)]
    if can.keys:
        filters += [JobFilter(key="k"), JobFilter("blocked", key="k"), JobFilter("dead", key="k")]
    for chosen in filters:
        wanted = sorted(info.job.id for info in everything if chosen.matches(info, now))
        for limit in (3, 50):
            found = await _walked(queue, replace(chosen, limit=limit))
            equal(sorted(info.job.id for info in found), wanted, f"the pages of {chosen}")
            for info in found:
                expect(chosen.matches(info, now), f"{info} does not match {chosen}")


async def _filled(bench: Bench) -> Queue:
    """A queue with jobs of several kinds in every state that the store has."""
    queue = await keeping(bench, 1000)
    can = queue.capabilities
    require(can.views and can.cancel, "view of jobs and cancel")
    await queue.put([NewJob("abc"[n % 3], n) for n in range(12)])
    await bench.elapse(6)
    claims = await bench.take(queue, 9, worker="w1")
    actions = [
        Settlement.done(claims[0]),
        Settlement.done(claims[1], {"n": 1}),
        Settlement.dead(claims[2], "it is broken"),
        Settlement.dead(claims[3], "100% full"),
        Settlement.retry(claims[4], error="Broken pipe"),
        Settlement.cancelled(claims[5]),
    ]
    await queue.settle(actions)
    if can.priorities:
        await queue.put([NewJob("b", 20 + n, priority=n % 2) for n in range(4)])
    if can.delay:
        await queue.put([NewJob("c", 30 + n, delay=500 * bench.unit) for n in range(4)])
        await queue.put([NewJob("a", 40, delay=bench.unit)])
    if can.keys:
        await queue.put([NewJob("b", 50 + n, key="kl"[n % 2]) for n in range(6)])
    await bench.take(queue, 2, worker="w2", lease=2)
    await bench.elapse(2)  # two leases ran out, and a delay is over
    return queue


async def _walked(queue: Queue, chosen: JobFilter) -> list[JobInfo]:
    """All jobs of all pages."""
    found: list[JobInfo] = []
    for _ in range(1000):
        page = await queue.page(chosen)
        expect(len(page.jobs) <= chosen.limit, f"{len(page.jobs)} jobs on a page of {chosen}")
        found += page.jobs
        if page.next is None:
            return found
        chosen = replace(chosen, after=page.next)
    raise AssertionError(f"the pages of {chosen} do not end")


async def check_pages_go_on_when_jobs_are_gone(bench: Bench) -> None:
    """A page goes on after a job that does not exist any more; a bad cursor is refused."""
    queue = await bench.queue()
    require(queue.capabilities.views and queue.capabilities.cancel, "view of jobs and cancel")
    put = await queue.put([NewJob("job", n) for n in range(9)])
    first = await queue.page(JobFilter(limit=4))
    await queue.cancel([info.job.id for info in first.jobs])
    rest = await _walked(queue, JobFilter(limit=4, after=first.next))
    equal(
        sorted(info.job.id for info in [*first.jobs, *rest]), sorted(put), "the jobs of all pages"
    )
    for garbage in ("", "no place", "AAAA", "WzFd", "W10", "[" * 300, "\0", "\ud800"):
        await refused(ConfigError, _after(queue, garbage), f"a page after {garbage[:10]!r}")


async def _after(queue: Queue, cursor: str) -> object:
    return await queue.page(JobFilter(after=cursor))


async def check_actions_over_a_filter(bench: Bench) -> None:
    """Retry, drop and cancel over a filter take the jobs that match, a bounded number a call."""
    queue = await _filled(bench)
    before = {info.job.id: info for info in await queue.jobs(limit=1000)}
    done = await queue.retry(JobFilter(error="broken", limit=1))
    equal(done.count, 1, "dead jobs retried by their error")
    dropped = (await queue.drop(JobFilter("done", kinds=("a",)))).count
    some = await queue.cancel(JobFilter(limit=2))
    while some.more:
        some = await queue.cancel(JobFilter(limit=2, after=some.next))
        expect(some.count <= 2, f"{some.count} jobs cancelled by a call for 2")
    gone = [i for i, info in before.items() if info.state == "done" and info.job.kind == "a"]
    equal(dropped, len(gone), "done jobs of a kind that were dropped")
    after = {info.job.id: info for info in await queue.jobs(limit=1000)}
    equal(sorted(set(before) - set(after)), sorted(gone), "the jobs that are gone")
    for info in after.values():
        was = before[info.job.id].state
        if info.state == "leased":
            expect(info.cancel, f"the leased job {info.job.id} was not asked to cancel")
        elif was in LIVE or "broken" in (before[info.job.id].error or "").lower():
            equal(info.state, "cancelled", f"the state of the job {info.job.id}, once {was}")
        else:
            equal(info.state, was, f"the state of the job {info.job.id}")
    for state in ("ready", "leased"):
        await refused(ConfigError, queue.drop(JobFilter(state)), f"to drop what is {state}")
    await refused(ConfigError, queue.cancel(JobFilter("dead")), "to cancel what is dead")


async def check_counts_agree_with_lists(bench: Bench) -> None:
    """Stats, whole and by kind, agree with the jobs that are listed; and the queue has a name."""
    queue = await _filled(bench)
    listed = await queue.jobs(limit=1000)
    states = Counter(info.state for info in listed)
    kinds = Counter((info.job.kind, info.state) for info in listed)
    whole, by_kind = await queue.stats(), await queue.stats_by_kind()
    require(queue.capabilities.exact_depth, "exact depth")
    for state in STATES:
        equal(getattr(whole, state), states[state], f"the number of {state} jobs")
        for kind, stats in by_kind.items():
            equal(getattr(stats, state), kinds[kind, state], f"the number of {state} {kind} jobs")
    equal(sorted(by_kind), sorted({kind for kind, _ in kinds}), "the kinds")
    equal(whole.capped, frozenset(), "the states that were not counted to the end")
    few = await queue.stats(most=2)
    for state in STATES:
        count, right = getattr(few, state), states[state]
        fits = count <= right if state in few.capped else count == right
        expect(fits, f"counted up to 2, {count} of {right} jobs are {state}")
    by_kind = await queue.stats_by_kind(2, 1000)
    equal(
        {kind for kind in by_kind if by_kind[kind].ready},
        {kind for kind, state in kinds if state == "ready"},
        "the kinds with ready jobs",
    )
    for kind, stats in by_kind.items():
        for state in STATES:
            count, right = getattr(stats, state), kinds[kind, state]
            fits = count <= right if state in stats.capped else count == right
            expect(fits, f"by kind up to 2, {count} of {right} {kind} jobs are {state}")
    expect(queue.name in await queue.names(), f"{queue.name!r} is not among the names")


async def check_views_change_nothing(bench: Bench) -> None:
    """Views change nothing: no attempt, no lease, no order."""
    queue = await bench.queue()
    require(queue.capabilities.views and queue.capabilities.ordered, "view of jobs and order")
    put = await queue.put(numbered(*range(3)))
    await bench.take_one(queue, lease=2)
    await bench.elapse(3)
    for _ in range(2):
        await queue.stats()
        await queue.jobs()
        for job_id in put:
            await queue.get(job_id)
    attempts = [(claim.job.payload, claim.job.attempt) for claim in await bench.take(queue)]
    equal(attempts, [(0, 2), (1, 1), (2, 1)], "payloads and attempts in the order of claims")


async def check_close(bench: Bench) -> None:
    """Closing twice is not an error; a closed handle fails clearly or not at all; others work."""
    queue, other = await bench.queue(), await bench.queue()
    [job_id] = await queue.put(NewJob("job"))
    await queue.close()
    await queue.close()
    try:
        await queue.put(NewJob("job"))
        await queue.stats()
    except PollwiseError as error:
        expect("closed" in str(error), f"the message does not say that it is closed: {error}")
    found = [claim.job.id for claim in await bench.take(other)]
    expect(job_id in found, "the other handle no longer finds the job")
    async with await bench.queue() as third:
        expect(third.url, "an open queue has a URL")
