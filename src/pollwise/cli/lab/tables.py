"""The tables that the commands of the lab print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pollwise.cli.output import NOTHING, out, print_table, say, visible, warn
from pollwise.durations import short
from pollwise.lab.cost import CostRow
from pollwise.lab.policies import label
from pollwise.lab.prices import DATED, REGION
from pollwise.lab.report.compare import Comparison, table
from pollwise.lab.report.page import WITHOUT_JITTER
from pollwise.lab.texts import amount, brief, money, plain
from pollwise.lab.tune import TuningGoal, TuningResult

#: Columns that a narrow screen leaves out, in this order.
DISPENSABLE = ("× sees arrivals", "p50", "p99", "max", "× clairvoyant", "polls $", "× best fixed")
#: Blanks between columns.
BETWEEN = 2


def show_comparison(made: Comparison) -> None:
    say((made.headline, "bold green"))
    for note in made.notes():
        say(visible(note))
    say("")
    facts = made.facts()
    rows = [
        (("→ " if about.get("take") else "  ") + name, *cells)
        for about, (name, *cells) in table(facts)
    ]
    heads = ("  policy", "polls/h", "polls $", "mean", "p50", "p95", "p99", "max", "in all $")
    ratios = (f"× {limit['name']}" for limit in facts["limits"])
    _print_fitting((*heads, *ratios), rows, DISPENSABLE)
    text = "$ a month; in all: polls and waiting. ×: the cost divided by the cost of a limit."
    say((text, "dim"))
    say((WITHOUT_JITTER, "dim"))
    say(("Change the prices with --price and --wait-price.", "dim"))


def _print_fitting(
    heads: Sequence[str], rows: Sequence[Sequence[str]], dispensable: Sequence[str]
) -> None:
    """Print a table without wrapped lines: leaves out columns that do not fit on the screen."""
    kept = list(range(len(heads)))
    widths = [max(len(row[i]) for row in (heads, *rows)) + BETWEEN for i in kept]
    for name in dispensable:
        if not out.is_terminal or sum(widths[i] for i in kept) <= out.width:
            break
        kept = [i for i in kept if heads[i] != name]
    shown = [heads[i] for i in kept]
    print_table(shown, [[row[i] for i in kept] for row in rows], narrow=shown)


def show_tuned(tuned: TuningResult) -> None:
    facts = tuned.facts()
    what = "least waiting" if tuned.goal.is_budget else "cheapest"
    say(
        (label(tuned.strategy), "bold green"),
        f": {what} of {tuned.tried} settings within {tuned.goal.text}.",
    )
    say("")
    names = {
        "trained": f"first {tuned.share:.0%} (chosen on)",
        "tested": "the rest (the test)",
        "default": f"the rest, {tuned.strategy.name}'s defaults",
    }
    rows = [
        (
            name,
            amount(facts[part]["polls_an_hour"]),
            money(facts[part]["dollars_a_month"]),
            *(brief(facts[part][f"wait_{each}_s"]) for each in ("mean", "p95", "p99", "max")),
            "yes" if facts[part]["meets_goal"] else "no",
        )
        for part, name in names.items()
        if part in facts
    ]
    heads = ("part of the trace", "polls/h", "$/month", "mean", "p95", "p99", "max", "meets it")
    print_table(heads, rows, narrow=("part of the trace",))
    say("")
    if tuned.holds:
        say(tuned.conclusion)
    else:
        warn(tuned.conclusion)
    say("")
    goal_itself = _worth_goal(tuned.goal)
    if tuned.strategy.name == "worth" and goal_itself:
        say((f"Worth can also take the goal itself: {goal_itself}", "dim"))
        say("")
    table = tuned.table()
    say(table.strip() if table else f"polling={tuned.strategy!r}")


def _worth_goal(goal: TuningGoal) -> str | None:
    """The goal as a setting of Worth, or None."""
    if goal.is_budget:
        return f"polls_per_hour = {plain(float(f'{goal.value:.6g}'))}"
    if goal.measure in ("mean", "p95"):
        return f'{goal.measure}_wait = "{short(goal.value)}"'
    return None


def show_costs(facts: dict[str, Any], rows: list[CostRow]) -> None:
    shards = facts["shards"]
    say(("What polling costs a worker in a month of 30 days, beside the figures of qo", "bold"))
    truth = ("really, 1 shard", f"{shards} shards")
    heads: tuple[str, ...] = ("polling", "polls", "qo says", "as GETs", "qo says", *truth)
    print_table(
        heads,
        [
            (
                row["name"] + ("" if row["name"] == row["polling"] else f" ({row['polling']})"),
                f"{row['polls_a_month']:,}",
                _or_nothing(row["page_polls"], lambda polls: f"{polls:,.0f}"),
                money(row["dollars_as_get"]),
                _or_nothing(row["page_dollars"], money),
                money(row["dollars_one_shard"]),
                money(row["dollars_all_shards"]),
            )
            for row in facts["costs"]
        ],
        narrow=heads[1:],
    )
    say("")
    say(("What an idle worker costs, and how long an item may wait", "bold"))
    heads = ("polling", "qo says", "polls", *truth, "qo says", "longest")
    print_table(
        heads,
        [
            (
                row["polling"],
                row["page_cost"],
                f"{row['idle_polls_a_month']:,}",
                money(row["idle_dollars_one_shard"]),
                money(row["idle_dollars_all_shards"]),
                row["page_wait"],
                short(float(f"{row['longest_wait_s']:.2g}")),
            )
            for row in facts["tradeoffs"]
        ],
        narrow=heads,
    )
    say("")
    many, count = facts["workers_at_fixed_500ms"], facts["workers"]
    paged = "" if many["page_dollars"] is None else f" ({money(many['page_dollars'])} there)"
    say(
        f"A worker at fixed 500ms costs {money(rows[0].rounded_dollars)} a month as qo's page "
        f"counts, {count} cost {money(many['rounded_dollars'])}{paged}. Really, one costs "
        f"{money(facts['costs'][0]['dollars_one_shard'])} and {count} cost "
        f"{money(many['dollars_one_shard'])}; with {shards} shards "
        f"{money(many['dollars_all_shards'])}."
    )
    say("")
    for line in facts["assumed"]:
        say((f"- {line}", "dim"))
    dated = f"{REGION}, {DATED}, list prices without free tier"
    say((f"- Prices: {dated}. qo's page: {facts['page_price']}. {facts['true_price']}.", "dim"))


def show_runs(facts: dict[str, Any]) -> None:
    """What each way to poll runs costs."""
    heads = ("policy", "polls a run", "mean wait", "cost a run", "× best fixed")
    print_table(
        heads,
        [
            (
                each["name"],
                amount(each["polls_a_run"]),
                short(float(f"{each['wait_mean_s']:.3g}")),
                short(float(f"{each['cost_a_run']:.3g}")),
                f"{each['of_best_fixed']:.3f}",
            )
            for each in facts["policies"]
        ],
        narrow=heads[1:],
    )
    groups = f" in {facts['groups']} groups" if facts["groups"] > 1 else ""
    price = short(facts["price"])
    say((f"{facts['runs']:,} runs{groups}; a poll is worth {price} of waiting.", "dim"))
    say(("Completion began without history and saw only what its polls can see.", "dim"))


def _or_nothing(value: Any, text: Callable[[Any], str]) -> str:
    return NOTHING if value is None else text(value)
