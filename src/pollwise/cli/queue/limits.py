"""The commands of `pollwise queue` for the limits of kinds: show, set and remove them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import fail, moment, print_json, print_table, say, visible
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.text import shortened
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.limits.record import Concurrency, KindLimits, Limit, Rate
from pollwise.queues.limits.use import WAITING_MAX, GroupUse, LimitUse

#: How many groups of a kind the table shows: those that are fullest.
GROUPS_SHOWN = 10
#: The table cuts longer names of groups.
GROUP_WIDTH = 40
Kind = Annotated[str, typer.Argument(help="The kind of jobs.")]


def limits(url: Url, as_json: Json = False) -> None:
    """List the limits of kinds: how much of each is used, and which groups wait.

    Example: pollwise queue limits sqlite:///jobs.db
    """
    found, now = with_queue(url, _used)
    if as_json:
        print_json([use_facts(each) for each in found])
        return
    print_table(
        ("kind", "group", "limits", "running", "waiting", "next start"),
        [row for each in found for row in _rows(each, now)],
        empty="no limits",
        narrow=("running", "waiting", "next start"),
    )
    for each in found:
        if len(each.groups) > GROUPS_SHOWN:
            more = len(each.groups) - GROUPS_SHOWN
            say(f"{more} more groups of {visible(each.limits.kind)}: --json shows them")


def set_limits(
    url: Url,
    kind: Kind,
    concurrency: Annotated[
        int | None, typer.Option(help="How many jobs run at a time; with --by, in each group.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="How many jobs start per period: 100/1m, or 100/1m/20 to let 20 start at once; "
            "with --by, in each group."
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="The task's argument that names the group, such as tenant.")
    ] = None,
    all_concurrency: Annotated[
        int | None, typer.Option(help="With --by: how many jobs of all groups run at a time.")
    ] = None,
    all_rate: Annotated[
        str | None, typer.Option(help="With --by: how many jobs of all groups start per period.")
    ] = None,
    fair: Annotated[
        bool,
        typer.Option("--fair", help="With --by: groups take turns, even without another limit."),
    ] = False,
    weight: Annotated[
        list[str] | None,
        typer.Option(help="How many jobs a group starts in its turn: acme=3; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set the limits of a kind, and replace those that it has. They hold for all workers at once.

    If the code of a worker has other limits for the kind, the worker sets them when it starts.

    Example: pollwise queue set-limits sqlite:///jobs.db mail --rate 100/1m --by tenant
    """
    if by is None and (fair or all_concurrency is not None or all_rate is not None):
        raise ConfigError(
            "--fair, --all-concurrency and --all-rate need --by, the argument that names the "
            "group, such as tenant"
        )
    wanted: list[Limit] = [
        *_limits(concurrency, rate, "--rate", by),
        *_limits(all_concurrency, all_rate, "--all-rate", None),
    ]
    if not wanted and not fair:
        raise ConfigError("give a limit: --concurrency, --rate, or --fair with --by")
    weights = _weights(weight or [])
    made = with_queue(
        url,
        lambda queue: queue.limits.set(
            kind, limit=wanted, fair_by=by if fair else None, weights=weights
        ),
        create=True,
    )
    if as_json:
        print_json(limit_facts(made))
    else:
        say(f"{visible(kind)}: {visible(made.text)}")


def remove_limits(url: Url, kind: Kind, as_json: Json = False) -> None:
    """Remove the limits of a kind. Exits with 1 if it has none.

    Limits in the code of a worker come back when it starts again.

    Example: pollwise queue remove-limits sqlite:///jobs.db mail
    """
    removed = with_queue(url, lambda queue: queue.limits.remove(kind))
    if as_json:
        print_json({"removed": removed, "kind": kind})
    elif removed:
        say(f"removed the limits of {visible(kind)}")
    if not removed:
        fail(f"{visible(kind)} has no limits; see pollwise queue limits")
        raise typer.Exit(1)


async def _used(queue: Queue) -> tuple[Sequence[LimitUse], float]:
    return await queue.limits.use(), queue.clock.epoch()


def _rows(use: LimitUse, now: float) -> Iterator[tuple[object, ...]]:
    limits = use.limits
    yield limits.kind, "", limits.text, *_figures(use, limits.most, now, full=use.full())
    if limits.grouped:
        for each in use.groups[:GROUPS_SHOWN]:
            group = shortened(each.group, GROUP_WIDTH) or "(none)"
            yield "", group, "", *_figures(each, limits.most_each, now, full=use.full(each))


def _figures(
    use: LimitUse | GroupUse, most: int | None, now: float, *, full: bool
) -> tuple[str, str, str]:
    running = str(use.running) if most is None else f"{use.running}/{most}"
    waiting = f"{use.waiting}+" if use.waiting >= WAITING_MAX else str(use.waiting)
    later = use.next_at is not None and use.next_at > now
    start = moment(use.next_at or 0.0) if later else "when one ends" if full else "now"
    return running, waiting, start


def limit_facts(limits: KindLimits) -> dict[str, Any]:
    """Limits, for JSON."""
    return {**asdict(limits), "text": limits.text}


def use_facts(use: LimitUse) -> dict[str, Any]:
    """Limits and their use, for JSON."""
    return {
        **limit_facts(use.limits),
        "running": use.running,
        "waiting": use.waiting,
        "next_at": use.next_at,
        "groups": [asdict(each) for each in use.groups],
    }


def _limits(
    concurrency: int | None, rate: str | None, option: str, by: str | None
) -> Iterator[Limit]:
    if concurrency is not None:
        yield Concurrency(concurrency, by)
    if rate is not None:
        amount, _, rest = rate.partition("/")
        per, slash, burst = rest.partition("/")
        if not amount.isdecimal() or not per or (slash and not burst.isdecimal()):
            raise ConfigError(
                f"{option} {rate!r} must be a number and a time, as in 100/1m, or with how many "
                "start at once, as in 100/1m/20"
            )
        try:
            yield Rate(int(amount), per, by, int(burst) if burst else None)
        except ConfigError as error:
            raise ConfigError(f"{option} {rate!r}: {error}") from None


def _weights(given: Sequence[str]) -> dict[str, int]:
    weights = {}
    for text in given:
        group, equals, number = text.rpartition("=")
        if not equals or not number.isdecimal():
            raise ConfigError(f"--weight {text!r} must be a group and a whole number, as in acme=3")
        if group in weights:
            raise ConfigError(f"--weight {group!r} is given twice")
        weights[group] = int(number)
    return weights
