"""The figures of README and docs/why/figures.md, from benchmarks/RESULTS.md.

`scripts/reference.py` writes both, and fails where RESULTS has no such figure any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
LINK = "https://github.com/pollwise/pollwise/blob/main/benchmarks/RESULTS.md"


@dataclass(frozen=True)
class Topic:
    """A question, the benchmark that answers it, and which of its tables the page shows.

    goals: show the goals of the benchmark, too, and what was reached.
    """

    title: str
    benchmark: str
    text: str
    tables: tuple[str, ...] = ()
    goals: bool = True


TOPICS = (
    Topic(
        "Jobs on SQLite",
        "sqlite",
        "Against Huey on SQLite, each with 8 concurrent handlers and empty jobs. Huey is faster "
        "for a program that puts jobs one at a time. As the jobs are empty, one thread of Huey is "
        "faster than eight. It deletes a job before it runs it, so a crash loses that job; "
        "Pollwise runs it again.",
        ("Jobs a second: ", "Puts a second: ", "Idle for", "Pickup after", "Where Huey is better"),
    ),
    Topic(
        "Jobs on Postgres and Redis",
        "queues",
        "Against seven peers, each in the best configuration that we found: one process, 10 "
        "concurrent handlers, empty jobs, `synchronous_commit=off`. On Redis, Huey and taskiq "
        "start a job up to a millisecond sooner when idle, and send many times as many commands. A "
        "program that puts jobs one at a time gains nothing.",
        (
            "Jobs a second: ", "Puts a second: ", "Idle for", "Pickup when idle",
            "Jobs a second with a backlog", "Where a peer is better",
        ),
    ),
    Topic(
        "Limits",
        "limits",
        "What limits cost a worker with 10 handlers and empty jobs, how long small groups wait "
        "beside a group with a million jobs, and how exactly a rate is kept while workers are "
        "killed. Limits by group cost Postgres about half of its jobs/s. One slow p95 on Postgres "
        "comes from a worker's first look at a table that was just filled: until Postgres has "
        "analyzed it, that look takes long, and claims wait for it once.",
        ("Throughput with limits", "Pickup of small groups", "Starts in each window"),
    ),
    Topic(
        "Where every request is billed",
        "billed",
        "SQS and S3 at list prices; requests are counted at local servers. With 60 jobs at once "
        "every two minutes, a plain loop takes fewer requests than Pollwise.",
        ("SQS: 100 jobs/s", "SQS: idle", "SQS: 60 jobs", "S3: one worker, or fifty"),
    ),
    Topic(
        "The outbox",
        "outbox",
        "On Postgres, one relay process and empty handlers, against the best Python outbox that we "
        "found (it does not order by key). django-outbox-pattern handles a record sooner when "
        "quiet, and sends a thousand times as many statements for that.",
        ("Records a second", "CPU time of a record", "Idle for", "Pickup when idle", "Order under",
         "Where a peer is better"),
    ),
    Topic(
        "The controller",
        "controller",
        "On SQLite with fsync, one core.",
        ("Polls a second", "Polls that take a job", "Fleets at the suggested pace", "Pickup of"),
    ),
    Topic(
        "Fleets",
        "fleet",
        "200 targets that change at very different rates, at the same budget of polls; and what "
        "scheduling costs at a million targets.",
        ("How long a change stays unseen", "CPU time of a poll", "Memory of a target",
         "HTTP probes a second"),
    ),
    Topic(
        "Pacing",
        "pacing",
        "Ten real traces and four prices each. `Worth` is not tuned; the others are the best of 80 "
        "settings, chosen in hindsight for each case: [where it loses](worth.md#where-it-loses).",
        ("Over all cases",),
    ),
    Topic("Alerts", "alerts", "From the poll that saw an outage to its notice.",
          ("From the poll",)),
    Topic("Cancelling a running job", "cancel", "In another process, by broadcast.",
          ("From a cancel",)),
    Topic("Queues that grow old", "bloat", "How Postgres' tables grow under steady load.", ()),
    Topic("Large queues in a browser", "views",
          "Ten million jobs, each list and page of the web interface.", (), goals=False),
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A row of the README's table: a goal's line of RESULTS, by its exact name.

    of: what the number is a multiple of; "" shows the unit of the line.
    """

    what: str
    name: str
    of: str = ""


