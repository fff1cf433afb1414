"""`pollwise web`: serve the web interface, and the parts of it that `serve` and `demo` share."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from pollwise.cli.options import LogFormat, LogLevel, overrides_of, set_option
from pollwise.cli.output import say
from pollwise.errors import ConfigError, SchemaError
from pollwise.observe import logs
from pollwise.platforms import loops
from pollwise.runtime.variables import WEB_PASSWORD
from pollwise.settings import WebSettings, load

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.controller.options import ServerOptions
    from pollwise.web import WebApp

logger = logging.getLogger("pollwise")

SET_EXAMPLE = "web.session=1h"
#: The file for the first admin token, in the current folder.
TOKEN_FILE = "pollwise-admin.token"  # noqa: S105


def web(
    urls: Annotated[
        list[str] | None,
        typer.Argument(help="The stores: sqlite:///jobs.db, postgresql://app@db/shop, redis://…"),
    ] = None,
    outbox: Annotated[
        list[str] | None, typer.Option(help="An outbox to show: sqlite:///shop.db.")
    ] = None,
    fleet: Annotated[
        list[str] | None, typer.Option(help="The store of a fleet: sqlite:///fleet.db.")
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(help="A folder of traces, to choose from in the lab.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen at; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 takes any free port.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Where tokens and the audit log are: sqlite:///web.db."),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(help=f"A private file with a password. Or set {WEB_PASSWORD}."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="The file for the first admin token, if nobody can log in yet."),
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Print an address that logs in once, within 10 minutes.")
    ] = False,
    read_only: Annotated[
        bool | None,
        typer.Option("--read-only/--no-read-only", help="Let nobody change anything."),
    ] = None,
    refresh: Annotated[
        str | None, typer.Option(help="How often live pages look for changes: 2s.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="A group of targets that everybody may see at /status; * for all."),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="The file of the TLS certificate, with its chain.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The file of its private key.")] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="An address or network whose forwarded headers are trusted."),
    ] = None,
    root_path: Annotated[
        str | None,
        typer.Option(
            help="The path at which a proxy serves it, and which the proxy removes: /pollwise."
        ),
    ] = None,
    migrate: Annotated[
        bool,
        typer.Option("--migrate", help="Make or update the tables of tokens and audit (Postgres)."),
    ] = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """See and steer queues, outboxes and fleets in a browser, until SIGTERM or Ctrl-C.

    The first start writes an admin token to a file that only you can read, and logs its path.

    Example: pollwise web sqlite:///jobs.db --fleet sqlite:///fleet.db
    """
    overrides = overrides_of(
        "web",
        setting,
        SET_EXAMPLE,
        queues=urls or None,
        outboxes=outbox or None,
        fleets=fleet or None,
        traces=traces,
        host=host,
        port=port,
        state=state,
        password_file=password_file,
        read_only=read_only,
        refresh=refresh,
        status_groups=status or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        trusted_proxies=",".join(trusted_proxy) if trusted_proxy else None,
        root_path=root_path,
        log_format=log_format,
        log_level=log_level,
    )
    settings = load(overrides=overrides).web
    _check(settings)
    logs.set_up(settings.log_level, settings.log_format, libraries=True)
    loops.run(_serve(settings, token_file, link=link, migrate=migrate))


async def _serve(
    settings: WebSettings, token_file: Path | None, *, link: bool, migrate: bool
) -> None:
    app = web_app(settings)
    access: Any = app.web.access
    async with app:
        if migrate:
            await access.state.migrate()
        try:
            await access.start()
        except SchemaError as error:
            raise ConfigError(
                "the tables of tokens and the audit log are missing or too old; make them with "
                "`pollwise web … --migrate`, or keep tokens and audit log in another place: "
                f"--state sqlite:///web.db. The store says: {error}"
            ) from None
        if not link and not await access.has_logins():
            await write_first_token(access.tokens, token_file)
        elif not link:
            logger.info(
                "log in with %s; --link prints an address that logs in once",
                "the password or a token" if access.has_password else "a token",
                extra={"action": "log_in"},
            )

        def started(url: str) -> None:
            if link:
                say(f"Open this address within 10 minutes; it logs in once:\n{url}")

        await run_web(app, settings, started, access.one_time() if link else "")


async def run_web(
    app: WebApp,
    settings: WebSettings,
    started: Callable[[str], None],
    path: str = "",
    *,
    signals: bool = True,
    stopped: asyncio.Event | None = None,
) -> None:
    """Serve until stopped: by a signal, or by an event. started: called with the address.

    path: the end of that address.
    """
    from pollwise.controller.http.server import server_at
    from pollwise.runtime.signals import stopping_on_signals

    options, root = _server_options(settings), _root(settings)

    def listening(url: str) -> None:
        started(f"{url}{root}{path or '/'}")

    server = server_at(app, options, app.web.stopping.set, listening, root_path=root)

    def stop() -> None:
        app.web.stopping.set()  # ends live pages, which would keep the server
        server.force_exit = server.should_exit
        server.should_exit = True

    async def wait() -> None:
        if stopped is not None:
            await stopped.wait()
            stop()

    waiting = asyncio.create_task(wait())
    try:
        with stopping_on_signals(stop if signals else None):
            await server.serve_until_stopped()
    finally:
        waiting.cancel()


def web_app(settings: WebSettings, controller: Controller | None = None) -> WebApp:
    """The web interface that the settings describe; with a controller, for its store."""
    from pollwise.web.app import app
    from pollwise.web.pages.status.options import StatusOptions

    status = None
    if settings.status_groups:
        status = StatusOptions(
            settings.status_groups,
            settings.status_title,
            settings.status_reasons,
            settings.status_notes,
        )
    return app(
        *settings.queues,
        outboxes=settings.outboxes,
        fleets=settings.fleets,
        controller=controller,
        password=_password(settings),
        state=settings.state,
        tokens=True,
        read_only=settings.read_only,
        session=settings.session,
        redact=settings.redact,
        refresh=settings.refresh,
        traces=settings.traces,
        status=status,
    )


def _password(settings: WebSettings) -> str | None:
    from pollwise.web.security.passwords import read_password

    given = os.environ.get(WEB_PASSWORD)
    if given is not None and settings.password_file is not None:
        raise ConfigError(
            f"both web.password_file and {WEB_PASSWORD} give a password; keep one of them"
        )
    if settings.password_file is not None:
        return read_password(Path(settings.password_file))
    return given


async def write_first_token(tokens: Any, file: Path | None) -> None:
    """If there is no token, write an admin token to a private file, and log its path."""
    made = await tokens.first_admin(file or Path(TOKEN_FILE))
    if made is not None:
        logger.info(
            "the first admin token is in %s, which only you can read", made.absolute(),
            extra={"action": "first_token", "fields": {"file": str(made.absolute())}},
        )  # fmt: skip


def _server_options(settings: WebSettings) -> ServerOptions:
    from pollwise.controller.options import ServerOptions

    return ServerOptions(
        settings.host,
        settings.port,
        settings.tls_cert,
        settings.tls_key,
        settings.trusted_proxies,
        settings.access_log,
    )


def _root(settings: WebSettings) -> str:
    return (settings.root_path or "").rstrip("/")


def _check(settings: WebSettings) -> None:
    """Refuse what is wrong before anything starts."""
    if not (settings.queues or settings.outboxes or settings.fleets):
        raise ConfigError(
            "nothing to show; write `pollwise web sqlite:///jobs.db`, or set web.queues"
        )
    _server_options(settings)
    root = _root(settings)
    if root and (not root.startswith("/") or urlsplit(root).path != root or "//" in root):
        raise ConfigError(f"root_path = {root!r} is not a path; write /pollwise")
    from pollwise.web.opening import must_exist, sqlite_file

    for url in (*settings.queues, *settings.fleets, *settings.outboxes):
        path = sqlite_file(url)
        if path is not None:
            must_exist(path, url)
