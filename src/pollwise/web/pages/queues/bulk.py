"""Retry, drop or cancel jobs: those that were selected, or all that match a filter."""

from __future__ import annotations

from dataclasses import replace

from pollwise.queues.base import Queue
from pollwise.queues.views import BulkDone, JobFilter
from pollwise.web.pages.queues.search import JobSearch
from pollwise.web.texts import counted
from pollwise.web.view import Refused

#: The limits of one request: the jobs that it changes, the jobs of one call to the store, and the
#: seconds after which it begins no further call.
BULK_MAX = 10_000
BULK_CALL = 1_000
BULK_WITHIN = 5.0
BULK_LIMIT = f"At most {BULK_MAX:,} at a time."
DONE = {"retry": "Retried", "drop": "Dropped", "cancel": "Cancelled"}
#: Why some of the selected jobs did not change.
EXCEPT = {
    "retry": "only ended jobs can be retried",
    "drop": "only dead jobs can be dropped",
    "cancel": "jobs that have ended stay as they are",
}


async def change_selected(queue: Queue, action: str, ids: list[str]) -> str:
    """Retry, drop or cancel these jobs; return a sentence that says how many."""
    if not ids:
        raise Refused("No job was selected. Select some in the table first.")
    running = 0
    if action == "retry":
        count = await queue.retry(ids)
    elif action == "drop":
        count = await queue.drop(ids)
    else:
        states = list((await queue.cancel(ids)).values())
        running = states.count("leased")
        count = states.count("cancelled") + running
    if count == len(ids):
        said = f"{DONE[action]} {counted(count, 'job')}."
    else:
        said = f"{DONE[action]} {count} of {counted(len(ids), 'job')}: {EXCEPT[action]}."
    return said + (
        f" {running} of them run, and end when their worker learns of it." * bool(running)
    )


async def change_all(queue: Queue, action: str, search: JobSearch) -> str:
    """Retry, drop or cancel the jobs that match; return a sentence that says how many."""
    if not search.state:
        raise Refused("Choose a state first: this changes all jobs that match the filter.")
    if search.job:
        raise Refused("One job is shown, by its id. Select it, and change that.")
    chosen = replace(search.filter(BULK_CALL), after=None)
    began, count = queue.clock.now(), 0
    while True:
        done = await _change_some(queue, action, chosen)
        count += done.count
        if not done.more:
            return f"{DONE[action]} {counted(count, 'job')}."
        if count >= BULK_MAX or queue.clock.now() - began >= BULK_WITHIN:
            return f"{DONE[action]} {counted(count, 'job')}. There may be more: repeat it to go on."
        chosen = replace(chosen, after=done.next)


async def _change_some(queue: Queue, action: str, chosen: JobFilter) -> BulkDone:
    if action == "retry":
        return await queue.retry(chosen)
    return await (queue.drop(chosen) if action == "drop" else queue.cancel(chosen))
