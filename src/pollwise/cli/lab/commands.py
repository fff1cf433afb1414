"""`pollwise lab …`: try polling on traces before you pay for it.

The lab is imported when a command runs, because it needs numpy and `pollwise --help` does not.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from pollwise import __version__
from pollwise.cli.lab.traffic import (
    WORKLOADS,
    Bins,
    Column,
    Hours,
    Seed,
    Since,
    Sort,
    TraceName,
    TraceOptions,
    Unit,
    Values,
    load,
    names_outbox,
)
from pollwise.cli.options import Json
from pollwise.cli.outbox.records import with_store
from pollwise.cli.output import err, print_json, say, visible
from pollwise.cli.queue.opening import with_queue
from pollwise.core.strategies.completion import Completion
from pollwise.durations import seconds, short
from pollwise.errors import ConfigError
from pollwise.lab.prices import PRICES, price_named, wait_price
from pollwise.lab.texts import amount, rate
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.base import Queue
from pollwise.runtime.redact import without_secrets
from pollwise.runtime.signals import stopping_on_signals

app = typer.Typer(
    help="Try polling on traces: replay, compare, tune and price it.\n\n"
    "Example: pollwise lab compare bursty",
    no_args_is_help=True,
)

WAIT_PRICE = "0.01/3600"

PollPrice = Annotated[
    str, typer.Option("--price", help=f"Price of a poll: {', '.join(PRICES)}, or 0.005/1000.")
]
Capacity = Annotated[
    int | None,
    typer.Option(min=1, help="How many items a poll can find at most; default: no limit."),
]


@app.command("stats")
def stats(
    trace: TraceName,
    column: Column = None,
    unit: Unit = "auto",
    bins: Bins = None,
    values: Values = "auto",
    sort: Sort = False,
    since: Since = None,
    seed: Seed = 0,
    hours: Hours = None,
    as_json: Json = False,
) -> None:
    """Describe a trace: its rate, its bursts, and how much adaptive polling can save on it.

    Example: pollwise lab stats arrivals.csv.gz --column created_at
    """
    from pollwise.lab.traces.reading import summary

    found = load(trace, TraceOptions(column, unit, bins, values, sort, since, hours), seed)
    facts = {"trace": found.name, **asdict(summary(found))}
    if as_json:
        print_json(facts)
        return
    share = "cost if the rate were known, as a share of the best fixed interval's"
    rows = (
        ("arrivals", f"{facts['n']:,} in {short(facts['span'])}"),
        ("rate", rate(facts["rate"])),
        ("gaps", f"longest {short(facts['longest_gap'])}, cv {amount(facts['cv'])}"),
        ("burstiness", f"{facts['burstiness']:.2f}  (-1 regular, 0 random, 1 in bursts)"),
        ("dispersion", f"{amount(facts['dispersion'])}  (1 random, more in bursts)"),
        ("headroom", f"{facts['headroom']:.2f}  ({share})"),
    )
    for name, text in rows:
        say((f"{name:<11}", "bold"), text)


@app.command("synth")
def synth(
    name: Annotated[str, typer.Argument(help=f"The workload: {WORKLOADS}.")],
    out: Annotated[
        Path, typer.Option(help="The trace file to write; compressed if it ends in .gz.")
    ],
    seed: Seed = 0,
    hours: Annotated[float, typer.Option(help="Length of the workload.")] = 24.0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a workload as a trace file; the same seed gives the same file.

    Example: pollwise lab synth bursty --hours 6 --out bursty.csv
    """
    from pollwise.lab.traces.reading import write
    from pollwise.lab.traces.synthetic import workload

    made = workload(name, seed, hours)
    if out.exists() and not force:
        raise ConfigError(f"--out {str(out)!r} already exists; name another file, or add --force")
    write(made, out)
    if as_json:
        print_json({"file": str(out), "arrivals": len(made.arrivals), "span": made.span})
        return
    say(f"{len(made.arrivals):,} arrivals in {short(made.span)}: ", visible(str(out)))


