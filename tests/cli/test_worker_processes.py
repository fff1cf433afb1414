"""`pollwise worker` as it is run: processes, signals, metrics, logs."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pollwise.observe.fleet_metrics import STATE
from pollwise.observe.metrics import METRICS
from tests.cli.console import PATIENCE, Command, good, is_alive
from tests.support.daemons import wait_until

URL = "sqlite:///jobs.db"
SHOP = """
import asyncio, os, pathlib
import pollwise

worker = pollwise.Worker("sqlite:///jobs.db")

@worker.handle("greet")
async def greet(job):
    print("hello", job.payload, flush=True)

@worker.handle("fail", retry=pollwise.Retry.fixed("10ms", attempts=1))
def fail(job):
    raise ValueError("no good")

@worker.handle("slow")
async def slow(job):
    print("begun", flush=True)
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    print("ended", flush=True)

@worker.handle("meet")
async def meet(job):
    "Ends when as many processes as there are jobs have begun one of this name."
    name, count = job.payload
    pathlib.Path(f"{name}-{os.getpid()}").touch()
    while len(list(pathlib.Path.cwd().glob(f"{name}-*"))) < count:
        await asyncio.sleep(0.01)
    print(f"met {name} {os.getpid()}\\n", end="", flush=True)  # one write, for others write too
"""

OUTBOX = """
import pollwise
outbox = pollwise.Outbox("sqlite:///shop.db")

@outbox.handle("*")
async def publish(record): ...
"""


@pytest.fixture(autouse=True)
def shop(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)


def stats() -> dict[str, Any]:
    facts: dict[str, Any] = good("queue", "stats", URL, "--json").json()
    return facts


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_end(pid: int) -> None:
    """Of a process that is no child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], PATIENCE)[0], f"{pid} still runs"
    finally:
        os.close(handle)


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text


def test_a_worker_from_put_to_sigterm() -> None:
    good("queue", "put", URL, "greet", '"Ann"')
    good("queue", "put", URL, "fail")
    good("queue", "put", URL, "unknown")
    words = ["--log-format", "json", "--log-level", "debug", "--metrics-port", "0"]
    env = {"POLLWISE_POLLING_MIN_INTERVAL": "20ms", "POLLWISE_WORKER_CONCURRENCY": "3"}
    with Command("worker", "shop:worker", *words, "--price", "sqs", env=env) as worker:
        url = worker.err.until(r"http://127\.0\.0\.1:\d+/metrics")[0]
        worker.err.until(r'"pace_changed".*"back-off"')
        # What is logged is counted an instant later.
        backed_off = re.compile(
            r'^pollwise_worker_backoff_total\{queue="default"\} [1-9]', re.MULTILINE
        )
        wait_until(lambda: backed_off.search(scrape(url)) is not None, "the metric of a back-off")
        text = scrape(url)
        port = int(re.findall(r":(\d+)/", url)[0])
        with pytest.raises(ConnectionRefusedError):  # an address of this machine, but not ours
            socket.create_connection(("127.0.0.2", port), PATIENCE)
        assert worker.stopped() == 0
    assert worker.out.all == ["hello Ann"]
    assert stats() | {"oldest_age": 0} == {
        "ready": 1, "delayed": 0, "blocked": 0, "leased": 0, "dead": 1, "done": 0,
        "cancelled": 0, "oldest_age": 0, "paused": [], "capped": [],
    }  # fmt: skip

    entries = [json.loads(line) for line in worker.err.all]
    actions = [entry["action"] for entry in entries]
    assert actions[:2] == ["metrics_served", "worker_started"]
    assert actions[-2:] == ["worker_stopping", "worker_stopped"]
    assert {"job_started", "job_done", "job_dead", "pace_changed"} <= set(actions)
    assert "poll_finished" not in actions
    assert entries[1]["concurrency"] == 3
    assert entries[1]["strategy"].startswith("Adaptive(min_interval=0.02, ")

    values = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE))
    for name in ("poll_interval_seconds", "poll_total", "poll_empty_total", "backoff_total"):
        assert float(values[f'pollwise_worker_{name}{{queue="default"}}']) > 0
    polls = float(values['pollwise_worker_poll_total{queue="default"}'])
    cost = float(values['pollwise_poll_cost_dollars_total{queue="default"}'])
    assert cost == pytest.approx(polls * 0.4e-6)
    assert values['pollwise_worker_job_total{kind="greet",queue="default",result="done"}'] == "1.0"
    exported = set(re.findall(r"^# HELP (\w+) ", text, re.MULTILINE))
    # What has no label is the fleet's, and would say of a worker that it has an empty one.
    # The breakers of a fleet are exported by target, on demand.
    assert {metric.name for metric in METRICS if metric.labels} - {STATE} <= exported
    assert exported.isdisjoint(metric.name for metric in METRICS if not metric.labels)


