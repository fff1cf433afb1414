"""Shared by `pollwise worker` and `pollwise outbox run`: find the object, run it in processes."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

import pollwise
from pollwise.core.retry import Retry
from pollwise.errors import ConfigError
from pollwise.lab.prices import Price
from pollwise.observe.health.serving import ASKED, ProcessesHealth, serving_health
from pollwise.observe.sentry import report_if_initialised
from pollwise.platforms import loops, processes, signals
from pollwise.platforms.system import not_on_windows
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, PollFinished, all_events, log
from pollwise.runtime.executor.executor import GIVES_BACK, SETTLE_WITHIN_AT_STOP
from pollwise.runtime.executor.starting import no_runs
from pollwise.runtime.redact import without_user
from pollwise.runtime.signals import (
    STUCK,
    end_process,
    process_ends_on_signals,
    stopping_on_signals,
)

if TYPE_CHECKING:
    from pollwise.outbox import Outbox
    from pollwise.settings import Settings
    from pollwise.worker import Worker

logger = logging.getLogger("pollwise")

#: How a process that died is restarted.
RESTART = Retry.exponential("1s", max_delay="30s", attempts=None)
MAX_PORT = 65535
#: The exit code of a process that stopped by itself to be replaced by a fresh one.
RECYCLED = 75
#: How long tasks that handlers left behind may take to be cancelled, in seconds.
CANCEL_WITHIN = 1.0
#: Commands with subcommands.
GROUPS = ("outbox",)
#: How this program is started.
PROGRAM = (sys.executable, "-m", "pollwise")
#: The variable with the file descriptor that closes when the supervisor ends.
PARENT = "_POLLWISE_SUPERVISOR"
#: The variable with the number of a supervised process, from 0.
NUMBER = "_POLLWISE_PROCESS"

T = TypeVar("T")

# Where code of Python and of packages is.
_LIBRARIES = (
    "<",
    str(Path(pollwise.__file__).parent),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)


def _with_settings(own: Any, settings: Settings, section: str) -> Any:
    """The options of the code, replaced by every setting of the section that was set."""
    chosen = getattr(settings, section)
    values = {
        each.name: getattr(chosen, each.name)
        for each in fields(own)
        if settings.is_set(f"{section}.{each.name}")
    }
    return replace(own, **values)


def begun(section: str) -> str | None:
    """The section, for `runs` of `load`; None in a process that another one started and warned."""
    return None if NUMBER in os.environ else section


def run_in_processes(
    found: Worker | Outbox,
    settings: Settings,
    section: str,
    count: int,
    cost: Price | None = None,
    run: Callable[[Any], Coroutine[Any, Any, T]] | None = None,
    program: Sequence[str] = PROGRAM,
) -> T | None:
    """Run a worker or a relay until it stops, in this process or in several supervised ones.

    run: what runs it with its options, if it is not its `run`; its result is returned.
    program: the command line of this process, up to its first word in `sys.argv[1:]`.
    """
    own = getattr(settings, section)
    health_at = own.health_port, own.health_host
    options = _with_settings(found.options, settings, section)
    if count > 1:
        not_on_windows(f"--processes {count}", "start this command that many times")
        ports = ports_of(own.metrics_port, count)
        with ProcessesHealth.serving(count, *health_at) as health:
            raise typer.Exit(loops.run(Supervisor(ports, program, health).run()))
    stop_with_parent()
    if os.environ.pop(NUMBER, "0") != "0" and section == "worker":
        options = replace(options, export_queue=False)  # the first process exports it
    if own.log_level == "debug":
        below = [k for k in all_events() if k.level < logging.INFO and k is not PollFinished]
        found.events.subscribe(log, *below)
        found.events.subscribe(_log_average, PollFinished)
    report_if_initialised(found.events)
    close = serve_metrics(found.events, own.metrics_port, own.metrics_host, cost)
    try:
        with process_ends_on_signals(), serving_health(found.events, *health_at) as watch:
            result = loops.run(_run_and_end((run or found.run)(options), watch))
    finally:
        close()
    if found.recycled:
        raise typer.Exit(RECYCLED)
    return result


def _log_average(event: PollFinished) -> None:
    """Log a poll whose pace comes from an average; others are for metrics only."""
    if event.average is not None:
        log(event)


async def _run_and_end(running: Coroutine[Any, Any, T], watch: Callable[[], None]) -> T:
    """Run to the end, and end the process if a handler goes on: `asyncio.run` would wait for it."""
    watch()
    result = await running
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, stuck = await asyncio.wait(left, timeout=CANCEL_WITHIN)
        ours = [task for task in stuck if task.get_name() == GIVES_BACK]
        if ours:
            await asyncio.wait(ours, timeout=SETTLE_WITHIN_AT_STOP)
        stuck = {task for task in stuck if not task.done()}
        if stuck:
            text = f"{len(stuck)} tasks of handlers do not end; the process is ended now"
            end_process(STUCK, text, tasks=len(stuck))
    return result


def import_from_here() -> None:
    """Make the current folder importable, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # a file may have been written a moment ago


