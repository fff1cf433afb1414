"""`pollwise fleet run`: the fleet, its API and its metrics in one event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollwise.cli.fleet.opening import collector_paused, read_checked
from pollwise.cli.output import say_aside
from pollwise.cli.running import note, serve_metrics
from pollwise.errors import ConfigError, MissingExtra
from pollwise.fleet import Fleet, FleetRunOptions
from pollwise.fleet.control import Control, failure_rules
from pollwise.fleet.definitions.sources import TargetSources
from pollwise.fleet.definitions.stored import StoredRules
from pollwise.fleet.file import FleetFile
from pollwise.fleet.probes.kept import connections
from pollwise.fleet.stores.base import NAME
from pollwise.fleet.stores.urls import open_store
from pollwise.observe.health.serving import serving_health
from pollwise.platforms import signals
from pollwise.platforms.terminal import has_terminal
from pollwise.runtime.http import warn_without_tls
from pollwise.settings import FleetSettings, Settings, load
from pollwise.settings.groups import unknown_groups

if TYPE_CHECKING:
    from pollwise.fleet.api import Authorise

#: Seconds that the API has to finish its answers when the fleet stops.
API_GRACE = 2


async def run(
    every: Settings, file: FleetFile | None, overrides: Mapping[str, object], node: str | None
) -> None:
    """Poll the targets of a file and of the store until stopped."""
    settings = every.fleet
    async with AsyncExitStack() as stack:
        store = None if settings.store is None else open_store(settings.store)
        if store is not None:
            stack.push_async_callback(store.close)
            await store.enter()  # before anything is served
        options = FleetRunOptions(
            strategy=settings.polling,
            concurrency=settings.concurrency,
            budget=settings.budget,
            budget_burst=settings.budget_burst,
            goal=settings.goal,
            per_host=settings.per_host,
            detect_within=settings.detect_within,
            rules=failure_rules(settings),
            grace=settings.grace,
            location=settings.location,
            lease=settings.lease,
        )
        name = NAME if store is None else store.name
        fleet = Fleet(options, store=store, name=name, node=node)
        by_target = settings.metrics_by == "target"
        served = fleet.events, settings.metrics_port, settings.metrics_host
        stack.callback(serve_metrics(*served, by_target=by_target))
        health_at = settings.health_port, settings.health_host
        stack.enter_context(serving_health(fleet.events, *health_at))()
        targets = TargetSources(
            fleet,
            file,
            lambda: read_checked(every, overrides, before=targets.file),
            StoredRules.of(settings.api_may_run, settings.api_variables, settings.api_min_interval),
        )

        def again(stored: Mapping[str, Any], where: str) -> Settings:
            """Load the settings again, after a change."""
            groups = () if targets.file is None else targets.file.groups
            return load(overrides=overrides, stored=stored, stored_in=where, groups=groups)

        control = Control(fleet, again, () if file is None else file.groups, targets)
        stack.callback(reload_on_hangup(control))
        with collector_paused():
            await control.start()
        gc.freeze()  # the collector would look at all targets, and find nothing
        _warn_unknown_groups(control)
        if settings.api_tokens is not None and settings.api_port is None:
            raise ConfigError("fleet.api_tokens needs the API; give --api-port 8765")
        if settings.api_port is not None:
            authorise = await _authorise(settings, stack)
            stop = await _serve_api(control, settings, authorise)
            stack.push_async_callback(stop)
        await stack.enter_async_context(connections())
        await fleet.run()


def reload_on_hangup(control: Control) -> Callable[[], None]:
    """Read the file again on SIGHUP; returns a function that ends this.

    Closing the terminal that started the fleet sends the same signal, but stops the fleet.
    """
    hangup = signals.HANGUP
    if hangup is None:  # Windows
        return lambda: None
    loop, had_terminal = asyncio.get_running_loop(), has_terminal()
    running: set[asyncio.Task[None]] = set()

    def hung_up() -> None:
        if had_terminal and not has_terminal():
            control.fleet.stop()
            return
        task = loop.create_task(control.reload("SIGHUP"))
        running.add(task)
        task.add_done_callback(running.discard)

    signals.wake(loop, hangup, hung_up)

    def end() -> None:
        signals.do_not_wake(loop, hangup)

    return end


def _warn_unknown_groups(control: Control) -> None:
    """Warn of settings in the store for a group that no longer exists; those of the file and the
    environment were refused before."""
    settings = control.settings
    if settings is not None:
        for each in unknown_groups(settings.fleet.groups, control.groups(), settings.origins()):
            note(logging.WARNING, "group_unknown", each)


async def _authorise(settings: FleetSettings, stack: AsyncExitStack) -> Authorise:
    """Who may use the API: holders of a controller's tokens, or of the one token of this fleet."""
    if settings.api_tokens is not None:
        from pollwise.controller.opening import opened_state
        from pollwise.controller.security.auth import Auth, fleet_tokens

        return fleet_tokens(
            Auth(await stack.enter_async_context(opened_state(settings.api_tokens)))
        )

    from pollwise.fleet.api.access import Bearer, write_token

    path = Path(settings.api_token_file)
    bearer, token = Bearer.from_file(path)
    if token is not None:
        # Not to the log or the terminal, which services keep.
        handed = write_token(path, token)
        say_aside(
            f"a new token of the API is in {handed}, which only its owner can read; take it from "
            f"there and delete that file (its hash is in {path})"
        )
    return bearer


async def _serve_api(
    control: Control, settings: FleetSettings, authorise: Authorise
) -> Callable[[], Awaitable[None]]:
    """Serve the API in the event loop of the fleet; returns a function that ends it."""
    from pollwise.fleet.api import served

    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("the fleet's HTTP API", "serve") from error

    class Server(uvicorn.Server):
        def capture_signals(self) -> Any:
            return nullcontext()  # the fleet handles signals, and stops this too

    config = uvicorn.Config(
        served(control, authorise),
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=API_GRACE,
    )
    server, listening = Server(config), _listening(settings.api_host, settings.api_port or 0)
    task = asyncio.ensure_future(server.serve([listening]))
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    warn_without_tls(url, "Listen at 127.0.0.1 (fleet.api_host), behind a proxy with TLS.")
    note(logging.INFO, "api_served", f"API on {url}/api/fleet/state", url=url)

    async def stop() -> None:
        server.should_exit = True
        await asyncio.wait([task])

    return stop


def _listening(host: str, port: int) -> socket.socket:
    """A socket to which clients may connect as soon as its address is logged."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"the API cannot be served on {host}:{port}: {error.strerror or error}; choose another "
            "--api-port, or 0 for any free port"
        ) from None