def test_a_stop_finishes_what_runs(folder: Path) -> None:
    good("queue", "put", URL, "slow")
    with Command("worker", "shop:worker") as worker:
        worker.out.until("begun")
        assert stats()["leased"] == 1
        worker.send(signal.SIGTERM)
        worker.err.until("worker_stopping .* running=1 grace=30")
        (folder / "go").touch()
        assert worker.end() == 0
    assert worker.out.all == ["begun", "ended"]
    assert stats()["leased"] == stats()["ready"] == 0


def test_a_second_signal_ends_the_grace() -> None:
    good("queue", "put", URL, "slow")
    with Command("worker", "shop:worker") as worker:
        worker.out.until("begun")
        worker.send(signal.SIGINT)
        worker.err.until("worker_stopping")
        worker.send(signal.SIGINT)
        assert worker.end() == 0
    assert worker.out.all == ["begun"]
    assert stats()["ready"] == 1


def test_a_process_that_has_done_enough_ends_with_a_code_that_asks_for_another() -> None:
    for name in range(3):
        good("queue", "put", URL, "greet", str(name))
    with Command("worker", "shop:worker", "--max-jobs", "2") as worker:
        assert worker.end() == 75
    assert worker.out.all == ["hello 0", "hello 1"]
    assert (
        "run_recycled source=default reason='2 runs have ended, as many as max_jobs'"
        in "\n".join(worker.err.all)
    )
    assert stats()["ready"] == 1
    with Command("worker", "shop:worker", "--max-memory", 1024**2) as worker:
        assert worker.end() == 2
    assert "max_memory = 1048576 bytes is not above what the process uses" in worker.err.all[-1]


def test_processes_that_have_done_enough_are_replaced_at_once() -> None:
    for name in range(6):
        good("queue", "put", URL, "meet", json.dumps([f"job{name}", 1]))
    words = ["--processes", "2", "--max-jobs", "1", "--set", "worker.prefetch=0"]
    with Command("worker", "shop:worker", *words) as supervisor:
        pids = {int(supervisor.out.until(r"met job\d (\d+)")[1]) for _ in range(6)}
        assert len(pids) == 6  # each process did one job
        assert supervisor.stopped() == 0
    assert not any("died" in line for line in supervisor.err.all)


LOGGING = """
import logging, logging.config
import pollwise

worker = pollwise.Worker("sqlite:///jobs.db")

@worker.handle("greet")
def greet(job):
    logging.getLogger("shop").info("greeted %s", job.payload)
"""
CONFIG = """
logging.config.dictConfig({
    "version": 1,
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
    "root": {"handlers": ["out"], "level": "INFO"},
})
"""


@pytest.mark.parametrize("configured", [False, True])
def test_handlers_log_and_do_not_silence_the_worker(folder: Path, configured: bool) -> None:
    (folder / "logs.py").write_text(LOGGING + (CONFIG if configured else ""))
    good("queue", "put", URL, "greet", '"Ann"')
    with Command("worker", "logs:worker") as worker:
        worker.err.until("worker_started")
        (worker.out if configured else worker.err).until("greeted Ann")
        assert worker.stopped() == 0
    said = [line.split(" ", 2)[2] for line in worker.err.all]
    assert any(line.startswith("INFO worker_stopped ") for line in said)
    greeted = "INFO shop: greeted Ann job=1 queue=default kind=greet attempt=1"
    assert (greeted in said) is not configured
    assert worker.out.all == (["greeted Ann"] if configured else [])


STUBBORN = """
import asyncio, contextlib
import pollwise
from pollwise.runtime.executor import executor

executor.STUCK_AFTER = 0.2
worker = pollwise.Worker("sqlite:///jobs.db")

@worker.handle("stubborn")
async def stubborn(job):
    print("begun", flush=True)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
"""


def test_a_handler_that_swallows_its_cancellation_ends_with_the_process(folder: Path) -> None:
    (folder / "stuck.py").write_text(STUBBORN)
    good("queue", "put", URL, "stubborn")
    with Command("worker", "stuck:worker", "--set", "worker.grace=0s") as worker:
        worker.out.until("begun")
        assert worker.stopped() == 70
    lines = "\n".join(worker.err.all)
    assert "handler_stuck source=default work='job 1 of kind stubborn' after=0.2" in lines
    assert worker.err.all[-1].endswith("tasks of handlers do not end; the process is ended now")
    assert stats()["ready"] == 1


