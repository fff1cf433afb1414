"""`manage.py pollwise_worker` and `manage.py pollwise_outbox`, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.outbox import NewRecord, open_store
from tests.contrib.django.sites import DEADLINE, Site, set_up_django
from tests.support.daemons import wait_until

set_up_django()

from django.core.management import call_command  # noqa: E402
from django.core.management.base import CommandError  # noqa: E402
from grocer.tasks import deliver, fail, slow  # noqa: E402

from pollwise.contrib.django import database_url  # noqa: E402

Wait = Callable[[Callable[[], bool], str], None]


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[Wait]:
    """A way to wait while a command runs. It is stopped after the block, and must end well."""

    def wait(happened: Callable[[], bool], what: str) -> None:
        wait_until(lambda: process.poll() is not None or happened(), what, DEADLINE)
        assert process.poll() is None, process.communicate()[0]

    try:
        yield wait
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, told
    finally:
        process.kill()
        process.communicate()


def ended(*results: Any) -> bool:
    for result in results:
        result.refresh()
    return all(result.is_finished for result in results)


def test_a_worker_process_runs_the_tasks_of_all_queues(site: Site) -> None:
    fast, other = deliver.enqueue("tea"), slow.enqueue("coffee")
    with running(site.manage("pollwise_worker", "--concurrency", 2)) as wait:
        wait(lambda: ended(fast, other), "the tasks ended")
    assert fast.return_value["pid"] != os.getpid()
    assert other.return_value == "slowly: coffee"


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
def test_a_worker_may_run_what_is_ready_and_exit(site: Site) -> None:
    fast, other, wrong = deliver.enqueue("tea"), slow.enqueue("coffee"), fail.enqueue("gone")
    process = site.manage("pollwise_worker", "--once")
    told, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, told  # one failed
    assert "2 done, 0 retried, 1 dead" in told
    assert ended(fast, other, wrong)


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
def test_several_processes_are_supervised(site: Site) -> None:
    result = deliver.enqueue("tea")
    chosen = ["--queue", "default", "--processes=2", "--set=worker.prefetch=0"]
    supervisor = site.manage("pollwise_worker", *chosen)
    with running(supervisor) as wait:
        wait(lambda: ended(result), "the task ended")
    assert result.return_value["pid"] != supervisor.pid


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
def test_an_outbox_is_relayed(site: Site, tmp_path: Path) -> None:
    told = tmp_path / "told"

    async def put() -> None:
        async with open_store(database_url("default")) as store:
            await store.migrate()
            await store.put(NewRecord("order.placed", "tea", "k"))

    asyncio.run(put())
    relay = site.manage("pollwise_outbox", "grocer.events:outbox", SHOP_TOLD=str(told))
    with running(relay) as wait:
        wait(lambda: told.exists() and told.read_text() == "tea\n", "it is told")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pollwise_worker", "--queue", "slwo"], "did you mean 'slow'?"),
        (["pollwise_worker", "--backend", "defualt"], "did you mean 'default'?"),
        (["pollwise_worker", "--set", "worker.lese=3s"], "did you mean"),
        (["pollwise_worker", "--concurrency", "0"], "worker.concurrency = 0 (argument) must be"),
        (["pollwise_worker", "grocer.tasks:worker"], "create one: worker = pollwise.Worker"),
        (["pollwise_outbox"], "name the outbox: manage.py pollwise_outbox shop.events:outbox"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], said: str) -> None:
    with pytest.raises(CommandError) as raised:
        call_command(*words)
    assert said in str(raised.value)
    assert raised.value.returncode == 2
