"""`pollwise schedule`: jobs that a queue puts at set times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import (
    NOTHING,
    fail,
    moment,
    print_json,
    print_table,
    rounded,
    say,
    visible,
)
from pollwise.cli.queue.commands import decoded_payload, headers_from
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.steering import user_here
from pollwise.queues.base import Queue
from pollwise.queues.schedules.record import Schedule
from pollwise.runtime.jobs import NewJob
from pollwise.settings import load
from pollwise.settings.codecs import codec_of

app = typer.Typer(
    help="Put jobs at set times: list, add, remove, pause, resume and run schedules.\n\n"
    "Example: pollwise schedule list sqlite:///jobs.db",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The schedule, as `schedule list` shows it.")]


@app.command("list")
def list_schedules(url: Url, as_json: Json = False) -> None:
    """List the schedules: the next and the last tick, and the state of the last job.

    Example: pollwise schedule list sqlite:///jobs.db
    """
    found, states, now = with_queue(url, _listed)
    if as_json:
        print_json([schedule_facts(each, states, now) for each in found])
        return
    print_table(
        ("name", "when", "kind", "next", "last", "last job", "late by"),
        [
            (
                each.name,
                str(each.when),
                each.kind,
                next_text(each, now),
                NOTHING if each.last_tick is None else moment(each.last_tick),
                NOTHING if each.last_job is None else f"{each.last_job} {states[each.name]}",
                rounded(each.late(now)) if each.late(now) else "",
            )
            for each in found
        ],
        empty="no schedules",
        narrow=("next", "last", "late by"),
    )


@app.command("add")
def add(
    url: Url,
    name: Annotated[str, typer.Argument(help="A name, unique in the queue.")],
    kind: Annotated[str, typer.Argument(help="The kind of its jobs, which picks the handler.")],
    payload: Annotated[str, typer.Argument(help="Their payload, as JSON; - reads stdin.")] = "null",
    cron: Annotated[
        str | None, typer.Option(help="Minute, hour, day, month, day of the week: '*/5 * * * *'.")
    ] = None,
    every: Annotated[str | None, typer.Option(help="The time between ticks: 10m, 2h.")] = None,
    at: Annotated[str | None, typer.Option(help="Once: '2026-12-24 08:00'.")] = None,
    tz: Annotated[
        str | None, typer.Option(help="The time zone of --cron and --at; UTC unless given.")
    ] = None,
    catch_up: Annotated[
        str, typer.Option(help="How many jobs to put for missed ticks: one, all or none.")
    ] = "one",
    overlap: Annotated[
        str | None,
        typer.Option(
            help="What a tick does while the previous job runs: skip or queue. skip unless given; "
            "queue with --catch-up all."
        ),
    ] = None,
    jitter: Annotated[str, typer.Option(help="Delay each job by up to this long: 10s.")] = "0s",
    key: Annotated[
        str | None, typer.Option(help="Jobs with the same key run one at a time, in order.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    limit_group: Annotated[
        str | None, typer.Option(help="The group of its jobs, if limits are by group.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="A header of the jobs, as name=value; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a schedule, or replace the one that has this name.

    Example: pollwise schedule add sqlite:///jobs.db tidy tidy --cron '0 3 * * *'
    """
    job = NewJob(
        kind, decoded_payload(payload), key=key, priority=priority,
        headers=headers_from(header or []), limit_group=limit_group,
    )  # fmt: skip

    async def work(queue: Queue) -> tuple[Schedule, float]:
        made = await queue.schedules.set(
            name, job, cron=cron, every=every, at=at, tz=tz, catch_up=catch_up, overlap=overlap,
            jitter=jitter, by=user_here(),
        )  # fmt: skip
        return made, queue.clock.epoch()

    made, now = with_queue(url, work, create=True, codec=codec_of(load()))
    if as_json:
        print_json(schedule_facts(made, {}, now))
    else:
        say(f"{visible(name)}: next tick {next_text(made, now)}")


@app.command("remove")
def remove(url: Url, name: Name, as_json: Json = False) -> None:
    """Remove a schedule. Its jobs stay. Exits with 1 if there is none.

    Example: pollwise schedule remove sqlite:///jobs.db nightly
    """
    removed = with_queue(url, lambda queue: queue.schedules.remove(name))
    _report("removed", name, removed, as_json, f"no schedule {name!r}; see pollwise schedule list")


@app.command("pause")
def pause(url: Url, name: Name, as_json: Json = False) -> None:
    """Put no jobs of a schedule until it is resumed. Exits with 1 if it is paused already.

    Example: pollwise schedule pause sqlite:///jobs.db nightly
    """
    paused = with_queue(url, lambda queue: queue.schedules.pause(name))
    _report("paused", name, paused, as_json, f"{visible(name)} is paused already")


@app.command("resume")
def resume(url: Url, name: Name, as_json: Json = False) -> None:
    """End the pause of a schedule; missed ticks are skipped. Exits with 1 if it was not paused.

    Example: pollwise schedule resume sqlite:///jobs.db nightly
    """
    resumed = with_queue(url, lambda queue: queue.schedules.resume(name))
    _report("resumed", name, resumed, as_json, f"{visible(name)} is not paused")


@app.command("run")
def run(url: Url, name: Name, as_json: Json = False) -> None:
    """Put a job of a schedule now, and print its id. The next tick stays as it is.

    Example: pollwise schedule run sqlite:///jobs.db nightly
    """
    job_id = with_queue(url, lambda queue: queue.schedules.run(name))
    print_json({"id": job_id}) if as_json else say(job_id)


async def _listed(queue: Queue) -> tuple[Sequence[Schedule], dict[str, str], float]:
    found = await queue.schedules.list()
    return found, await queue.schedules.last_states(found), queue.clock.epoch()


def schedule_facts(schedule: Schedule, states: dict[str, str], now: float) -> dict[str, Any]:
    """A schedule, for JSON."""
    facts = schedule.to_value()
    return {**facts, "last_job_state": states.get(schedule.name), "late": schedule.late(now)}


def next_text(schedule: Schedule, now: float) -> str:
    if schedule.paused:
        return "paused"
    if schedule.next_at is None:
        return "ended"
    return moment(schedule.next_at)


def _report(what: str, name: str, done: bool, as_json: bool, why_not: str) -> None:
    if as_json:
        print_json({what: done, "name": name})
    elif done:
        say(f"{what} {visible(name)}")
    if not done:
        fail(why_not)
        raise typer.Exit(1)
