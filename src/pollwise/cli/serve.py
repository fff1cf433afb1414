"""`pollwise serve`: run a controller, and manage its tokens."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from pollwise.cli.options import Json, LogFormat, LogLevel, overrides_of, set_option
from pollwise.cli.output import fail, moment, print_json, print_table, say
from pollwise.cli.running import has_meter_provider
from pollwise.cli.web import TOKEN_FILE, web_app, write_first_token
from pollwise.errors import ConfigError, MissingExtra
from pollwise.observe import logs
from pollwise.platforms import loops
from pollwise.platforms.files import open_private
from pollwise.platforms.limits import allow_open_files
from pollwise.settings import ControllerSettings, WebSettings, load

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.web import WebApp

T = TypeVar("T")

logger = logging.getLogger("pollwise")

#: The maximum number of tokens that are listed.
PAGE_MAX = 1000
#: The name of the command line in the audit log.
BY = "command line"
SET_EXAMPLE = "controller.min_interval=2s"


class _Serve(TyperGroup):
    """`pollwise serve URL` is short for `pollwise serve run URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not any(each in self.commands or each in ("-h", "--help") for each in args[:1]):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Serve,
    help="Run a controller: jobs for workers anywhere, over HTTP.\n\n"
    "Example: pollwise serve sqlite:///jobs.db --port 8420",
)
token_app = typer.Typer(
    help="Make and revoke tokens.\n\nExample: pollwise serve token create put --name ci",
    no_args_is_help=True,
)
app.add_typer(token_app, name="token")

Url = Annotated[
    str | None, typer.Argument(help="The store: sqlite:///jobs.db, postgresql://app@db/shop.")
]
Store = Annotated[
    str | None, typer.Option("--store", help="The store; by default the setting controller.queue.")
]
ExpiresIn = Annotated[
    str | None, typer.Option("--expires-in", help="How long it is valid: 30d. By default for ever.")
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write the token to this new file, which only you can read (mode 0600)."),
]


@app.command("run")
def run(
    url: Url = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen at; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 takes any free port.")] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="The file of the TLS certificate, with its chain.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The file of its private key.")] = None,
    artefacts: Annotated[
        str | None,
        typer.Option(help="A folder, or s3://bucket/prefix, for artefacts and inputs."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Where state is kept if not in the store: sqlite:///state.db."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="An address or network whose forwarded headers are trusted."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="The file for the first admin token, if there is none yet."),
    ] = None,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Make or update the tables first (Postgres).")
    ] = False,
    access_log: Annotated[
        bool | None, typer.Option("--access-log/--no-access-log", help="Log each request.")
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """Run a controller until SIGTERM or Ctrl-C.

    The first start writes an admin token to a file that only you can read, and logs its path.

    Example: pollwise serve run sqlite:///jobs.db --host 0.0.0.0 --tls-cert c.pem --tls-key k.pem
    """
    overrides = overrides_of(
        "controller",
        setting,
        SET_EXAMPLE,
        queue=url,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        artefacts=artefacts,
        state=state,
        trusted_proxies=",".join(trusted_proxy) if trusted_proxy else None,
        access_log=access_log,
        log_format=log_format,
        log_level=log_level,
    )
    loaded = load(overrides=overrides, runs="controller")
    settings = loaded.controller
    options_from(settings)  # bad values are refused before anything starts
    logs.set_up(settings.log_level, settings.log_format, libraries=True)
    with asyncio.Runner(loop_factory=loops.fast_factory()) as runner:
        runner.run(_run(settings, loaded.web, token_file, migrate))


async def _run(
    settings: ControllerSettings, pages: WebSettings, token_file: Path | None, migrate: bool
) -> None:
    from pollwise.controller.controller import Controller

    controller = Controller(_store(settings), options_from(settings))
    web: WebApp | None = None
    if has_meter_provider():
        from pollwise.observe.otel import OtelSink

        controller.send_metrics(OtelSink())
    try:
        _check_token_file(controller, token_file)
        if settings.web:
            web = _web(controller, _store(settings), pages)
        if migrate:
            await controller.queue.migrate()
            await controller.storage.migrate()
        await controller.ready()
        await write_first_token(controller.tokens, token_file)
        allow_open_files()  # a connection is one
        await controller.run()
    finally:
        if web is not None:
            await web.close()
        await controller.close()


def _web(controller: Controller, store: str, pages: WebSettings) -> WebApp | None:
    """Show the web interface at `/`, as `[web]` says; None if its extra is not installed."""
    try:
        from pollwise.web.app import mount_beside_api
    except MissingExtra as missing:
        logger.info("no web interface is served: %s", missing, extra={"action": "no_web"})
        return None
    place = store.partition("?")[0]  # its queues are shown anyway
    others = tuple(url for url in pages.queues if url.partition("?")[0] != place)
    made = web_app(pages.model_copy(update={"queues": others}), controller)
    made.web.show_store(controller.queue, store)
    mount_beside_api(controller, made)
    return made


def _check_token_file(controller: Any, file: Path | None) -> None:
    """Refuse a token file of another controller before a new database is made."""
    from pollwise.controller.security.tokens import taken
    from pollwise.controller.state.sqlite.state import SqliteState

    path, state = file or Path(TOKEN_FILE), controller.storage
    if isinstance(state, SqliteState) and not state.path.exists() and os.path.lexists(path):
        raise taken(path)


@token_app.command("create")
def create(
    scope: Annotated[str, typer.Argument(help="read, put, operate, worker or admin.")],
    name: Annotated[str, typer.Option("--name", help="Its owner, or what it is for.")],
    expires_in: ExpiresIn = None,
    all_jobs: Annotated[
        bool,
        typer.Option("--all-jobs", help="For put: see and cancel the jobs of other tokens too."),
    ] = False,
    out: Out = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it, or write it to a file. It cannot be shown again.

    Example: pollwise serve token create worker --name macs --out worker.token --store sqlite:///a.db
    """

    async def make(state: Any, tokens: Any) -> Any:
        made, secret = await tokens.make(
            scope, name, expires_in=expires_in, all_jobs=all_jobs, by=BY
        )
        await state.note(BY, "token.create", made.id, f"{made.scope} {made.name}")
        return made, secret

    with _token_file(out) as write:
        row, secret = _with_tokens(store, make)
        write(secret)
    _print_secret(row, secret, out, as_json)


@token_app.command("list")
def list_tokens(store: Store = None, as_json: Json = False) -> None:
    """List the tokens, without their secrets.

    Example: pollwise serve token list --store sqlite:///jobs.db
    """

    async def listed(state: Any, tokens: Any) -> Any:
        return await state.list_tokens(limit=PAGE_MAX)

    rows = [_shown(each) for each in _with_tokens(store, listed)]
    if as_json:
        print_json(rows)
        return
    columns = ("id", "name", "scope", "created_at", "expires_at", "revoked_at", "last_used_at")
    print_table(
        columns,
        [[row[name] for name in columns] for row in rows],
        empty="There is no token yet; `pollwise serve` makes the first.",
        narrow=("id",),
    )


@token_app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `list` shows it.")],
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Revoke a token, and with it the workers that registered with it.

    Running controllers apply it within seconds; the jobs of those workers go to others.

    Example: pollwise serve token revoke 0198c5b2f3a14e6f9d0a7c2b5e8f1d34
    """

    async def revoked(state: Any, tokens: Any) -> Any:
        found = await tokens.revoke(token_id)
        if found is not None:
            await state.note(BY, "token.revoke", found.id, found.name)
        return found

    row = _with_tokens(store, revoked)
    if row is None:
        _not_found(token_id)
    if as_json:
        print_json(_shown(row))
    else:
        registers = row.scope in ("worker", "admin")
        with_it = ", and the workers that registered with it" if registers else ""
        say(f"The token {row.name} is revoked{with_it}.")


@token_app.command("rotate")
def rotate(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `list` shows it.")],
    expires_in: ExpiresIn = None,
    out: Out = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Replace the secret of a token, and print the new one or write it to a file.

    The old secret becomes invalid.

    Workers that registered with it stay; to remove them, revoke it.

    Example: pollwise serve token rotate 0198c5b2f3a14e6f9d0a7c2b5e8f1d34 --expires-in 90d
    """

    async def rotated(state: Any, tokens: Any) -> Any:
        found = await tokens.rotate(token_id, expires_in=expires_in)
        if found is not None:
            await state.note(BY, "token.rotate", found[0].id, found[0].name)
        return found

    with _token_file(out) as write:
        found = _with_tokens(store, rotated)
        if found is None:
            _not_found(token_id)
        row, secret = found
        write(secret)
    _print_secret(row, secret, out, as_json)


@app.command("attempts")
def attempts(
    job_id: Annotated[str, typer.Argument(help="The id of the job.")],
    store: Store = None,
    as_json: Json = False,
) -> None:
    """List the attempts of a job: who ran each, how it ended, and where its log begins.

    Example: pollwise serve attempts 42 --store sqlite:///jobs.db
    """

    async def listed(controller: Any, info: Any) -> list[dict[str, Any]]:
        from pollwise.controller.http.views import attempt_view, whos_in
        from pollwise.controller.terms import JobTerms

        most = JobTerms.of(info.job, controller.options.attempts).attempts
        found = await controller.logs.attempts(info, most)
        whos = [*whos_in(info), *(f"worker:{each.worker}" for each in found)]
        names = await controller.names.of(whos)
        return [attempt_view(each, names) for each in found]

    rows = _with_job(store, job_id, listed)
    if as_json:
        print_json(rows)
        return
    columns = ("attempt", "state", "worker_name", "began_at", "ended_at", "log_start", "error")
    print_table(
        columns, [[row[name] for name in columns] for row in rows], empty="It has not run yet."
    )


@app.command("log")
def log(
    job_id: Annotated[str, typer.Argument(help="The id of the job.")],
    attempt: Annotated[int | None, typer.Option(help="Only the log of this attempt.")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Print the log of a job, or of one attempt.

    Example: pollwise serve log 42 --attempt 2 --store sqlite:///jobs.db
    """

    async def copied(controller: Any, info: Any) -> bool:
        part = 0, (await controller.logs.place(job_id)).size
        if attempt is not None:
            part = await controller.logs.part(job_id, attempt)
        if part is None:
            return False
        if as_json:
            text = b"".join([piece async for piece in controller.logs.read(job_id, *part)])
            print_json({"job": job_id, "attempt": attempt, "log": text.decode("utf-8", "replace")})
            return True
        async for piece in controller.logs.read(job_id, *part):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return True

    if not _with_job(store, job_id, copied):
        fail(f"attempt {attempt} of job {job_id!r} has no log; `pollwise serve attempts` lists all")
        raise typer.Exit(1)


def _with_job(store: str | None, job_id: str, work: Callable[[Any, Any], Awaitable[T]]) -> T:
    """Do something with a job of a controller's store, whether the controller runs or not."""
    from pollwise.controller.controller import Controller
    from pollwise.controller.opening import opened_state

    settings = load(overrides={"controller.queue": store}).controller

    async def main() -> T | None:
        async with opened_state(settings.state or _store(settings)):
            pass  # refuse a store that has no controller's state, before one is made
        controller = Controller(_store(settings), options_from(settings))
        try:
            info = await controller.queue.get(job_id)
            return None if info is None else await work(controller, info)
        finally:
            await controller.close()

    found = loops.run(main())
    if found is None:
        fail(f"there is no job {job_id!r} here; check the id and the store")
        raise typer.Exit(1)
    return found


def _with_tokens(store: str | None, work: Callable[[Any, Any], Awaitable[T]]) -> T:
    from pollwise.controller.opening import opened_state
    from pollwise.controller.security.tokens import Tokens

    settings = load(overrides={"controller.queue": store}).controller
    url = settings.state or _store(settings)

    async def main() -> T:
        async with opened_state(url) as state:
            return await work(state, Tokens(state))

    return loops.run(main())


def _shown(row: Any) -> dict[str, Any]:
    """A token without its hash, with readable times."""
    values = asdict(row)
    del values["hash"]
    return {
        name: moment(value) if name.endswith("_at") and value is not None else value
        for name, value in values.items()
    }


@contextmanager
def _token_file(path: Path | None) -> Iterator[Callable[[str], object]]:
    """Make a file that only this user can read, before the token is made; the way to fill it."""
    if path is None:
        yield len
        return
    try:
        descriptor = open_private(path)
    except OSError as error:
        raise ConfigError(
            f"--out {str(path)!r} cannot be created: {error.strerror}; name a new file in a folder "
            "that you may write to"
        ) from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            yield lambda secret: file.write(f"{secret}\n")
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _print_secret(row: Any, secret: str, out: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({**_shown(row), **({"token": secret} if out is None else {"file": str(out)})})
    else:
        say(secret if out is None else f"The token is in {out}, which only you can read.")


def _not_found(token_id: str) -> None:
    fail(f"there is no valid token {token_id!r}; `pollwise serve token list` shows all tokens")
    raise typer.Exit(1)


def options_from(settings: ControllerSettings) -> Any:
    """The options of a controller from the settings."""
    from pollwise.controller.options import NAMES, ControllerOptions

    given = settings.model_dump()
    return ControllerOptions(**{name: given[name] for name in NAMES if name in given})


def _store(settings: ControllerSettings) -> str:
    if settings.queue is None:
        raise ConfigError(
            "no store is named; write `pollwise serve sqlite:///jobs.db`, or set controller.queue"
        )
    return settings.queue
