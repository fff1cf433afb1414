"""`pollwise worker`: what of options, variables and files reaches the worker, and its logs."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from pollwise.cli import running as command
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.runtime.events import (
    JobDone,
    JobRetried,
    JobStarted,
    PaceChanged,
    PollFailed,
    PollFinished,
    WorkerStarted,
)
from pollwise.worker import Worker, WorkerRunOptions
from tests.cli.console import good, pollwise

SHOP = """
import pollwise
options = pollwise.WorkerRunOptions(concurrency=5, lease="45s", hints=False)
worker = pollwise.Worker("sqlite:///jobs.db", options)

@worker.handle("greet")
async def greet(job): ...
"""


@pytest.fixture(autouse=True)
def shop(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)


class Ran:
    """The worker that a command ran, and its options."""

    worker: Worker
    options: WorkerRunOptions


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    seen = Ran()

    async def run(self: Worker, options: WorkerRunOptions) -> None:
        seen.worker, seen.options = self, options

    monkeypatch.setattr(Worker, "run", run)
    return seen


def test_without_settings_the_worker_runs_as_it_was_made(ran: Ran) -> None:
    good("worker", "shop:worker")
    assert ran.options == WorkerRunOptions(concurrency=5, lease="45s", hints=False)
    assert ran.worker.queue == "sqlite:///jobs.db"


def test_the_file_goes_before_the_code(ran: Ran, folder: Path) -> None:
    (folder / "pollwise.toml").write_text(
        "[worker]\nconcurrency = 6\nprefetch = 0\ngrace_ms = 1500\ntimeout = '2m'\n"
        "[worker.polling]\nstrategy = 'ewma'\n"
    )
    good("worker", "shop:worker")
    assert ran.options == WorkerRunOptions(
        concurrency=6, prefetch=0, lease="45s", grace=1.5, timeout=120.0, hints=False,
        polling=Ewma(),
    )  # fmt: skip


def test_variables_go_before_the_file_and_options_before_both(
    ran: Ran, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[worker]\nconcurrency = 6\nlease = '50s'\ngrace = '1s'\nprefetch = 1\n"
    (folder / "pollwise.toml").write_text(text)
    monkeypatch.setenv("POLLWISE_WORKER_CONCURRENCY", "7")
    monkeypatch.setenv("POLLWISE_WORKER_LEASE_MS", "55000")
    monkeypatch.setenv("POLLWISE_WORKER_GRACE", "2s")
    words = ["--concurrency", "8", "--set", "worker.lease = 30s", "--strategy", "fixed"]
    good("worker", "shop:worker", *words, "--set", "worker.polling.interval=250ms")
    assert ran.options == WorkerRunOptions(
        concurrency=8, lease=30.0, grace=2.0, prefetch=1, hints=False, polling=Fixed("250ms")
    )


def test_an_option_of_its_own_goes_before_set(ran: Ran) -> None:
    words = ["--set", "worker.concurrency=3", "--concurrency", "4", "--cpu-processes", "2"]
    good("worker", "shop:worker", *words)
    assert (ran.options.concurrency, ran.options.cpu_processes) == (4, 2)


def test_the_queue_may_be_set(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLWISE_WORKER_QUEUE", "sqlite:///other.db?queue=a=b")
    good("worker", "shop:worker")
    assert ran.worker.queue == "sqlite:///other.db?queue=a=b"


def test_the_old_interval_still_works_with_a_warning(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLLWISE_WORKER_POLL_INTERVAL", "200ms")
    result = good("worker", "shop:worker")
    assert ran.options.polling == Fixed("200ms")
    assert result.err.startswith("warning: worker.poll_interval = '200ms'")
    assert "set POLLWISE_POLLING_STRATEGY=fixed and POLLWISE_POLLING_INTERVAL=200ms" in result.err


def test_a_warning_of_the_users_code_says_where(ran: Ran, folder: Path) -> None:
    (folder / "old.py").write_text(
        SHOP + "import warnings\nwarnings.warn('old [red]', UserWarning)\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        result = good("worker", "old:worker")
    assert result.err.startswith("warning: ")
    assert "old.py:9: UserWarning: old [red]" in result.err


def test_modules_are_found_from_the_current_folder(ran: Ran, folder: Path) -> None:
    package = folder / "mailroom" / "work"
    package.mkdir(parents=True)
    (package / "jobs.py").write_text(SHOP)
    good("worker", "mailroom.work.jobs:worker")
    assert ran.worker.kinds == ("greet",)


# Logs


@pytest.mark.parametrize("level", ["debug", "info"])
def test_an_empty_poll_is_never_logged(level: str, ran: Ran) -> None:
    good("worker", "shop:worker", "--log-level", level)
    events = ran.worker.events
    lines = Records()
    logging.getLogger("pollwise").addHandler(lines)
    for found in (0, 3):
        events.emit(PollFinished("q", found, 8, 0.1, 0.1, 0.1, 0.0, False))
    events.emit(PaceChanged("q", "back-off", 0.1, 0.2))
    events.emit(JobStarted("q", "w", "1", "greet", 1, 0.1))
    events.emit(JobDone("q", "w", "1", "greet", 1, 0.1))
    events.emit(WorkerStarted("q", "w", ("greet",), 8, "Adaptive()"))
    events.emit(PollFailed("q", "OSError: gone", 1, 1.0))
    debug = ["pace_changed", "job_started", "job_done"] if level == "debug" else []
    assert lines.actions == [*debug, "worker_started", "poll_failed"]


def test_polls_paced_by_an_average_are_logged_at_debug(ran: Ran) -> None:
    good("worker", "shop:worker", "--log-level", "debug")
    lines = Records()
    logging.getLogger("pollwise").addHandler(lines)
    poll = PollFinished("q", 0, 8, 0.1, 0.0, 0.0, 15.0, False, average=1.5)
    ran.worker.events.emit(poll)
    ran.worker.events.emit(PaceChanged("q", "class", "idle", "low"))
    assert lines.actions == ["poll_finished", "pace_changed"]
    assert "found=0" in lines.texts[0]
    assert "hold=15 " in lines.texts[0]
    assert "average=1.5" in lines.texts[0]


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.actions: list[str] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.actions.append(record.__dict__["action"])
        self.texts.append(record.getMessage())


def test_logs_go_to_standard_error_as_json(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    good("worker", "shop:worker", "--log-format", "json")
    (handler,) = logging.getLogger("pollwise").handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(sys.stderr)
    ran.worker.events.emit(JobRetried("q", "w", "1", "greet", 2, "no\x1b[31m\n", 1.5, 0.1))
    command.note(logging.ERROR, "process_died", "process 1 died", pid=7)
    out, err = capsys.readouterr()
    assert out == ""
    entries: list[dict[str, Any]] = [json.loads(line) for line in err.splitlines()]
    for entry in entries:
        assert entry.pop("time").endswith("+00:00")
    assert entries == [
        {
            "level": "warning", "action": "job_retried", "source": "q", "worker": "w", "job": "1",
            "kind": "greet", "attempt": 2, "error": "no\x1b[31m\n", "delay": 1.5, "took": 0.1,
        },
        {"level": "error", "action": "process_died", "pid": 7},
    ]  # fmt: skip


# Several processes


@pytest.mark.parametrize(
    ("first", "ports"),
    [(None, [None] * 3), (0, [0] * 3), (9000, [9000, 9001, 9002]), (65533, [65533, 65534, 65535])],
)
def test_each_process_has_a_port_of_its_own(first: int | None, ports: list[int | None]) -> None:
    assert command.ports_of(first, 3) == ports


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["shop:worker", "--processes", "3"], ["shop:worker"]),
        (["--processes=3", "shop:worker", "--set", "a=b"], ["shop:worker", "--set", "a=b"]),
        (["--metrics-port", "1", "--processes", "3", "--", "shop:worker"], ["--", "shop:worker"]),
        (["shop:worker", "--metrics-port=1", "--price", "sqs"], ["shop:worker", "--price", "sqs"]),
    ],
)
def test_a_process_gets_the_same_words(
    given: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/pollwise", "worker", *given])
    begin = [sys.executable, "-m", "pollwise", "worker"]
    assert command.Supervisor([None])._command(0) == [*begin, *expected]
    ported = [*begin, "--metrics-port=9001", *expected]
    assert command.Supervisor([9000, 9001])._command(1) == ported


def test_polling_is_adaptive_unless_said(ran: Ran) -> None:
    good("worker", "shop:worker")
    assert ran.options.polling == Adaptive()


def test_the_grace_of_a_stop_is_an_option(ran: Ran) -> None:
    good("worker", "shop:worker", "--grace", "2m")
    assert ran.options.grace == 120
    wrong = pollwise("worker", "shop:worker", "--grace", "long")
    assert wrong.code == 2
    assert "worker.grace = 'long' (argument)" in wrong.err


def test_metrics_without_the_extra_say_what_to_install(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "pollwise.observe.prometheus", raising=False)
    result = pollwise("worker", "shop:worker", "--metrics-port", "0")
    assert result.code == 2
    assert result.err == (
        "error: exporting metrics needs an extra: pip install 'pollwise[metrics]'\n"
    )


ONCE = """
import pollwise
worker = pollwise.Worker("sqlite:///jobs.db")