def test_a_hangup_is_a_stop(folder: Path) -> None:
    good("queue", "put", URL, "slow")
    with Command("worker", "shop:worker", "--processes", "2") as worker:
        worker.out.until("begun")
        worker.send(signal.SIGHUP)
        worker.err.until("worker_stopping .* running=1")
        (folder / "go").touch()
        assert worker.end() == 0
    assert stats()["leased"] == stats()["ready"] == 0


def test_several_processes_are_kept_alive_and_stopped_together() -> None:
    def meet(name: str) -> None:
        for _ in range(3):
            good("queue", "put", URL, "meet", json.dumps([name, 3]))

    def met(name: str) -> set[int]:
        return {int(supervisor.out.until(rf"met {name} (\d+)")[1]) for _ in range(3)}

    meet("first")
    words = ["--processes", "3", "--concurrency", "1", "--set", "worker.prefetch=0"]
    words += ["--set", "worker.export_queue=true"]

    def exporting() -> int:
        ports = re.findall(r"metrics on (http://\S+)", "\n".join(supervisor.err.all))[:3]
        return sum("pollwise_queue_depth{" in scrape(url) for url in ports)

    with Command("worker", "shop:worker", *words, "--metrics-port", "0") as supervisor:
        first = met("first")
        assert len(first) == 3
        assert supervisor.pid not in first
        wait_until(lambda: exporting() > 0, "a measurement", PATIENCE)
        assert exporting() == 1
        (victim, *_) = first
        os.kill(victim, signal.SIGKILL)
        supervisor.err.until(rf"process \d \(pid {victim}\) died with code -9; restart in 1 s")
        meet("second")
        second = met("second")
        assert len(second - first) == 1
        assert first - second == {victim}
        assert supervisor.stopped() == 0
    assert not any(is_alive(pid) for pid in first | second)
    ports = re.findall(r"metrics on http://127\.0\.0\.1:(\d+)/", "\n".join(supervisor.err.all))
    assert len(set(ports)) == 4
    assert stats()["ready"] == 0
    assert stats()["leased"] <= 1  # the victim may have died before it settled


@pytest.mark.parametrize("what", ["worker", "outbox"])
def test_processes_stop_gracefully_when_their_supervisor_was_killed(
    what: str, folder: Path
) -> None:
    (folder / "shop.py").write_text(SHOP.replace("import pollwise\n", OUTBOX))
    good("outbox", "migrate", "sqlite:///shop.db")
    words = ("worker", "shop:worker") if what == "worker" else ("outbox", "run", "shop:outbox")
    with Command(*words, "--processes", "2") as supervisor:
        for _ in range(2):
            supervisor.err.until("worker_started|relay_started|relay_stands_by")
        processes = children(supervisor.pid)
        assert len(processes) == 2
        supervisor.send(signal.SIGKILL)
        assert supervisor.end() == -9
        for process in processes:
            wait_for_end(process)
    text = "\n".join(supervisor.err.all)
    assert text.count("the supervisor of this process has died") == 2
    assert text.count(f"{'relay' if what == 'outbox' else what}_stopped") == 2


def test_a_handler_ends_in_grace_when_the_supervisor_was_killed(folder: Path) -> None:
    good("queue", "put", URL, "slow")
    with Command("worker", "shop:worker", "--processes", "2") as supervisor:
        supervisor.out.until("begun")
        supervisor.send(signal.SIGKILL)
        supervisor.err.until("worker_stopping .* running=1 grace=30")
        (folder / "go").touch()
        supervisor.end()
    assert supervisor.out.all == ["begun", "ended"]
    assert stats()["leased"] == stats()["ready"] == 0


def test_bad_input_to_one_process_stops_all() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["worker", "shop:worker", "--metrics-port", str(port)]
        with Command(*words, "--processes", "2") as supervisor:
            assert supervisor.end() == 2
        with Command(*words) as worker:
            assert worker.end() == 2
    # The second process serves on the next port, which another test may have taken.
    for command, ports in ((supervisor, (port, port + 1)), (worker, (port,))):
        text = "\n".join(command.err.all)
        says = [f"error: cannot serve metrics on 127.0.0.1:{each}: Address" for each in ports]
        assert max(text.count(each) for each in says) == 1
        assert "Traceback" not in text
    assert worker.out.all == []
