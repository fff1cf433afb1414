"""`pollwise lab …`: traces, comparisons, settings and costs from the command line."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pollwise.cli.lab import commands as lab
from pollwise.cli.lab import traffic
from pollwise.lab.policies import known
from pollwise.lab.report import compare as report
from pollwise.lab.traces.synthetic import WORKLOADS
from pollwise.outbox import open_store
from pollwise.outbox.records import NewRecord
from tests.cli.console import PATIENCE, Command, files, good, pollwise
from tests.cli.test_history import OUTBOX, QUEUE, write

URL = "sqlite:///jobs.db"
#: An hour is enough to look at.
SHORT = ("--hours", "1")


def test_help_needs_no_lab() -> None:
    """Who only wants to read the help, or runs a worker, does not load numpy."""
    code = (
        "import sys, typer; from pollwise.cli.app import app\n"
        "assert all(typer.main.get_command(app).commands.values())\n"
        "print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert not loaded & {"numpy", "numba"}


def test_the_help_names_the_workloads_and_strategies() -> None:
    assert ", ".join(WORKLOADS) == traffic.WORKLOADS
    assert report.WAIT_PRICE == lab.WAIT_PRICE
    shown = good("lab", "tune", "--help").out
    assert all(name in shown for name in known())


# Traces


def test_stats_of_a_workload() -> None:
    facts = good("lab", "stats", "steady", *SHORT, "--json").json()
    assert facts["trace"] == "steady"
    assert facts["rate"] == pytest.approx(0.2, rel=0.2)
    assert facts["span"] == 3600
    text = good("lab", "stats", "steady", *SHORT).out
    assert "headroom" in text
    assert "a second" in text


def test_stats_of_files(folder: Path) -> None:
    (folder / "a.csv").write_text("at\n0\n1000\n3000\n")
    facts = good("lab", "stats", "a.csv", "--unit", "ms", "--json").json()
    assert (facts["n"], facts["span"]) == (3, 3.0)
    (folder / "counts.csv").write_text("minute,count\n1,2\n2,0\n3,4\n")
    words = ("--column", "count", "--bins", "60s", "--seed", "3", "--json")
    facts = good("lab", "stats", "counts.csv", *words).json()
    assert (facts["n"], facts["span"]) == (6, 180.0)
    (folder / "turned.csv").write_text("3\n1\n2\n")
    assert good("lab", "stats", "turned.csv", "--sort", "--json").json()["n"] == 3


def test_a_file_is_taken_before_a_workload_of_its_name(folder: Path) -> None:
    (folder / "bursty").write_text("0\n1\n")
    assert good("lab", "stats", "bursty", "--json").json()["n"] == 2


def test_a_workload_as_a_file_is_the_same_trace(folder: Path) -> None:
    wrote = good("lab", "synth", "on-off", *SHORT, "--seed", "5", "--out", "t.csv.gz", "--json")
    again = good("lab", "stats", "t.csv.gz", "--json").json()
    own = good("lab", "stats", "on_off", *SHORT, "--seed", "5", "--json").json()
    assert {**again, "trace": "on-off"} == own
    assert wrote.json() == {"file": "t.csv.gz", "arrivals": own["n"], "span": 3600.0}
    assert gzip.decompress((folder / "t.csv.gz").read_bytes())


def test_a_file_that_is_there_is_kept_unless_forced(folder: Path) -> None:
    (folder / "t.csv").write_text("0\n1\n")
    words = ("lab", "synth", "steady", *SHORT, "--out", "t.csv")
    refused = pollwise(*words)
    assert refused.code == 2
    assert "--force" in refused.err
    assert (folder / "t.csv").read_text() == "0\n1\n"
    assert "arrivals in 1h: t.csv" in good(*words, "--force").out
    assert (folder / "t.csv").read_text() != "0\n1\n"


def test_record_and_replay(folder: Path) -> None:
    for number in range(3):
        good("queue", "put", URL, "greet", str(number))
    done = good("lab", "record", URL, "a.csv", "--until", "10ms", "--json").json()
    assert done == {"file": "a.csv", "recorded": 3}
    assert good("lab", "stats", "a.csv", "--json").json()["n"] == 3
    text = good("lab", "record", URL, "a.csv", "--until", "10ms")
    assert text.out == "recorded 0 arrivals in a.csv\n"  # it goes on where it left off
    assert "press Ctrl-C to stop" in text.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_ends_on_a_signal(folder: Path, number: signal.Signals) -> None:
    good("queue", "put", URL, "greet", "1")
    with Command("lab", "record", URL, "a.csv") as recording:
        recording.err.until("press Ctrl-C to stop")
        recording.send(number)
        assert recording.end() == 0
    assert re.fullmatch(r"recorded [01] arrivals in a\.csv", recording.out.all[-1])


def test_an_outbox_is_recorded_too(folder: Path) -> None:
    url = "sqlite:///shop.db?outbox=default"

    async def put() -> None:
        async with open_store("sqlite:///shop.db") as store:
            await store.migrate()
            await store.put([NewRecord("order.placed", number) for number in range(3)])

    asyncio.run(put())
    done = good("lab", "record", url, "a.csv", "--until", "10ms", "--json").json()
    assert done == {"file": "a.csv", "recorded": 3}
    assert good("lab", "stats", "a.csv", "--json").json()["n"] == 3
    refused = pollwise("lab", "stats", url)
    assert refused.code == 2
    assert "nobody has noted an arrival in sqlite:///" in refused.err


@pytest.mark.parametrize("url", [QUEUE, f"{OUTBOX}?outbox=default"])
def test_the_history_of_a_queue_or_an_outbox_is_a_trace(folder: Path, url: str) -> None:
    """The web interface compares on it; so do the commands."""
    write(url.partition("?")[0])
    told = good("lab", "stats", url, "--since", "1h", "--json").json()
    assert told["trace"] == "default"
    assert told["n"] == 50 * (31 + 1)
    assert 49 * 60 <= told["span"] <= 51 * 60
    assert good("lab", "stats", url, "--since", "10m30s", "--json").json()["n"] < told["n"] / 3
    words = ("--strategies", "fixed 5s", "--out", "r.html")
    shown = good("lab", "compare", url, *words)
    assert "Take fixed 5s" in shown.out
    assert "Rebuilt from the counts and waits that workers or relays kept" in shown.err


def test_a_report_hides_the_password_of_a_store() -> None:
    words = ["lab", "compare", "postgresql://app:hunter2@db/shop", "--price", "sqs"]
    assert lab.command_line(words) == (
        "pollwise lab compare 'postgresql://app:***@db/shop' --price sqs"
    )


# Comparisons


def test_a_comparison_with_no_arguments_to_speak_of(folder: Path) -> None:
    shown = good("lab", "compare", "bursty", *SHORT)
    page = (folder / "report.html").read_text("utf-8")
    first = shown.out.splitlines()[0]
    assert re.fullmatch(
        r"Take .*: \$[0-9.]+ to \$[0-9.]+ a month .* the best fixed interval in hindsight .*", first
    )
    assert f"<h1>{first}</h1>" in page
    assert "pollwise lab compare bursty --hours 1" in page
    assert "→ " in shown.out
    assert "× clairvoyant" in shown.out
    assert shown.out.endswith("report: report.html\n")


def test_the_page_and_the_json_agree(folder: Path) -> None:
    words = ("--strategies", "adaptive,fixed 2s", "--price", "sqs", "--wait-price", "0.1/3600")
    told = good("lab", "compare", "steady", *SHORT, *words, "--out", "r.html", "--json").json()
    assert told.pop("report") == "r.html"
    page = (folder / "r.html").read_text("utf-8")
    inside = re.search(r'id="pollwise-report">(.*?)</script>', page)
    assert inside is not None
    assert json.loads(inside[1]) == told
    assert [policy["name"] for policy in told["policies"]] == ["adaptive 100ms to 5s", "fixed 2s"]
    assert told["dollars_a_poll"] == pytest.approx(4e-7)


def test_json_alone_writes_nothing(folder: Path) -> None:
    told = good("lab", "compare", "steady", *SHORT, "--strategies", "fixed 5s", "--json").json()
    assert told["report"] is None
    assert files(folder) == {}


def test_pictures(folder: Path) -> None:
    words = ("--strategies", "fixed 5s,adaptive", "--out", "p.SVG")
    good("lab", "compare", "steady", *SHORT, *words)
    assert (folder / "p.SVG").read_bytes().startswith(b"<?xml")


# Settings and costs


def test_tune() -> None:
    words = ("lab", "tune", "bursty", "--hours", "6", "--goal", "p95=2s")
    told = good(*words, "--json").json()
    assert told["trained"]["wait_p95_s"] <= 2
    assert told["polling_table"].startswith('[worker.polling]\nstrategy = "adaptive"\n')
    shown = good(*words)
    assert told["polling_table"].strip() in shown.out
    assert "first 60% (chosen on)" in shown.out
    assert "the rest (the test)" in shown.out
    assert told["policy"] in shown.out


def test_tune_for_a_budget() -> None:
    words = ("--goal", "budget=$1/month", "--strategy", "batch-fill", "--train", "0.5")
    told = good("lab", "tune", "diurnal", "--hours", "48", *words, "--json").json()
    assert told["trained"]["dollars_a_month"] <= 1
    assert told["strategy"] == "batch_fill"
    assert told["trained_on_share"] == 0.5


def test_worth_can_be_told_the_goal_itself() -> None:
    shown = good("lab", "tune", "steady", "--hours", "2", "--strategy", "worth",
                 "--goal", "budget=400/hour").out  # fmt: skip
    assert "polls_per_hour = 400" in shown
    assert "wait_cost" in shown


def test_a_target_that_does_not_hold_is_a_warning(folder: Path) -> None:
    bunched = [second for begin in range(0, 6000, 100) for second in [begin] * 20]
    stamps = [*bunched, *range(6000, 10_000, 3)]
    (folder / "t.csv").write_text("\n".join(map(str, stamps)))
    shown = good("lab", "tune", "t.csv", "--goal", "p95=1s", "--max-interval", "100s")
    told, warned = shown.err.splitlines()[:2]
    assert told.startswith("read 2,534 times from the only column: seconds from a beginning that")
    assert warned.startswith("warning: On the rest of the trace the goal is missed by")
    assert "[worker.polling]" in shown.out


def test_cost() -> None:
    told = good("lab", "cost", "--json").json()
    assert [row["rounded_polls"] for row in told["costs"][:5]] == [
        row["page_polls"] for row in told["costs"][:5]
    ]
    shown = good("lab", "cost").out
    for figure in ("5,184,000", "$2.08", "$25.92", "$414.72", "298,890", "$104.00", "$20,736.00"):
        assert figure in shown
    other = good("lab", "cost", "--workers", "2", "--shards", "4", "--price", "0.01/1000").out
    assert "4 shards" in other
    assert "2 cost $4.16." in other


# Bad input

BAD: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no such trace": (["stats", "burstyy"], ("not a file, a URL or a workload", "mean 'bursty'?")),
    "nothing like it": (["stats", "zzz"], ("workloads: steady, diurnal",)),
    "an empty file": (["stats", "empty.csv"], ("empty.csv", "no arrivals")),
    "not in order": (["compare", "turned.csv"], ("turned.csv", "line 2")),
    "not numbers": (["compare", "words.csv"], ("words.csv", "line 3")),
    "negative": (["compare", "negative.csv"], ("negative.csv", "line 1")),
    "mixed units": (["compare", "mixed.csv"], ("mixed.csv", "line 2")),
    "one arrival": (["compare", "one.csv"], ("needs several arrivals over a period of time",)),
    "no such column": (["stats", "good.csv", "--column", "x"], ("x",)),
    "no such unit": (["stats", "good.csv", "--unit", "weeks"], ("weeks", "auto")),
    "bins of nothing": (["stats", "good.csv", "--bins", "0s"], ("bins", "above 0")),
    "hours of a file": (["stats", "good.csv", "--hours", "3"], ("--hours is for workloads",)),
    "history of a file": (["stats", "good.csv", "--since", "1h"], ("--since is for queues",)),
    "a column of a queue": (["stats", URL, "--column", "2"], ("--column is for files",)),
    "metrics of a workload": (["stats", "bursty", "--values", "rate"], ("--values is for files",)),
    "no such values": (["stats", "good.csv", "--values", "level"], ("'level'",)),
    "no history": (["compare", URL], ("nobody has noted an arrival", "choose a longer time")),
    "a long history": (["compare", URL, "--since", "8d"], ("--since 8d is too long", "7 days")),
    "no store": (["compare", "sqlite:///none.db"], ("none.db",)),
    "an outbox that is none": (["record", "redis://x?outbox=a", "x.csv"], ("redis",)),
    "a column of a workload": (["stats", "bursty", "--column", "2"], ("--column is for files",)),
    "a unit of a workload": (["stats", "bursty", "--unit", "ms"], ("--unit is for files",)),
    "no hours": (["stats", "bursty", "--hours", "0"], ("hours", "above 0")),
    "an unknown workload": (["synth", "brusty", "--out", "x.csv"], ("did you mean 'bursty'?",)),
    "no folder": (["synth", "steady", "--out", "no/x.csv"], ("cannot be written",)),
    "an unknown strategy": (
        ["compare", "steady", "--strategies", "adaptiv"], ("did you mean 'adaptive'?",),
    ),
    "no strategies": (["compare", "steady", "--strategies", ""], ("empty entry",)),
    "an unknown price": (["compare", "steady", "--price", "s3-lst"], ("mean 's3-list'?",)),
    "waiting for free": (["compare", "steady", "--wait-price", "0/1"], ("0.01/3600",)),
    "a format": (["compare", "steady", "--out", "x.pdf"], (".html, .svg",)),
    "a folder for a report": (["compare", "steady", "--out", "no/x.html"], ("no folder",)),
    "no target": (["tune", "steady", "--goal", "fast"], ("p95=2s",)),
    "out of reach": (
        ["tune", "steady", "--hours", "1", "--goal", "p95=1ms"], ("the nearest is p95 = 9.",),
    ),
    "a strategy to tune": (
        ["tune", "steady", "--goal", "p95=1s", "--strategy", "fxed"], ("did you mean 'fixed'?",),
    ),
    "a part": (["tune", "steady", "--goal", "p95=1s", "--train", "1"], ("between 0 and 1",)),
    "a min_interval": (
        ["tune", "steady", "--goal", "p95=1s", "--min-interval", "0"],
        ("--min-interval", "above 0"),
    ),
    "no workers": (["cost", "--workers", "0"], ("workers = 0",)),
    "no shards": (["cost", "--shards", "-1"], ("shards = -1",)),
    "a price of costs": (["cost", "--price", "free"], ("known: s3-list",)),
    "no queue": (["record", "sqlite:///none.db", "x.csv"], ("none.db",)),
    "a queue in memory": (["record", "memory://", "x.csv"], ("in this process's memory",)),
    "often": (["record", URL, "x.csv", "--every", "0s"], ("every", "above 0")),
    "packed": (["record", URL, "x.csv.gz"], ("line by line",)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, folder: Path) -> None:
    words, says = BAD[name]
    for file, text in {
        "empty.csv": "", "turned.csv": "5\n1\n", "words.csv": "1\n2\nx\n",
        "negative.csv": "-1\n1\n", "mixed.csv": "1\n1700000000000\n", "one.csv": "3\n",
        "good.csv": "at,n\n1,2\n2,3\n",
    }.items():  # fmt: skip
        (folder / file).write_text(text)
    good("queue", "put", URL, "greet", "1")
    before = files(folder)
    result = pollwise("lab", *words)
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.count("error: ") == 1
    assert "Traceback" not in result.err
    said = result.err.split("error: ", 1)[1]
    for fragment in says:
        assert fragment in said
    assert files(folder) == before


# Runs that finish


def test_until_compares_and_draws(folder: Path) -> None:
    lines = [f"build,{60 + n % 7}" for n in range(40)] + ["docs,5"] * 20
    (folder / "runs.csv").write_text("\n".join(["group,seconds", *lines]) + "\n")
    shown = good("lab", "until", "runs.csv", "--poll-cost", "5", "--out", "learned.svg").out
    assert "completion" in shown
    assert "60 runs in 2 groups; a poll is worth 5s of waiting." in shown
    assert "picture: learned.svg" in shown
    assert b"<svg" in (folder / "learned.svg").read_bytes()
    facts = good("lab", "until", "runs.csv", "--strategies", "fixed 5s", "--json").json()
    assert [each["name"] for each in facts["policies"]][:2] == ["completion", "fixed 5s"]
    assert facts["picture"] is None


def test_until_says_what_is_wrong(folder: Path) -> None:
    (folder / "runs.csv").write_text("seconds\n5\nsoon\n")
    wrong = pollwise("lab", "until", "runs.csv")
    assert wrong.code == 2
    assert "line 3: column 'seconds': 'soon' is not a duration" in wrong.err
    assert "must end in .svg" in pollwise("lab", "until", "runs.csv", "--out", "a.pdf").err
    assert "poll_cost = 0" in pollwise("lab", "until", "runs.csv", "--poll-cost", "0").err