@app.command("record")
def record(
    url: Annotated[
        str,
        typer.Argument(
            help="The queue, as in sqlite:///jobs.db?queue=mail, or the outbox, as in "
            "sqlite:///shop.db?outbox=default."
        ),
    ],
    file: Annotated[Path, typer.Argument(help="The trace file; an existing one is continued.")],
    every: Annotated[str, typer.Option(help="How often to poll while jobs arrive.")] = "1s",
    until: Annotated[
        str | None, typer.Option(help="How long to record: 1h. Default: until Ctrl-C.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Record when jobs arrive in a queue, or records in an outbox, until Ctrl-C.

    It changes nothing in the store. Workers and relays can run at the same time.

    Example: pollwise lab record sqlite:///jobs.db arrivals.csv --until 1h
    """
    from pollwise.lab.traces.record import record as recorded

    seen = 0

    def note(count: int) -> None:
        nonlocal seen
        seen = count

    async def work(source: Queue | OutboxStore) -> None:
        await source.stats()  # what cannot be read leaves no file behind
        task = asyncio.ensure_future(
            recorded(source, file, every=every, until=until, progress=note)
        )

        def stop() -> None:
            task.cancel()

        with stopping_on_signals(stop):
            if not as_json:
                what = f"recording the arrivals of {without_secrets(url)}; press Ctrl-C to stop"
                err.print(Text(visible(what)), soft_wrap=True)
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    if names_outbox(url):
        with_store(url, work)
    else:
        with_queue(url, work)
    if as_json:
        print_json({"file": str(file), "recorded": seen})
        return
    say(f"recorded {seen:,} arrivals in ", visible(str(file)))


@app.command("compare")
def compare(
    trace: TraceName,
    strategies: Annotated[
        str | None,
        typer.Option(help="What to compare: 'adaptive,fixed 500ms,adaptive 100ms 30s,worth'."),
    ] = None,
    price: PollPrice = "s3-list",
    wait_price_: Annotated[
        str,
        typer.Option("--wait-price", help="Price of the waiting of one item: dollars per seconds."),
    ] = WAIT_PRICE,
    out: Annotated[
        Path | None, typer.Option(help="The report: .html or .svg (report.html).")
    ] = None,
    capacity: Capacity = None,
    column: Column = None,
    unit: Unit = "auto",
    bins: Bins = None,
    values: Values = "auto",
    sort: Sort = False,
    since: Since = None,
    seed: Seed = 0,
    hours: Hours = None,
    as_json: Json = False,
) -> None:
    """Replay a trace with several strategies, recommend one, and write a report.

    With --json, a report is written only if --out is given.

    Example: pollwise lab compare bursty --strategies "adaptive,fixed 500ms,worth" --price sqs
    """
    from pollwise.cli.lab.tables import show_comparison
    from pollwise.lab import files
    from pollwise.lab.policies import USUAL, CostTerms, parse
    from pollwise.lab.report import compare as report

    path = out or (None if as_json else Path("report.html"))
    if path is not None:
        report.check_out(path)
    cost = price_named(price)
    terms = CostTerms(cost.dollars, wait_price(wait_price_))
    chosen = parse(strategies if strategies is not None else USUAL, terms)
    found = load(trace, TraceOptions(column, unit, bins, values, sort, since, hours), seed)
    with progress_bar("replaying", hidden=as_json) as progress:
        made = report.compare(
            found, chosen, cost, terms, capacity=capacity, seed=seed, progress=progress
        )
    facts = made.facts()
    if path is not None:
        files.write(path, _rendered(facts, path))
    if as_json:
        print_json({**facts, "report": None if path is None else str(path)})
        return
    show_comparison(made)
    if path is not None:
        say("report: ", visible(str(path)))


@app.command("tune")
def tune(
    trace: TraceName,
    goal: Annotated[
        str,
        typer.Option(help="p95=2s, mean=500ms, budget=720/hour (polls) or 'budget=$5/month'."),
    ],
    strategy: Annotated[
        str, typer.Option(help="adaptive, fixed, batch_fill, ewma or worth.")
    ] = "adaptive",
    price: PollPrice = "s3-list",
    train: Annotated[
        float, typer.Option(help="Share of the trace to choose settings on; the rest tests them.")
    ] = 0.6,
    min_interval: Annotated[str, typer.Option(help="The shortest delay to try.")] = "10ms",
    max_interval: Annotated[
        str | None, typer.Option(help="The longest delay to try; by default 20 times the goal.")
    ] = None,
    capacity: Capacity = None,
    column: Column = None,
    unit: Unit = "auto",
    bins: Bins = None,
    values: Values = "auto",
    sort: Sort = False,
    since: Since = None,
    seed: Seed = 0,
    hours: Hours = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest settings that meet a goal, or the least waiting within a budget.

    Example: pollwise lab tune arrivals.csv --strategy adaptive --goal p95=2s --price s3-list
    """
    from pollwise.cli.lab.tables import show_tuned
    from pollwise.lab import tune as tuning
    from pollwise.lab.policies import CostTerms, strategy_kind

    cost = price_named(price)
    terms = CostTerms(cost.dollars, wait_price(WAIT_PRICE))
    kind = strategy_kind(strategy)
    wanted = tuning.parse_goal(goal, cost)
    low = seconds(min_interval, "--min-interval", positive=True)
    high = None if max_interval is None else seconds(max_interval, "--max-interval", positive=True)
    found = load(trace, TraceOptions(column, unit, bins, values, sort, since, hours), seed)
    with progress_bar("trying settings", hidden=as_json) as progress:
        tuned = tuning.tune(
            found, kind.name, wanted, cost, terms,
            share=train, capacity=capacity, progress=progress, min_interval=low, max_interval=high,
        )  # fmt: skip
    if as_json:
        print_json(tuned.facts())
        return
    show_tuned(tuned)


@app.command("until")
def until(
    file: Annotated[
        Path, typer.Argument(help="Durations of runs: one per line, or CSV; .gz is unpacked.")
    ],
    strategies: Annotated[
        str, typer.Option(help="What to compare with: 'adaptive 1s 60s,fixed 10s'.")
    ] = "adaptive 1s 60s,fixed 10s",
    poll_cost: Annotated[float, typer.Option(help="What one poll costs.")] = 1.0,
    wait_cost: Annotated[
        float, typer.Option(help="What each second costs from the end of a run to its poll.")
    ] = 1.0,
    column: Annotated[
        str | None, typer.Option(help="The column with the durations: its name or number.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="The column that names the group of a run: its name or number."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the learned durations: .svg.")] = None,
    as_json: Json = False,
) -> None:
    """Compare ways to poll a run until it ends, from how long earlier runs took.

    Completion learns only from what its polls see, and separately for each group of runs.

    Example: pollwise lab until durations.csv --poll-cost 5 --out learned.svg
    """
    from pollwise.cli.lab.tables import show_runs
    from pollwise.lab import files
    from pollwise.lab.policies import CostTerms, parse
    from pollwise.lab.runs import picture, reading
    from pollwise.lab.runs.compare import compare as compare_runs

    if out is not None and out.suffix.lower() != ".svg":
        raise ConfigError(f"--out {str(out)!r} must end in .svg")
    checked = Completion(poll_cost=poll_cost, wait_cost=wait_cost)
    chosen = parse(strategies, CostTerms(checked.poll_cost, checked.wait_cost))
    runs = reading.read(file, column, group)
    facts = compare_runs(runs, chosen, checked.poll_cost, checked.wait_cost).facts()
    if out is not None:
        files.write(out, picture.picture(facts))
    if as_json:
        print_json({**facts, "picture": None if out is None else str(out)})
        return
    show_runs(facts)
    if out is not None:
        say("picture: ", visible(str(out)))


@app.command("cost")
def cost(
    workers: Annotated[int, typer.Option(help="Number of workers in the summary.")] = 50,
    shards: Annotated[int, typer.Option(help="LIST requests in a poll of a sharded queue.")] = 16,
    price: PollPrice = "s3-list",
    as_json: Json = False,
) -> None:
    """Replay the cost tables that qo published for adaptive polling on S3; show the real cost.

    The tables price a poll as one GET. A real poll is one LIST for each shard.

    Example: pollwise lab cost --workers 50 --shards 16
    """
    from pollwise.cli.lab.tables import show_costs
    from pollwise.lab import cost as costs

    costs.check_counts(workers, shards)
    truth = price_named(price)
    rows, trades = costs.rows(), costs.tradeoffs()
    facts = costs.facts(rows, trades, truth, shards, workers)
    if as_json:
        print_json(facts)
        return
    show_costs(facts, rows)


# What commands share


@contextmanager
def progress_bar(what: str, *, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the terminal; yields the function that moves it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = err.is_terminal and not hidden
    with Progress(*columns, console=err, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def command_line(words: Sequence[str]) -> str:
    """The command with these words, without the passwords in its URLs."""
    shown = (without_secrets(word) if "://" in word else word for word in words)
    return shlex.join(["pollwise", *shown])


def _rendered(facts: dict[str, Any], path: Path) -> bytes:
    if path.suffix.lower() == ".html":
        from pollwise.lab.report.page import page

        return page(facts, __version__, command_line(sys.argv[1:])).encode()
    from pollwise.lab.report.picture import picture

    return picture(facts)