@worker.handle("greet", retry=pollwise.Retry.fixed("1h"))
async def greet(job):
    print("hello", job.payload)
    if job.payload == "nobody":
        raise ValueError("nobody is there")
"""


LIMITED = """
from pollwise import Rate, Worker
worker = Worker("sqlite:///jobs.db")

@worker.task(limit=Rate(60, per="1h", burst=3))
def send(n: int) -> None:
    print("sent", n)
"""


def test_once_says_what_waits_for_a_limit(folder: Path) -> None:
    (folder / "shop.py").write_text(LIMITED)
    for n in range(8):
        good("queue", "put", "sqlite:///jobs.db", "send", json.dumps({"n": n}))
    done = pollwise("worker", "shop:worker", "--once")
    assert (done.code, done.out.count("sent")) == (0, 3)
    assert "ran what may run now: 3 done" in done.err
    assert "0 lost; 5 wait for a limit (send)" in done.err
    good("queue", "pause", "sqlite:///jobs.db", "send")
    paused = pollwise("worker", "shop:worker", "--once")
    assert (paused.code, paused.out) == (0, "")
    assert "for a limit" not in paused.err


def test_once_runs_what_is_ready_and_tells_whether_it_failed(folder: Path) -> None:
    (folder / "shop.py").write_text(ONCE)
    good("queue", "put", "sqlite:///jobs.db", "greet", '"Ann"')
    good("queue", "put", "sqlite:///jobs.db", "greet", '"Ben"', "--delay", "1h")
    done = pollwise("worker", "shop:worker", "--once")
    assert (done.code, done.out) == (0, "hello Ann\n")
    assert "ran what may run now: 1 done, 0 retried" in done.err
    good("queue", "put", "sqlite:///jobs.db", "greet", '"nobody"')
    failed = pollwise("worker", "shop:worker", "--once")
    assert (failed.code, failed.out) == (1, "hello nobody\n")
    assert pollwise("worker", "shop:worker", "--once").code == 0  # both are delayed
    refused = pollwise("worker", "shop:worker", "--once", "--processes", "2")
    assert refused.code == 2
    assert "--once runs one process, not --processes 2" in refused.err
