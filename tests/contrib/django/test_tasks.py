"""Django's tasks as jobs: put in transactions, run by workers, and read as results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

import pollwise
from pollwise import NewJob
from pollwise.codecs import Key, Keys
from pollwise.errors import UniqueConflict
from pollwise.runtime.jobs import Settlement
from tests.contrib.django.sites import Site, forget_connections, set_up_django, work

set_up_django()

from django.db import transaction  # noqa: E402
from django.test import AsyncClient, Client, override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402
from grocer.models import Order  # noqa: E402
from grocer.tasks import deliver, deliver_async, fail, not_json, slow  # noqa: E402

from pollwise.contrib.django import put, queue_url  # noqa: E402
from pollwise.contrib.django.api import (  # noqa: E402
    Status,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from pollwise.contrib.django.conf import QueuePlace  # noqa: E402
from pollwise.contrib.django.queues import queue_at  # noqa: E402


def backend() -> Any:
    return task_backends["default"]


def jobs(queue: str = "default") -> list[Any]:
    found: list[Any] = backend().queue(queue).call("jobs")
    return sorted(found, key=lambda info: int(info.job.id), reverse=True)


def ended(*results: Any) -> bool:
    for result in results:
        result.refresh()
    return all(result.is_finished for result in results)


def run(*results: Any, queue: str = "default") -> None:
    work(backend().worker(queue), lambda: ended(*results))


class Abort(Exception):
    """Undoes a transaction."""


def test_a_request_that_is_rolled_back_puts_nothing(site: Site) -> None:
    assert Client().get("/order/", {"name": "tea", "refuse": "1"}).status_code == 409
    assert not Order.objects.exists()
    assert jobs() == []


def test_a_request_that_commits_puts_and_its_task_runs(site: Site) -> None:
    answer = Client().get("/order/", {"name": "tea"})
    result_id = answer.json()["id"]
    [info] = jobs()
    assert info.job.kind == "grocer.tasks.deliver"
    assert info.job.payload == {"args": ["tea"], "kwargs": {"count": 2}}
    assert Client().get(f"/result/{result_id}/").json() == {"status": "READY", "value": None}
    run(deliver.get_result(result_id))
    assert Order.objects.get().done
    found = Client().get(f"/result/{result_id}/").json()
    assert found["status"] == "SUCCESSFUL"
    assert found["value"]["orders"] == 1


def test_a_task_has_an_id_and_is_seen_in_its_transaction(site: Site) -> None:
    with pytest.raises(Abort), transaction.atomic():
        result = deliver.enqueue("tea")
        result.refresh()
        assert result.status == Status.READY
        with pytest.raises(Abort), transaction.atomic():  # a savepoint
            inner = deliver.enqueue("coffee")
            raise Abort
        with pytest.raises(TaskResultDoesNotExist):
            inner.refresh()
        raise Abort
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_async_views_put_and_read(site: Site) -> None:
    async def main() -> Any:
        client = AsyncClient()
        put = await client.get("/order-async/", {"name": "milk"})
        found = await client.get(f"/result-async/{put.json()['id']}/")
        await sync_to_async(forget_connections)()  # of the thread of async views
        return put.json()["id"], found.json()

    result_id, found = asyncio.run(main())
    assert found["status"] == "READY"
    result = deliver_async.get_result(result_id)
    assert result.task.priority == 10
    run(result)
    assert result.return_value == 1


def test_a_task_is_retried_and_its_errors_are_kept(site: Site) -> None:
    result = fail.enqueue("tea")
    run(result)
    assert result.status == Status.SUCCESSFUL
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "attempt 2 of tea" in result.errors[1].traceback


def test_a_task_that_fails_for_good_is_failed(site: Site) -> None:
    from grocer.tasks import OutOfStock

    always, gone = fail.enqueue("always"), fail.enqueue("gone")
    run(always, gone)
    assert always.status == gone.status == Status.FAILED
    assert always.attempts == 3
    assert gone.attempts == 1  # it excludes this error
    assert gone.errors[-1].exception_class is OutOfStock
    assert 'raise OutOfStock(f"no {name} left")' in gone.errors[-1].traceback
    assert gone.errors[-1].traceback.endswith("grocer.tasks.OutOfStock: no gone left")
    with pytest.raises(ValueError, match="failed"):
        _ = gone.return_value


def test_a_result_that_is_not_json_fails_once(site: Site) -> None:
    result = not_json.enqueue()
    run(result)
    assert result.status == Status.FAILED
    assert result.attempts == 1
    assert result.errors[0].exception_class is TypeError


def test_queues_are_apart(site: Site) -> None:
    there = slow.enqueue("tea")
    here = slow.using(queue_name="default").enqueue("coffee")
    assert there.id.startswith("slow:")
    run(here)
    there.refresh()
    assert there.status == Status.READY
    run(there, queue="slow")
    assert there.return_value == "slowly: tea"


def test_priority_and_time_are_those_of_the_job(site: Site) -> None:
    due = timezone.now() + timedelta(hours=1)
    result = deliver.using(priority=-7, run_after=due).enqueue("tea")
    [info] = jobs()
    assert info.job.priority == -7
    assert info.state == "delayed"
    assert abs(info.job.run_at - due.timestamp()) < 0.001
    result.refresh()
    assert result.status == Status.READY
    read = deliver.get_result(result.id)
    assert read.task.priority == -7
    assert abs(read.task.run_after - due) < timedelta(milliseconds=1)


def test_what_is_not_a_task_never_runs(site: Site) -> None:
    queue, payload = backend().queue("default"), {"args": ["tea"], "kwargs": {}}
    forged = queue.call("put", [NewJob("grocer.tasks.not_a_task", payload)])
    forged += queue.call("put", [NewJob("os.system", payload)])
    for job_id in forged:
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(f"default:{job_id}")
    run(deliver.enqueue("tea"))
    assert [queue.call("get", job_id).state for job_id in forged] == ["ready", "ready"]


@pytest.mark.parametrize(
    "payload",
    [
        {"args": "tea", "kwargs": {}},
        ["tea"],
        None,
    ],
)
def test_a_payload_of_no_task_is_dead_at_once(site: Site, payload: Any) -> None:
    queue = backend().queue("default")
    [job_id] = queue.call("put", NewJob("grocer.tasks.deliver", payload))
    work(backend().worker(), lambda: queue.call("get", job_id).state == "dead")
    assert queue.call("get", job_id).job.attempt == 1


@pytest.mark.parametrize(
    "payload",
    [{"args": [], "kwargs": {"nme": "tea"}}, {"args": ["tea", 1, 2], "kwargs": {}}],
)
def test_arguments_that_do_not_fit_are_left_to_another_version(site: Site, payload: Any) -> None:
    queue = backend().queue("default")
    [job_id] = queue.call("put", NewJob("grocer.tasks.deliver", payload))
    work(backend().worker(), lambda: queue.call("get", job_id).state == "delayed")
    assert queue.call("get", job_id).job.attempt == 0, "no attempt was used up"


def test_a_cancelled_task_is_failed(site: Site) -> None:
    result = deliver.enqueue("tea")
    backend().queue("default").call("cancel", [result.id.partition(":")[2]])
    result.refresh()
    assert result.status == Status.FAILED
    assert result.errors[0].exception_class is asyncio.CancelledError


def test_any_job_may_be_put_in_the_transaction(site: Site) -> None:
    with pytest.raises(Abort), transaction.atomic():
        put(NewJob("resize", 1))
        raise Abort
    with transaction.atomic():
        [job_id] = put([NewJob("resize", 2)], "slow")
    assert [(info.job.id, info.job.payload) for info in jobs("slow")] == [(job_id, 2)]
    assert jobs() == []


def test_flows_and_debounced_jobs_join_the_transaction(site: Site) -> None:
    def flow() -> list[NewJob]:
        first = NewJob("first")
        return [first, NewJob("second", after=[first]), NewJob("debounced", 1, unique="u")]

    with pytest.raises(Abort), transaction.atomic():
        put(flow())
        raise Abort
    assert jobs() == []
    with transaction.atomic():
        put(flow())
        put(NewJob("debounced", 2, unique="u", debounce="1h"))
    found = {info.job.kind: (info.state, info.job.payload) for info in jobs()}
    assert found == {
        "first": ("ready", None), "second": ("blocked", None), "debounced": ("delayed", 2)
    }  # fmt: skip

    async def done() -> list[str]:
        async with pollwise.open(queue_url()) as queue:
            claims = await queue.claim("w", 9, "60s")
            await queue.settle([Settlement.done(claim) for claim in claims])
            return [claim.job.kind for claim in await queue.claim("w", 9, "60s")]

    assert asyncio.run(done()) == ["second"]


@pytest.mark.parametrize("options", [{}, {"replace": True}], ids=["unique", "replace"])
def test_a_put_that_is_refused_leaves_nothing_in_the_transaction(
    site: Site, options: dict[str, Any]
) -> None:
    put([NewJob("old", 1, unique="u"), NewJob("old", 1, unique="v")])
    with transaction.atomic():
        with pytest.raises(UniqueConflict):
            put(
                [
                    NewJob("lost"),
                    NewJob("old", 2, unique="v", replace=True),
                    NewJob("other", unique="u", **options),
                ]
            )
        put(NewJob("kept"))
    assert {(info.job.kind, info.job.payload) for info in jobs()} == {("old", 1), ("kept", None)}


def test_cancelled_jobs_are_deleted_where_none_are_kept(site: Site) -> None:
    """Else the `unique` of such a job would never be free again."""
    queue = queue_at("unkept", QueuePlace(database="default"))
    for _ in range(2):
        [job_id] = queue.put(NewJob("resize", unique="u"))
        assert queue.call("cancel", [job_id]) == {job_id: "cancelled"}
        assert queue.call("get", job_id) is None


def test_a_running_task_is_asked_to_cancel(site: Site) -> None:
    result = deliver.enqueue("tea")
    job_id = result.id.partition(":")[2]

    async def claimed(then: Callable[[], Any]) -> tuple[Any, tuple[str, ...]]:
        async with pollwise.open(queue_url()) as queue:
            claims = await queue.claim("w", 1, "60s")
            answer = await sync_to_async(then)()
            await sync_to_async(forget_connections)()
            return answer, (await queue.renew(claims, "60s")).cancel

    cancel = partial(backend().queue("default").call, "cancel", [job_id])
    assert asyncio.run(claimed(cancel)) == ({job_id: "leased"}, (job_id,))
    result.refresh()
    assert result.status == Status.RUNNING


@pytest.mark.parametrize(
    "result_id", ["", "17", "default:", "default:99", "other:1", ":1", "default:x"]
)
def test_a_result_that_does_not_exist(site: Site, result_id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(result_id)


def test_signals_are_sent(site: Site) -> None:
    seen: list[tuple[str, str]] = []

    def note(sender: Any, task_result: Any, signal: Any, **_: Any) -> None:
        name = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}
        seen.append((name[signal], str(task_result.status)))

    signals = (task_enqueued, task_started, task_finished)
    for each in signals:
        each.connect(note)
    try:
        run(fail.enqueue("always"))
        run(deliver_async.enqueue("tea"))
    finally:
        for each in signals:
            each.disconnect(note)
    runs = [("started", "RUNNING")]
    assert seen == [
        *[("enqueued", "READY"), *runs * 3, ("finished", "FAILED")],
        *[("enqueued", "READY"), *runs, ("finished", "SUCCESSFUL")],
    ]


def test_tasks_can_be_encrypted(site: Site, tmp_path: Path) -> None:
    Keys((Key("k1", bytes(32)),)).save(tmp_path / "keys")
    codec = {"payloads": "aes-gcm", "key_file": str(tmp_path / "keys")}
    with override_settings(POLLWISE={**site.pollwise, "codec": codec}):
        done, failed = deliver.enqueue("oolong"), fail.enqueue("oolong")
        run(done, failed)
        assert done.args == ["oolong"]
        assert done.return_value["orders"] == 0
        assert {each.exception_class_path for each in failed.errors} == {"builtins.ValueError"}
        assert "oolong" not in repr(failed.errors)
    assert "oolong" not in repr([(each.job, each.result, each.errors) for each in jobs()])
    assert "<encrypted, key id k1" in repr(jobs())