def found_at(target: str, kind: type[T], command: str, make: str) -> T:
    """Import `module:name` and return the object; ConfigError says what is wrong.

    command: the command that runs it; make: code that creates one, for the error.
    """
    what = kind.__name__.lower()
    module_name, _, name = target.partition(":")
    parts = module_name.split(".")
    if not all(map(str.isidentifier, (*parts, name))) or parts[-1] == "py":
        raise ConfigError(
            f"{without_user(target)!r} is not module:{what}; write {_suggested(target, what)}"
        )
    import_from_here()
    try:
        with no_runs(
            f"`{command}` imports the module and runs the {what} itself; call `{what}.run()` only "
            'under `if __name__ == "__main__":`'
        ):
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module_name!r} of {target!r}: {error}{_where(error)}. "
            "Run this where it can be imported, or set PYTHONPATH."
        ) from error
    except SystemExit as error:
        raise ConfigError(
            f"importing {module_name!r} of {target!r} ended the program{_where(error)}; "
            'move what must not run on import under `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise ConfigError(
            f"importing {module_name!r} of {target!r} raised "
            f"{type(error).__name__}: {error}{_where(error)}"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        there = [key for key, value in vars(module).items() if isinstance(value, kind)]
        others = " or ".join(f"{module_name}:{key}" for key in there)
        advice = f"write {others}" if there else f"create one: {what} = {make}"
        it_is = f"is of type {type(found).__name__}" if hasattr(module, name) else "does not exist"
        raise ConfigError(
            f"{target!r} {it_is}; it must be a pollwise.{kind.__name__}. Please {advice}"
        )
    return found


def _suggested(target: str, what: str) -> str:
    """A correction for a file name: "./shop/jobs.py:worker" -> "shop.jobs:worker"."""
    path, _, name = target.partition(":")
    module = ".".join(Path(path).with_suffix("").parts) if path.endswith(".py") else ""
    if all(part.isidentifier() for part in module.split(".")):
        return f"{module}:{name or what}"
    return f"for example shop.{'events' if what == 'outbox' else 'jobs'}:{what}"


def _where(error: BaseException) -> str:
    """The line of the user's own code that raised, if it is known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def serve_metrics(
    events: Events,
    port: int | None,
    host: str,
    cost: Price | None = None,
    *,
    by_target: bool = False,
) -> Callable[[], None]:
    """Serve metrics made from the events; returns a function that ends it.

    If the program has configured a MeterProvider of OpenTelemetry, the same metrics go there.

    by_target: the metrics of a fleet have a label for each target.
    """
    price = cost.dollars if cost else 0.0
    if has_meter_provider():
        from pollwise.observe.otel import OtelSink

        OtelSink(price=price, by_target=by_target).subscribe(events)
    if port is None:
        return lambda: None
    from pollwise.observe.prometheus import PrometheusSink

    sink = PrometheusSink(price=price, by_target=by_target)
    sink.subscribe(events)
    served = sink.serve(port, host)
    note(logging.INFO, "metrics_served", f"metrics on {served.url}", url=served.url)
    return served.close


def has_meter_provider() -> bool:
    """True if this process has a MeterProvider of OpenTelemetry, other than that of the API."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return False
    return not type(api.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


def note(level: int, action: str, text: str, **fields: object) -> None:
    """Log an action of the command line in the same shape as events."""
    logger.log(level, "%s", text, extra={"action": action, "fields": fields})


def ports_of(first: int | None, processes: int) -> list[int | None]:
    """The metrics port of each process: consecutive, or any free one for each."""
    if not first:
        return [first] * processes
    last = first + processes - 1
    if last > MAX_PORT:
        raise ConfigError(
            f"{processes} processes from metrics port {first} on need ports up to {last}, above "
            f"{MAX_PORT}; choose a lower --metrics-port"
        )
    return [first + number for number in range(processes)]


def stop_with_parent() -> None:
    """If a supervisor started this process, stop as on SIGTERM when the supervisor has died.

    A supervisor that was killed cannot stop its processes, and they would run for ever.
    """
    life = os.environ.pop(PARENT, None)  # processes started by handlers must not see it
    if life is not None:
        os.set_inheritable(int(life), False)
        threading.Thread(target=_stop_at_end_of, args=[int(life)], daemon=True).start()


def _stop_at_end_of(life: int) -> None:
    os.read(life, 1)
    text = "the supervisor of this process has died; stopping"
    note(logging.WARNING, "supervisor_gone", text)
    signals.send_to_self(signals.TERMINATE)


class Supervisor:
    """Several processes of the same command: started, signalled and, when they die, restarted."""

    def __init__(
        self,
        ports: list[int | None],
        program: Sequence[str] = PROGRAM,
        health: ProcessesHealth | None = None,
    ) -> None:
        self._ports = ports
        self._health = health
        self._program = program
        self._clock = Clock()
        self._stopping = asyncio.Event()
        self._alive: dict[int, asyncio.subprocess.Process] = {}
        self._code = 0
        # Nothing is ever written to this pipe: it closes when this process ends, however that
        # happens.
        self._life, self._life_held = os.pipe()

    async def run(self) -> int:
        """Run until stopped, or until a process reports bad input; returns the exit code."""
        try:
            with stopping_on_signals(self._stop):
                await asyncio.gather(*map(self._keep_alive, range(len(self._ports))))
        finally:
            self._stop()  # if one fails to start, stop the others too
            await asyncio.gather(*(process.wait() for process in self._alive.values()))
            os.close(self._life_held)
            os.close(self._life)
        return self._code

    def _stop(self) -> None:
        self._stopping.set()
        if self._health is not None:
            self._health.stop()
        for process in self._alive.values():
            if process.returncode is None:
                process.send_signal(signals.TERMINATE)

    async def _keep_alive(self, number: int) -> None:
        deaths = 0
        while not self._stopping.is_set():
            began = self._clock.now()
            command = self._command(number)
            health = nullcontext() if self._health is None else self._health.of(number)
            with health as asked:
                process = await start_process(
                    command, self._life, new_session=True, asked=asked, **{NUMBER: str(number)}
                )
                self._alive[number] = process
                if self._stopping.is_set():  # the signal came during its start
                    process.send_signal(signals.TERMINATE)
                code = await process.wait()
                del self._alive[number]
            if self._stopping.is_set():
                return
            if code == 2:
                self._code = 2
                self._stop()
                return
            if code == RECYCLED:
                text = f"process {number} (pid {process.pid}) asked to be replaced; restart now"
                note(logging.INFO, "process_recycled", text, process=number, pid=process.pid)
                continue
            if code == 0:
                text = f"process {number} (pid {process.pid}) stopped by itself; not restarted"
                note(logging.INFO, "process_stopped", text, process=number, pid=process.pid)
                if self._health is not None:
                    self._health.forget(number)
                return
            lived = self._clock.now() - began
            deaths = 1 if lived > RESTART.max_delay else deaths + 1
            await self._restart_later(number, process.pid, code, RESTART.delay(deaths))

    async def _restart_later(self, number: int, pid: int, code: int, delay: float) -> None:
        text = f"process {number} (pid {pid}) died with code {code}; restart in {delay:g} s"
        note(logging.ERROR, "process_died", text, process=number, pid=pid, code=code, delay=delay)
        waiting = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([waiting], timeout=delay)
        waiting.cancel()

    def _command(self, number: int) -> list[str]:
        """This command line for one process, each with a metrics port of its own."""
        words = without_options(sys.argv[1:], "--processes", "--metrics-port")
        # After the command's own words, before its arguments.
        at = 2 if words[0] in GROUPS else 1
        port = self._ports[number]
        ported = [] if port is None else [f"--metrics-port={port}"]
        return [*self._program, *words[:at], *ported, *words[at:]]


async def start_process(
    command: list[str],
    life: int,
    *,
    new_session: bool = False,
    asked: socket.socket | None = None,
    **environment: str,
) -> asyncio.subprocess.Process:
    """Start a process of this command.

    life: the file descriptor that closes when this process ends.
    asked: a socket over which the process is asked for its health; closed here.
    """
    files = {PARENT: life} if asked is None else {PARENT: life, ASKED: asked.fileno()}
    with asked or nullcontext():
        return await asyncio.create_subprocess_exec(
            *command,
            **(processes.own_group() if new_session else {}),
            pass_fds=list(files.values()),
            env={**os.environ, **environment, **{name: str(fd) for name, fd in files.items()}},
        )


def without_options(words: list[str], *options: str) -> list[str]:
    """A command line without these options and their values."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif not any(word.startswith(f"{option}=") for option in options):
            kept.append(word)
    return kept
