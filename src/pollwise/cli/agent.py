"""`pollwise agent … -- command`: take jobs from a controller and run a command for each."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from pollwise.cli.options import HealthPort, LogFormat, LogLevel, overrides_of, set_option
from pollwise.errors import ConfigError
from pollwise.observe import logs
from pollwise.observe.health.serving import serving_health
from pollwise.platforms import loops
from pollwise.platforms.system import agents_run_here
from pollwise.runtime.events import Events, JobReported, JobStarted
from pollwise.settings import AgentSettings, load

logger = logging.getLogger("pollwise")

SET_EXAMPLE = "agent.poll_interval=10s"


def agent(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="What to run for each job. {payload}, {job_id}, {inputs} and {out} are replaced "
            "by the payload's file, the job's id, and its folders for inputs and artefacts.",
        ),
    ],
    controller: Annotated[
        str | None, typer.Option(help="The address of the controller: https://builds.example.com")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The file that holds a token with the scope worker.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Certificates to trust in addition to the usual ones (PEM), such as your CA's."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The agent's name; by default the host's name.")
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(
            help="What this agent offers to jobs: platform=ios, memory_gb=16, gpu=true, lang=a,b."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Take only jobs of this kind; by default any.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="How many jobs run at a time.")] = None,
    artefacts: Annotated[
        list[str] | None,
        typer.Option(
            help="Which files in the folder {out} to upload, such as '*.zip'; by default all."
        ),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="How long a command may run: 30m.")] = None,
    grace: Annotated[
        str | None, typer.Option(help="How long a stop waits for commands before it ends them.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="The folder for jobs and unsent reports.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="Pass this environment variable of the agent to commands too: JAVA_HOME, 'AWS_*'. "
            "By default, they get only a few, such as PATH, HOME and LANG."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="The user that runs commands; the agent must be root.")
    ] = None,
    sandbox: Annotated[
        str | None, typer.Option(help="bwrap: run each command in bubblewrap.")
    ] = None,
    sandbox_arg: Annotated[
        list[str] | None,
        typer.Option(help="Another argument for the sandbox: --sandbox-arg=--unshare-net."),
    ] = None,
    push: Annotated[
        bool | None, typer.Option("--push/--no-push", help="Open a WebSocket for hints.")
    ] = None,
    keep_folders: Annotated[
        bool, typer.Option("--keep-folders", help="Keep the folders of ended jobs.")
    ] = False,
    health_port: HealthPort = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """Take jobs from a controller and run a command for each, until SIGTERM or Ctrl-C.

    The payload is on stdin and in the file {payload}. The output of the command is the job's log;
    exit code 0 means done. Files in {out} become artefacts, JSON in $POLLWISE_RESULT the result,
    and the last line of $POLLWISE_PROGRESS, such as "0.4 linking", the progress.

    Example: pollwise agent --controller http://localhost:8420 --token-file w.token -- ./build.sh
    """
    agents_run_here()
    overrides = overrides_of(
        "agent",
        setting,
        SET_EXAMPLE,
        controller=controller,
        token_file=token_file,
        ca_file=ca_file,
        name=name,
        slots=slots,
        timeout=timeout,
        grace=grace,
        folder=folder,
        env=",".join(env) if env else None,
        user=user,
        sandbox=sandbox,
        push=push,
        health_port=health_port,
        log_format=log_format,
        log_level=log_level,
    )
    settings = load(overrides=overrides, runs="agent").agent
    options = _options(
        settings,
        command,
        capability or [],
        kind or [],
        artefacts,
        keep_folders=keep_folders,
        sandbox_args=sandbox_arg or (),
    )
    logs.set_up(settings.log_level, settings.log_format, libraries=True)
    from pollwise.agent.agent import Agent
    from pollwise.platforms.processes import hide_memory

    hide_memory()
    events = Events()
    events.subscribe(_show, JobStarted, JobReported)

    async def main() -> None:
        with serving_health(events, settings.health_port, settings.health_host) as watch:
            watch()
            await Agent(options, events=events).run()

    loops.run(main())


def _options(
    settings: AgentSettings,
    command: list[str],
    capabilities: list[str],
    kinds: list[str],
    artefacts: list[str] | None,
    **others: Any,
) -> Any:
    from pollwise.agent.options import AgentOptions

    if settings.controller is None:
        raise ConfigError(
            "no controller is named; write --controller http://localhost:8420, or set "
            "POLLWISE_AGENT_CONTROLLER"
        )
    has = dict(map(_capability, capabilities))
    if kinds:
        has["kinds"] = kinds
    commands = {"log_level", "log_format", "health_port", "health_host"}  # not the agent's own
    chosen = settings.model_dump(exclude=commands, exclude_none=True)
    if artefacts is not None:
        chosen["artefacts"] = artefacts
    if settings.env is not None:
        chosen["env"] = [each.strip() for each in settings.env.split(",")]
    return AgentOptions(command=command, capabilities=has, **chosen, **others)


def _capability(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE: `memory_gb=16` is a number, `gpu=true` a bool, `lang=swift,c` a list."""
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise ConfigError(
            f"--capability {text!r} must be a name and a value: platform=ios, memory_gb=16"
        )
    values = [_plain(each.strip()) for each in value.split(",")]
    return name.strip(), values if len(values) > 1 else values[0]


def _plain(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if number == number and abs(number) != float("inf"):
            return number
    return text


def _show(event: JobStarted | JobReported) -> None:
    """Log a line for each job."""
    if isinstance(event, JobStarted):
        text, fields = "began", {}
    else:
        why = f": {event.error}" if event.error else ""
        text, fields = f"{event.result} after {event.took:.1f} s{why}", {"result": event.result}
    said = {"job": event.job, "kind": event.kind, "attempt": event.attempt, **fields}
    action = "job_started" if isinstance(event, JobStarted) else "job_reported"
    logger.info(
        "job %s (%s, attempt %d) %s", event.job, event.kind, event.attempt, text,
        extra={"action": action, "fields": said},
    )  # fmt: skip