FIGURES = (
    Figure("jobs/s on SQLite, with fsync", "SQLite jobs/s, fsync on, defaults", "Huey"),
    Figure("jobs/s on Postgres", "Postgres jobs/s, × pgqueuer batch=100, defaults", "PgQueuer"),
    Figure("jobs/s on Redis", "Redis jobs/s, × dramatiq, defaults", "Dramatiq"),
    Figure("what an idle worker sends to Postgres", "Postgres idle, worst process"),
    Figure("puts/s on SQLite, one at a time, no fsync", "SQLite single puts, fsync off", "Huey"),
)


class NoFigure(LookupError):
    """RESULTS.md has no such figure any more."""


def results() -> str:
    return RESULTS.read_text(encoding="utf-8")


def measured(text: str, name: str) -> str:
    """What a goal's line says was measured: "9.03 × Huey"."""
    found = re.search(rf"^{re.escape(name)} {{2,}}(.+?) {{2,}}[<>]= ", text, re.MULTILINE)
    if found is None:
        raise NoFigure(f"{RESULTS.name} has no goal {name!r}; change scripts/figures.py")
    return found[1]


def readme_table() -> str:
    text = results()
    rows = []
    for each in FIGURES:
        shown = measured(text, each.name)
        if each.of:
            shown = f"{shown.split()[0]} × {each.of}"
        rows.append(f"| {each.what} | {shown} |")
    return "\n".join(("| | |", "| --- | --- |", *rows))


def section(text: str, benchmark: str) -> str:
    """What a benchmark printed."""
    found = re.search(rf"^## {benchmark}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise NoFigure(f"{RESULTS.name} has no section {benchmark!r}; change scripts/figures.py")
    return found[1]


def tables(printed: str) -> dict[str, str]:
    """The tables that a benchmark printed, by their underlined headings."""
    found: dict[str, str] = {}
    lines = printed.splitlines()
    starts = [
        place
        for place in range(len(lines) - 1)
        if lines[place] and re.fullmatch("-{3,}", lines[place + 1])
    ]
    for place, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = "\n".join(lines[place + 2 : end])
        body = re.split(r"^```$|^Other processes kept", body, maxsplit=1, flags=re.MULTILINE)[0]
        found.setdefault(lines[place], body.strip("\n"))
    return found


def page() -> str:
    return "\n\n".join(_page(results()))


def _page(text: str) -> Iterator[str]:
    yield "# Figures"
    yield (
        "Each figure was measured by a script in `benchmarks/`; `make bench` runs them all. This "
        f"page is made from [RESULTS.md]({LINK}), which has the rest, with every single run. "
        "Figures of other machines differ; ratios against a peer of the same run differ less. "
        "*short* marks goals that were not reached."
    )
    machine = re.findall(r"^\| (Machine|System|Python|SQLite|Date) \| (.+) \|$", text, re.MULTILINE)
    yield "\n".join(
        ("| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in machine))
    )
    for topic in TOPICS:
        yield f"## {topic.title}"
        yield topic.text
        printed = tables(section(text, topic.benchmark))
        for wanted in topic.tables:
            names = [name for name in printed if name.startswith(wanted)]
            if not names:
                raise NoFigure(f"{topic.benchmark} printed no table {wanted!r}")
            yield f"**{names[0]}**"
            yield f"```text\n{printed[names[0]]}\n```"
        if topic.goals:
            yield "Goals:"
            yield f"```text\n{printed['Goals']}\n```"
