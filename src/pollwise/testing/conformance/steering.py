"""Pauses, and what workers store and receive: records, orders, history and paces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.breakers import OpenBreaker
from pollwise.queues.notes import order_broadcast
from pollwise.queues.presence import PRESENCE_KEPT, RunningJob, WorkerInfo
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.runtime.rollups import Histogram, HistoryPoint, by_kind
from pollwise.runtime.rollups.points import HOUR, MINUTE
from pollwise.runtime.rollups.rows import (
    BY_WORKER,
    PACE,
    PACE_AT,
    ROW_BYTES_MAX,
    ROWS_PER_WRITE_MAX,
    HistoryRow,
    encoded,
)
from pollwise.testing.conformance.bench import (
    Bench,
    done,
    equal,
    expect,
    payloads,
    refused,
    require,
)

INFO = WorkerInfo(
    name="ann-1",
    instance="a1",
    host="ann.example",
    pid=7,
    version="1.0",
    kinds=("mail", "☃"),
    concurrency=8,
    busy=1,
    waiting=2,
    running=(RunningJob("17", "mail", 5.5),),
    started_at=1.5,
    seen_at=2.5,
    strategy="Adaptive()",
    interval=0.5,
    hints=True,
    breakers=("☃",),
)
TWIN = replace(INFO, name="bob/☃ 2", instance="b2")
DAY = 86400.0


# Pauses


async def _pausable(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.pause, "pause")
    return queue


async def check_paused_kind_is_left_out(bench: Bench) -> None:
    """A claim of any handle does not get a paused kind, with and without kinds; others it gets."""
    queue, other = await _pausable(bench), await bench.queue()
    await queue.put([NewJob("mail", 1), NewJob("resize", 2), NewJob("mail", 3)])
    await queue.pause("mail", by="ann", why="the server is down")
    equal(await bench.take(other, kinds=["mail"]), [], "a claim of the paused kind")
    found = await bench.take(other, kinds=["mail", "resize"])
    equal(payloads(found), [2], "a claim of the paused kind and another")
    equal(await bench.take(other), [], "a claim of all kinds")
    equal((await queue.stats()).ready, 2, "paused jobs that are ready")
    equal(await queue.resume("mail"), True, "resume of a paused kind")
    equal(sorted(payloads(await bench.take(other))), [1, 3], "a claim after the end of the pause")


async def check_a_pause_holds_for_requirements(bench: Bench) -> None:
    """A pause of a kind applies to its jobs that require something, whatever they require."""
    queue, other = await _pausable(bench), await bench.queue()
    kinds = [f"build#{digit * 16}" for digit in "0a9"]
    others = ["build#1", f"rebuild#{'0' * 16}", f"build#{'0' * 17}"]
    await queue.put([NewJob(kind, kind) for kind in (*kinds, *others)])
    await queue.pause("build")
    found = await bench.take(other, kinds=[*kinds, *others, "build"])
    equal(sorted(payloads(found)), sorted(others), "what a claim finds during the pause")
    equal(await queue.resume("build"), True, "resume of the kind")
    equal(sorted(payloads(await bench.take(other, kinds=kinds))), sorted(kinds), "after it")


async def check_paused_queue_hands_out_nothing(bench: Bench) -> None:
    """While the queue is paused, claims find nothing; puts, renewals and settlements work."""
    queue, other = await _pausable(bench), await bench.queue()
    await queue.put([NewJob("a", 1), NewJob("b", 2)])
    claim = await bench.take_one(queue)
    await queue.pause(by="ann")
    await other.put(NewJob("a", 3))
    equal(await bench.take(other), [], "a claim of all kinds")
    equal(await bench.take(other, kinds=["a", "b"]), [], "a claim of some kinds")
    equal((await queue.renew([claim], bench.unit * 500)).lost, (), "leases lost by a renewal")
    await queue.settle(done([claim]))
    equal((await other.stats()).ready, 2, "jobs that are ready")
    equal(await other.resume(), True, "resume of a paused queue")
    equal(len(await bench.take(other)), 2, "jobs found after the end of the pause")


async def check_pauses_are_told(bench: Bench) -> None:
    """`paused` shows who paused what, why and when; a second pause replaces the first."""
    queue, other = await _pausable(bench), await bench.queue()
    equal(await queue.paused(), {}, "the pauses of a new queue")
    before = queue.clock.epoch()
    await queue.pause("mail", by="ann", why="the ☃ is down")
    await queue.pause(by="bob")
    await queue.pause("mail", by="eve", why="again \ud800\0")
    pauses = await other.paused()
    told = {kind: (pause.by, pause.why) for kind, pause in pauses.items()}
    given = {"mail": ("eve", r"again \ud800\0"), None: ("bob", "")}
    equal(told, given, "who paused what, and why")
    after = queue.clock.epoch()
    expect(all(before <= p.at <= after for p in pauses.values()), f"the times are wrong: {pauses}")
    equal(await queue.resume(), True, "resume of the queue")
    equal(list(await other.paused()), ["mail"], "a paused kind stays paused")
    equal(await queue.resume(), False, "resume of a queue that is not paused")
    equal(await queue.resume("resize"), False, "resume of a kind that is not paused")


async def check_pause_bad_arguments(bench: Bench) -> None:
    """Kinds that no job can have, and texts that are too long, are refused."""
    queue = await _pausable(bench)
    await refused(ConfigError, queue.pause(""), "pause of a kind without a name")
    await refused(ConfigError, queue.pause("x" * 201), "pause of a kind with a long name")
    await refused(ConfigError, queue.pause(why="x" * 2001), "pause with a long reason")
    await refused(ConfigError, queue.resume("\n"), "resume of a kind that cannot be printed")


async def check_pause_of_odd_kinds(bench: Bench) -> None:
    """Kinds whose names are odd or long are paused without touching others."""
    queue, other = await _pausable(bench), await bench.queue()
    odd = ["a/b", "../a", "ä☃", "*", "x" * 200, "x" * 199 + "y", "a b"]
    await queue.put([NewJob(kind, kind) for kind in odd])
    for kind in odd[:-1]:
        await queue.pause(kind)
    equal(set(await other.paused()), set(odd[:-1]), "the paused kinds")
    equal(payloads(await bench.take(other, kinds=odd)), ["a b"], "the one that is not paused")
    for kind in odd[:-1]:
        equal(await other.resume(kind), True, f"resume of {kind!r}")
    equal(sorted(payloads(await bench.take(other))), sorted(odd[:-1]), "after the pauses")


async def check_paused_jobs_fall_due(bench: Bench) -> None:
    """Jobs fall due during a pause, and claims during it do not plan a poll that finds nothing."""
    queue = await _pausable(bench)
    require(queue.capabilities.delay, "delay")
    await queue.put(NewJob("mail", 1, delay=bench.unit * 3))
    await queue.pause("mail")
    equal(await bench.take(queue, kinds=["mail"]), [], "a claim before the job is due")
    await bench.elapse(5)
    for _ in range(3):
        equal(await bench.take(queue, kinds=["mail"]), [], "a claim after the job fell due")
    at = queue.hints().sends_at
    expect(at is None or at > queue.clock.now() + bench.unit, "a hint is planned for paused jobs")
    equal((await queue.stats()).ready, 1, "the paused job is ready")
    await queue.resume("mail")
    equal(len(await bench.take(queue, kinds=["mail"])), 1, "found after the pause")


async def check_pause_and_lapsed_leases(bench: Bench) -> None:
    """A job whose lease ends during a pause waits for the end of the pause."""
    queue = await _pausable(bench)
    await queue.put(NewJob("mail", 1))
    [claim] = await bench.take(queue, lease=2)
    await queue.pause("mail")
    await bench.elapse(4)
    equal(await bench.take(queue), [], "a claim during the pause")
    await queue.resume("mail")
    [again] = await bench.take(queue)
    equal((again.job.id, again.job.attempt), (claim.job.id, 2), "the job after the pause")


async def check_pause_keeps_order(bench: Bench) -> None:
    """After a pause, jobs are claimed in the order of their priority and their put."""
    queue = await _pausable(bench)
    require(queue.capabilities.priorities and queue.capabilities.ordered, "order")
    await queue.pause("a")
    await queue.put([NewJob("a", 2), NewJob("b", 3), NewJob("a", 1, priority=5), NewJob("a", 4)])
    equal(payloads(await bench.take(queue)), [3], "claimed during the pause")
    await queue.resume("a")
    equal(payloads(await bench.take(queue)), [1, 2, 4], "claimed after the pause")


async def check_paused_key_waits(bench: Bench) -> None:
    """A job that waits behind a paused one of its key waits with it."""
    queue = await _pausable(bench)
    require(queue.capabilities.keys, "keys")
    await queue.put([NewJob("a", 1, key="k"), NewJob("b", 2, key="k"), NewJob("b", 3)])
    await queue.pause("a")
    equal(payloads(await bench.take(queue)), [3], "claimed during the pause")
    await queue.resume("a")
    [first] = await bench.take(queue)
    equal(first.job.payload, 1, "claimed after the pause")
    await queue.settle([Settlement.done(first)])
    equal(payloads(await bench.take(queue)), [2], "claimed after its predecessor")


async def check_resume_wakes(bench: Bench) -> None:
    """The end of a pause wakes pollers that wait for jobs of that kind."""
    queue = await _pausable(bench)
    await queue.put(NewJob("mail", 1))
    await queue.pause("mail")
    sleeper = asyncio.ensure_future(bench.pause(queue, 100))
    await bench.elapse(1)
    await queue.resume("mail")
    equal(await sleeper, True, "a hint ended the pause of a poller")


async def check_held_claim_and_pause(bench: Bench) -> None:
    """A held claim does not get what is paused, and gets it when the pause ends."""
    queue = await _pausable(bench)
    require(queue.capabilities.long_poll, "long poll")
    await queue.put(NewJob("mail", 1))
    await queue.pause("mail")
    unit = bench.unit
    held = [asyncio.ensure_future(queue.claim("w", 1, unit * 500, unit * 60)) for _ in range(2)]
    await bench.elapse(2)
    expect(not any(each.done() for each in held), "a held claim ended during the pause")
    await queue.resume("mail")
    finished, rest = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
    equal([len(each.result()) for each in finished], [1], "jobs of the claim that was held")
    await queue.put(NewJob("mail", 2))
    equal([len(await each) for each in rest], [1], "jobs of the other claim")


# Workers


async def _with_presence(bench: Bench) -> Queue:
    queue = await bench.queue()
    require(queue.capabilities.presence, "presence")
    return queue


async def _poll_and_record(bench: Bench, queue: Queue, info: WorkerInfo) -> int | None:
    """Poll and store a record, as a worker does."""
    await bench.take(queue)
    return await queue.record_worker(info, PRESENCE_KEPT)


async def check_workers_are_listed(bench: Bench) -> None:
    """Every handle sees the records of workers whole, sorted by name, the newest of each."""
    queue, other = await _with_presence(bench), await bench.queue()
    equal(await queue.workers(), [], "the workers of a new queue")
    later = replace(INFO, name="bob/☃ " + "x" * 190, instance="b", kinds=None, running=())
    for info in (later, INFO, replace(INFO, busy=0), replace(INFO, busy=3)):
        order = await queue.record_worker(info, PRESENCE_KEPT)
        equal(order, None, "an order, though none was given")
    equal(await other.workers(), [replace(INFO, busy=3), later], "the running workers")


async def check_workers_of_one_name(bench: Bench) -> None:
    """Workers that share a name are kept apart, and an order reaches all of them."""
    queue, other = await _with_presence(bench), await bench.queue()
    twin = replace(INFO, instance="a2", started_at=9.0)
    await queue.record_worker(INFO, PRESENCE_KEPT)
    await other.record_worker(twin, PRESENCE_KEPT)
    equal(await other.workers(), [INFO, twin], "the running workers")
    equal(await queue.set_concurrency("ann-1", 3), 2, "how many workers have the name")
    equal(await _poll_and_record(bench, queue, INFO), 3, "the order of the first")
    equal(await _poll_and_record(bench, other, twin), 3, "the order of the second")


async def check_worker_leaves(bench: Bench) -> None:
    """A worker that stops is gone at once; the others stay."""
    queue, other = await _with_presence(bench), await bench.queue()
    stays = replace(INFO, name="bob", instance="b")
    await queue.record_worker(INFO, PRESENCE_KEPT)
    await other.record_worker(stays, PRESENCE_KEPT)
    await queue.forget_worker(INFO)
    equal(await other.workers(), [stays], "the running workers")
    await queue.forget_worker(INFO)


async def check_worker_not_heard_of_is_gone(bench: Bench) -> None:
    """A record counts for as long as its worker asked, and no longer."""
    queue, other = await _with_presence(bench), await bench.queue()
    await queue.record_worker(INFO, bench.unit * 4)
    stays = replace(INFO, name="bob", instance="b")
    await queue.record_worker(stays, bench.unit * 1000)
    equal(len(await other.workers()), 2, "workers at first")
    await bench.elapse(6)
    equal(await other.workers(), [stays], "workers after the time of one of them")
    equal(await queue.record_worker(INFO, bench.unit * 1000), None, "an order after all that time")
    equal(len(await other.workers()), 2, "workers when the first came back")


async def check_set_concurrency(bench: Bench) -> None:
    """An order waits for its worker, and a later one replaces it; a restart ends it."""
    queue, other = await _with_presence(bench), await bench.queue()
    await queue.record_worker(INFO, PRESENCE_KEPT)
    equal(await other.set_concurrency("ann-1", 4), 1, "how many workers have the name")
    equal(await _poll_and_record(bench, queue, INFO), 4, "the order")
    await other.set_concurrency("ann-1", 1000)
    equal(await _poll_and_record(bench, queue, INFO), 1000, "the later order")
    again = replace(INFO, instance="a9")
    equal(await _poll_and_record(bench, queue, again), None, "an order after a restart")


async def check_set_concurrency_bad_arguments(bench: Bench) -> None:
    """Numbers out of bounds are refused, and names that no worker has, with the nearest ones."""
    queue = await _with_presence(bench)
    await queue.record_worker(INFO, PRESENCE_KEPT)
    for number in (0, -1, 1001, True):
        await refused(ConfigError, queue.set_concurrency("ann-1", number), f"{number}")
    error = await refused(ConfigError, queue.set_concurrency("anm-1", 2), "an unknown name")
    expect("'ann-1'" in str(error), f"the error does not name the nearest worker: {error}")


async def check_order_is_broadcast(bench: Bench) -> None:
    """An order is broadcast to its worker, and to no other."""
    queue = await _with_presence(bench)
    require(queue.capabilities.hints != "none", "hints")
    await queue.record_worker(INFO, PRESENCE_KEPT)
    heard, others = Hint(), Hint()
    listening = [
        queue.hints().listen(lambda _: _give(heard), [order_broadcast("ann-1")]),
        queue.hints().listen(lambda _: _give(others), [order_broadcast("ann-2")]),
    ]
    await queue.set_concurrency("ann-1", 2)
    equal(await queue.clock.sleep(bench.unit * 100, heard), True, "heard of the order")
    equal(await queue.clock.sleep(0, others), False, "another worker heard of it")
    for each in listening:
        each.close()


def _give(hint: Hint) -> None:
    hint.give()


# History


def _figures(at: float, done: int, kind: str = "mail ☃") -> list[HistoryPoint]:
    """Figures that differ in every field."""
    polls = HistoryPoint(
        at, polls=9, empty_polls=5, failed_polls=1, hinted=2, worker_seconds=60.0,
        interval_total=80.0, interval_low=0.1, interval_high=30.0,
    )  # fmt: skip
    runs = HistoryPoint(
        at, kind=kind, done=done, failed=3, dead=1, found=done + 3,
        waits=Histogram.of([0.01, 0.2, 3600.0]), durations=Histogram.of([0.0, 5.0]),
    )  # fmt: skip
    return [polls, runs]


def _row(info: WorkerInfo, points: Sequence[HistoryPoint]) -> HistoryRow:
    return HistoryRow(BY_WORKER, int(points[0].at), info.note_name, encoded(points))


async def _keeping(bench: Bench) -> tuple[Queue, float]:
    """A queue, and the start of a minute or two ago."""
    queue = await bench.queue()
    require(queue.capabilities.presence and queue.capabilities.history, "history")
    return queue, (queue.clock.epoch() // MINUTE - 2) * MINUTE


async def check_history_is_kept(bench: Bench) -> None:
    """Every handle sees what workers wrote with their records, added up, each minute once."""
    queue, at = await _keeping(bench)
    other = await bench.queue()
    equal(await queue.history(), [], "the history of a new queue")
    early = _row(INFO, _figures(at, 1))
    await queue.record_worker(INFO, PRESENCE_KEPT, [early])
    points = _figures(at, 4)
    await queue.record_worker(
        INFO, PRESENCE_KEPT, [_row(INFO, points), _row(INFO, _figures(at + MINUTE, 2))]
    )
    equal((await other.history())[:2], points, "the minute that was written again")
    await other.record_worker(TWIN, PRESENCE_KEPT, [_row(TWIN, _figures(at, 10))])
    await other.forget_worker(TWIN, [_row(TWIN, _figures(at + MINUTE, 20))])
    equal([each.name for each in await queue.workers()], ["ann-1"], "the running workers")
    found = await queue.history("1h")
    equal([each.at for each in found], [at, at, at + MINUTE, at + MINUTE], "the minutes")
    equal([each.done for each in found], [0, 14, 0, 22], "runs of all workers")
    equal(found[0].polls, 18, "polls of all workers")
    equal((found[0].interval_low, found[0].interval_high), (0.1, 30.0), "the pauses")
    equal(found[1].waits, Histogram.of([0.01, 0.2, 3600.0] * 2), "the waits of all workers")


async def check_history_of_some(bench: Bench) -> None:
    """A range, some kinds, one worker, or by hour."""
    queue, at = await _keeping(bench)
    other = await bench.queue()
    await queue.record_worker(
        INFO,
        PRESENCE_KEPT,
        [
            _row(INFO, [*_figures(at, 4), *_figures(at, 5, "report")[1:]]),
            _row(INFO, _figures(at - 2 * HOUR, 1)),
        ],
    )
    await other.record_worker(TWIN, PRESENCE_KEPT, [_row(TWIN, _figures(at, 30))])
    equal({each.at for each in await queue.history("1h")}, {at}, "the minutes of the last hour")
    reports = await other.history("24h", ["report"])
    equal([(each.kind, each.done) for each in reports], [("report", 5)], "one kind")
    ours = by_kind(await queue.history("1h", worker="ann-1"))
    equal({kind: each.done for kind, each in ours.items()}, {"": 0, "mail ☃": 4, "report": 5}, "")
    hours = await other.history("24h", ["mail ☃"], "hour")
    equal([each.seconds for each in hours], [HOUR, HOUR], "the length of hours")
    equal([each.done for each in hours], [1, 34], "runs by hour")
    equal([each.at % HOUR for each in hours], [0, 0], "the start of hours")


async def check_history_is_folded(bench: Bench) -> None:
    """Nothing is lost when rows are folded, by any handle; what is too old goes."""
    queue, at = await _keeping(bench)
    other = await bench.queue()
    some_days_ago = (at - 8 * DAY) // HOUR * HOUR
    times = (at, at - 3 * HOUR, at - 3 * HOUR - MINUTE, some_days_ago, some_days_ago + MINUTE)
    for info in (INFO, TWIN):
        rows = [_row(info, _figures(each, 1)) for each in (*times, at - 95 * DAY, at + 3 * DAY)]
        await queue.record_worker(info, PRESENCE_KEPT, rows)
    before = by_kind(await queue.history("30d", by="hour"))
    for _ in range(3):  # minutes that were folded once are folded again
        await asyncio.gather(queue.fold_history(), other.fold_history())
    equal(await queue.history("1h", worker="ann-1") != [], True, "a worker's newest minutes stay")
    await other.record_worker(TWIN, PRESENCE_KEPT, [_row(TWIN, _figures(at - 3 * HOUR, 5))])
    await other.fold_history()
    folded = by_kind(await other.history("30d", by="hour"))
    equal(folded["mail ☃"].done, 2 * 5 + 5, "runs after folding, with those that came late")
    equal(folded[""].polls, before[""].polls + 9, "polls after folding")
    late = await other.history("4h", ["mail ☃"], "minute")
    equal([each.done for each in late], [2, 7, 2], "minutes after folding")
    old = await queue.history("60d", ["mail ☃"], "minute")
    equal((old[0].seconds, old[0].done), (HOUR, 4), "after a week, by hour")
    equal(len(await queue.history("90d", ["mail ☃"])) <= 4, True, "what is too old goes")


async def check_history_bad_rows(bench: Bench) -> None:
    """Rows that no worker writes are refused, before anything is written."""
    queue, at = await _keeping(bench)
    good = _row(INFO, _figures(at, 1))
    for bad in (
        [good] * (ROWS_PER_WRITE_MAX + 1),
        [good._replace(level=1)],
        [good._replace(writer=TWIN.note_name)],
        [good._replace(at=-60)],
        [good._replace(value="x" * (ROW_BYTES_MAX + 1))],
    ):
        await refused(ConfigError, queue.record_worker(INFO, PRESENCE_KEPT, bad), f"{bad[0]!r:.90}")
    equal(await queue.workers(), [], "workers after records that were refused")
    await queue.record_worker(INFO, PRESENCE_KEPT, [good._replace(value='{"not": "ours"}')])
    equal(await queue.history(), [], "rows of another format")
    for arguments in (("0s",), ("1h", "mail"), ("1h", None, "day")):
        await refused(ConfigError, queue.history(*arguments), f"history{arguments}")


async def check_paces_are_kept(bench: Bench) -> None:
    """Every handle sees the newest pace of each key, which is neither history nor a worker."""
    queue, at = await _keeping(bench)
    other = await bench.queue()
    equal(await queue.paces(), [], "the paces of a new queue")
    keys = [f"{n:016x}-{0:016x}" for n in range(2)]

    def pace(n: int, saved_at: float) -> HistoryRow:
        return HistoryRow(PACE, PACE_AT, keys[n], f'{{"saved_at":{saved_at!r},"note":"☃"}}')

    await queue.record_worker(INFO, PRESENCE_KEPT, [_row(INFO, _figures(at, 1)), pace(0, at)])
    await other.record_worker(TWIN, PRESENCE_KEPT, [pace(1, at + 1)])
    await other.forget_worker(TWIN, [pace(0, at + 2)])
    expected = [(keys[1], at + 1), (keys[0], at + 2)]
    for handle in (queue, other):
        found = await handle.paces()
        equal([(each.key, each.saved_at) for each in found], expected, "the paces, the newest last")
        equal(found[0].state, {"saved_at": at + 1, "note": "☃"}, "what was saved")
    equal({each.at for each in await queue.history()}, {at}, "the history beside paces")
    equal([each.name for each in await queue.workers()], ["ann-1"], "the workers beside paces")
    await queue.fold_history()
    equal(len(await queue.paces()), 2, "the paces after folding")
    for bad in ([pace(0, at), pace(1, at)], [pace(0, at)._replace(at=60)]):
        await refused(ConfigError, queue.record_worker(INFO, PRESENCE_KEPT, bad), "a bad pace")
    await refused(
        ConfigError,
        queue.record_worker(INFO, PRESENCE_KEPT, [pace(0, at)._replace(writer="mine")]),
        "a pace with a key of another form",
    )


# Breakers


async def check_one_worker_changes_a_breaker(bench: Bench) -> None:
    """The note of a breaker is replaced only if it is as the caller read it."""
    queue, other = await bench.queue(), await bench.queue()
    require(queue.capabilities.breakers, "keep breakers")
    now = queue.clock.epoch()
    opened = OpenBreaker("mail", 1, now, now + 60, "☃").to_note()
    longer = OpenBreaker("mail", 2, now, now + 120, "w", "w", now + 130).to_note()
    equal(await queue.breakers.read(), {}, "the breakers of an empty queue")
    equal(await queue.breakers.swap("mail", None, opened), (True, opened), "the first opening")
    equal(await other.breakers.swap("mail", None, longer), (False, opened), "expects it closed")
    equal(await other.breakers.read(), {"mail": opened}, "read by another handle")
    swaps = (each.breakers.swap("mail", opened, longer) for each in (queue, other, queue))
    replaced = [each for each, _ in await asyncio.gather(*swaps)]
    equal(replaced.count(True), 1, "how many of three swaps at once were done")
    equal((await other.breakers.list())[0].trial_by, "w", "who tries a job")
    expect(await other.breakers.close("mail"), "a breaker can be closed")
    expect(not await other.breakers.close("mail"), "a breaker that is closed")
    equal(await queue.breakers.swap("mail", longer, None), (False, None), "it is closed already")
    equal(await queue.paused(), {}, "an open breaker is not a pause")
