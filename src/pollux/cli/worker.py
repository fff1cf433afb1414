"""`pollux worker module:worker`: run a worker, or several processes of it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pollux.clock import Clock
from pollux.core.retry import Retry
from pollux.errors import ConfigError
from pollux.events import Event, PollFinished, all_events, log
from pollux.observe import logs
from pollux.settings import Settings, load
from pollux.worker import Worker, WorkerRunOptions

logger = logging.getLogger("pollux")

#: How a process that died is started again.
RESTART = Retry.exponential("1s", ceiling="30s", attempts=None)
#: The most processes one command starts.
MAX_PROCESSES = 256


def worker(
    target: Annotated[str, typer.Argument(help="Where the worker is: module:worker.")],
    processes: Annotated[
        int, typer.Option(min=1, max=MAX_PROCESSES, help="How many processes to run.")
    ] = 1,
    concurrency: Annotated[int | None, typer.Option(help="Handlers at a time.")] = None,
    strategy: Annotated[str | None, typer.Option(help="The polling strategy, by name.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics; each process takes the next port.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(help="What a poll costs, for the cost metric: s3-list, 0.4/1e6.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: worker.lease=30s")
    ] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C; then finish what runs and give the rest back.

    Example: pollux worker shop.jobs:worker --concurrency 16 --metrics-port 9091
    """
    overrides = _overrides(setting or [])
    given = {
        "worker.concurrency": concurrency,
        "worker.polling.strategy": strategy,
        "worker.metrics_port": metrics_port,
        "worker.log_format": log_format,
        "worker.log_level": log_level,
    }
    overrides |= {key: value for key, value in given.items() if value is not None}
    settings = load(overrides=overrides)
    logs.set_up(settings.worker.log_level, settings.worker.log_format)
    found = _import(target)
    options = _options(found.options, settings)
    if processes > 1:
        raise typer.Exit(asyncio.run(Supervisor(processes, settings.worker.metrics_port).run()))
    _apply(found, settings)
    close = _serve_metrics(found, settings, price)
    try:
        found.run(options)
    finally:
        close()


def _overrides(pairs: list[str]) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} has no value; write --set worker.lease=30s")
        overrides[key.strip()] = value.strip()
    return overrides


def _import(target: str) -> Worker:
    """The worker that `module:name` names, or what is wrong with it."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{target!r} is not module:worker; write for example shop.jobs:worker")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module_name!r} of {target!r}: {error}. Run this where the module "
            "can be imported, or set PYTHONPATH."
        ) from error
    except Exception as error:
        raise ConfigError(
            f"importing {module_name!r} of {target!r} raised {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, Worker):
        workers = [key for key, value in vars(module).items() if isinstance(value, Worker)]
        hint = f"it has {', '.join(workers)}" if workers else "it has no pollux.Worker at all"
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise ConfigError(f"{target!r} is {what}, not a pollux.Worker; {hint}")
    return found


def _options(own: WorkerRunOptions, settings: Settings) -> WorkerRunOptions:
    """The worker's own options, with every setting that somebody set in their place."""
    values: dict[str, Any] = {
        name: getattr(settings.worker, name)
        for name in ("polling", "concurrency", "prefetch", "lease", "grace", "timeout")
        if settings.is_set(f"worker.{name}")
    }
    return replace(own, **values)


def _apply(found: Worker, settings: Settings) -> None:
    if settings.is_set("worker.queue") and settings.worker.queue:
        found.queue = settings.worker.queue
    if settings.worker.log_level == "debug":
        found.events.subscribe(log, *_debug_events())


def _debug_events() -> list[type[Event]]:
    """What is below information, but for polls that found nothing: those are for metrics."""
    return [k for k in all_events() if k.level < logging.INFO and k is not PollFinished]


def _serve_metrics(found: Worker, settings: Settings, price: str | None) -> Callable[[], None]:
    port = settings.worker.metrics_port
    if port is None:
        return lambda: None
    from pollux.lab.prices import price_named
    from pollux.observe.prometheus import PrometheusSink

    sink = PrometheusSink(price=price_named(price).dollars if price else 0.0)
    sink.subscribe(found.events)
    close = sink.serve(port, settings.worker.metrics_host)
    logger.info("metrics on http://%s:%d/metrics", settings.worker.metrics_host, port)
    return close


class Supervisor:
    """Several processes of the same command: started, signalled and, when they die, restarted."""

    def __init__(self, count: int, metrics_port: int | None) -> None:
        self._count = count
        self._metrics_port = metrics_port
        self._clock = Clock()
        self._stopping = asyncio.Event()
        self._alive: dict[int, asyncio.subprocess.Process] = {}
        self._code = 0

    async def run(self) -> int:
        """Run until told to stop, or until a process says that its input is bad."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        await asyncio.gather(*(self._keep_alive(number) for number in range(self._count)))
        return self._code

    def _signalled(self) -> None:
        self._stopping.set()
        for process in self._alive.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def _keep_alive(self, number: int) -> None:
        deaths = 0
        while not self._stopping.is_set():
            began = self._clock.now()
            process = await asyncio.create_subprocess_exec(
                *self._command(number), start_new_session=True
            )
            self._alive[number] = process
            if self._stopping.is_set():  # the signal came while it was being started
                process.send_signal(signal.SIGTERM)
            code = await process.wait()
            del self._alive[number]
            if self._stopping.is_set() or code == 0:
                return
            if code == 2:
                self._code = 2
                self._signalled()
                return
            lived = self._clock.now() - began
            deaths = 1 if lived > RESTART.ceiling else deaths + 1
            await self._restart_later(number, process.pid, code, RESTART.delay(deaths))

    async def _restart_later(self, number: int, pid: int, code: int, delay: float) -> None:
        logger.error(
            "process %d (pid %d) died with code %d; restart in %gs", number, pid, code, delay
        )
        waiting = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([waiting], timeout=delay)
        waiting.cancel()

    def _command(self, number: int) -> list[str]:
        """This command line for one process, each with a metrics port of its own."""
        words = _without(sys.argv[1:], "--processes", "--metrics-port")
        port = (
            [] if self._metrics_port is None else [f"--metrics-port={self._metrics_port + number}"]
        )
        return [sys.executable, "-m", "pollux", *words, *port]


def _without(words: list[str], *options: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif not any(word.startswith(f"{option}=") for option in options):
            kept.append(word)
    return kept
