"""Traces: every form that is read, every line that is refused, and what figures say."""

from __future__ import annotations

import gzip
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.lab.replay.base import Trace
from pollwise.lab.traces.reading import read, split, summary, write
from pollwise.lab.traces.synthetic import workload
from tests.lab.replay.replaying import trace_of, traces


def file_of(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "plain seconds": ("10\n11.5\n14\n", {}),
    "no newline at the end": ("10\n11.5\n14", {}),
    "Windows line ends and a BOM": ("\ufeff10\r\n11.5\r\n14\r\n", {}),
    "blank lines and comments": ("# mine\n\n10\n11.5\n\n# more\n14\n", {}),
    "epoch seconds": ("1700000010\n1700000011.5\n1700000014\n", {}),
    "epoch milliseconds": ("1700000010000\n1700000011500\n1700000014000\n", {}),
    "epoch microseconds": ("1700000010000000\n1700000011500000\n1700000014000000\n", {}),
    "epoch nanoseconds": ("1700000010000000000\n1700000011500000000\n1700000014000000000\n", {}),
    "milliseconds, said so": ("10\n1510\n4010\n", {"unit": "ms"}),
    "ISO 8601 with Z": ("2026-01-01T00:00:10Z\n2026-01-01T00:00:11.5Z\n2026-01-01T00:00:14Z\n", {}),
    "ISO 8601 with a zone": (
        "2026-01-01T01:00:10+01:00\n2026-01-01T00:00:11.500Z\n2025-12-31T19:00:14-05:00\n",
        {"unit": "iso"},
    ),
    "naive ISO 8601, seven digits": (
        "2026-01-01 00:00:10.0000000\n2026-01-01 00:00:11.5000000\n2026-01-01 00:00:14.0000000\n",
        {},
    ),
    "a header": ("timestamp\n10\n11.5\n14\n", {}),
    "an unknown header": ("wann\n10\n11.5\n14\n", {}),
    "found by its title": ("id,created_at,size\na,10,1\nb,11.5,2\nc,14,3\n", {}),
    "a named column": ("x,y\n1,10\n2,11.5\n3,14\n", {"column": "y"}),
    "a numbered column under a header": ("x,y\n1,10\n2,11.5\n3,14\n", {"column": 2}),
    "a numbered column without a header": ("a;10\nb;11.5\nc;14\n", {"column": "2"}),
    "the only column with times": (
        "7\t2026-01-01 00:00:10+00\n8\t2026-01-01 00:00:11.5+00\n9\t2026-01-01 00:00:14\n",
        {},
    ),
    "ids, then times since 1970": (
        "17;1700000010.0\n18;1700000011.5\n19;1700000014.0\n",
        {},
    ),
    "a day and a time": (
        "#Fields: date time\n2026-01-01\t00:00:10\n2026-01-01\t00:00:11.5\n2026-01-01\t00:00:14\n",
        {},
    ),
    "a day and a time, of IIS": (
        "#Fields: date time\n2026-01-01 00:00:10\n2026-01-01 00:00:11.5\n2026-01-01 00:00:14\n",
        {},
    ),
    "a day and a time, under a header": (
        "date,time\n2026-01-01,00:00:10\n2026-01-01,00:00:11.5\n2026-01-01,00:00:14\n",
        {},
    ),
    "quotes": ('"name, too",at\n"a, b",10\n"c",11.5\n"d",14\n', {}),
    "NDJSON": ('{"ts": 10}\n{"ts": 11.5}\n{"ts": 14}\n', {}),
    "NDJSON with strings": (
        "".join(f'{{"id": 7, "time": "2026-01-01T00:00:{at}Z"}}\n' for at in ("10", "11.5", "14")),
        {},
    ),
    "NDJSON, inside": (
        '{"req": {"sent": "10"}}\n{"req": {"sent": "11.5"}}\n{"req": {"sent": "14"}}\n',
        {"column": "req.sent"},
    ),
    "unsorted, said so": ("14\n10\n11.5\n", {"sort": True}),
    "a JSON array of values": ("[10,\n 11.5,\n 14]\n", {}),
    "a JSON array of objects": ('[{"ts": 10}, {"ts": 11.5},\n {"ts": 14}]', {}),
    "JSON over several lines": ('{\n "ts": 10\n}\n{\n "ts": 11.5\n}\n{"ts": 14}\n', {}),
}


@pytest.mark.parametrize("packed", [False, True], ids=["", "gzip"])
@pytest.mark.parametrize(("text", "options"), GOOD.values(), ids=GOOD.keys())
def test_all_these_are_the_same_trace(
    tmp_path: Path, text: str, options: dict[str, Any], packed: bool
) -> None:
    raw = text.encode()
    path = file_of(tmp_path, gzip.compress(raw) if packed else raw)
    trace = read(path, **options)
    assert trace.arrivals.tolist() == pytest.approx([0, 1.5, 4], abs=1e-6)
    assert trace.span == trace.arrivals[-1]
    assert trace.name == "trace"


BAD: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "empty": ("", {}, "trace.csv holds no arrivals"),
    "only comments": ("# nothing\n\n", {}, "holds no arrivals"),
    "only a header": ("timestamp\n", {}, "no arrivals under its header"),
    "unsorted": ("1\n5\n\n3\n", {}, "line 4: '3' is earlier than '5' in line 2; sort.*sort=True"),
    "negative": ("1\n-2\n", {}, "line 2: '-2' is negative"),
    "not a number": ("1\n2\nthree\n", {}, "line 3: 'three' is not a time"),
    "not a number, under a header": ("ts\n1\n2x\n", {}, "line 3: '2x' is not a time"),
    "a typo in the first line": ("1O\n2\n", {}, "line 1: '1O' is not a time"),
    "NaN": ("1\nnan\n", {}, "line 2: 'nan' is not a time"),
    "infinite": ("1\ninf\n", {}, "line 2: 'inf' is not a time"),
    "ms among s": (
        "1700000000\n1700000001\n1700000002000\n",
        {},
        "line 3: '1700000002000' looks like milliseconds, and '1700000000' in line 1 like seconds",
    ),
    "s among ms": ("1700000000000\n1700000001\n", {}, "line 2: .*looks like seconds"),
    "ms, called s": ("1700000000000\n", {"unit": "s"}, "line 1: .*milliseconds, not seconds"),
    "a date among numbers": ("1\n2026-01-01T00:00:00Z\n", {}, "line 2: .* is a date"),
    "a number among dates": ("2026-01-01\n17\n", {}, "line 2: '17' is a number"),
    "a broken date": ("2026-01-01\n2026-13-01\n", {}, "line 2: '2026-13-01' is not a time"),
    "a number, called ISO": ("17.5\n", {"unit": "iso"}, "line 1: .*give ISO 8601"),
    "a missing stamp": ("0\n1700000000\n", {}, "54 years without arrivals"),
    "an empty cell": ("a,at\n1,5\n2,\n", {}, "line 3: there is no value"),
    "an empty date": ("a,at\n1,2026-01-01\n2,\n", {}, "line 3: there is no value"),
    "a short row": ("a,at\n1,5\n2\n", {}, "line 3: it has no column 2"),
    "no such column": ("tim,size\n1,2\n", {"column": "time"}, "line 1: .*did you mean 'tim'"),
    "no header to name in": ("1,2\n", {"column": "time"}, "line 1: there is no header"),
    "no such number": ("1,2\n", {"column": 3}, "line 1: there is no column 3"),
    "column 0": ("1,2\n", {"column": 0}, "there are 1 to 2"),
    "ids without a header": ("17,a\n18,b\n", {}, "line 1: there is no header, and no column"),
    "two times without a header": (
        "2026-01-01,2026-01-02\n",
        {},
        r"line 1: which column\? .*1 \('2026-01-01'\), 2 \('2026-01-02'\)",
    ),
    "days alone": ("2026-01-01\n2026-01-02\n", {}, "has only days, such as '2026-01-01'"),
    "another age": ("0001-01-01T00:00:00Z\n", {}, "line 1: .* is not between 1990 and 2100"),
    "a far future": ("99999999999\n", {}, "line 1: .* is not between 1990 and 2100"),
    "which column": ("x,y\n1,2\n", {}, "line 1: which column\\? name one of: x, y"),
    "which key": ('{"x": 1, "y": 2}\n', {}, "line 1: which column\\? name one of: x, y"),
    "no such key": ('{"ts": 1}\n{"at": 2}\n', {}, "line 2: it has no 'ts'"),
    "a number for a key": ('{"ts": 1}\n', {"column": 1}, "name the column"),
    "broken JSON": ('{"ts": 1}\n{"ts": \n', {}, "line 2: not JSON"),
    "a list in NDJSON": ('{"ts": 1}\n[2]\n', {}, "line 2: .*not a JSON object"),
    "null": ('{"ts": 1}\n{"ts": null}\n', {}, "line 2: there is no value"),
    "true": ('{"ts": 1}\n{"ts": true}\n', {}, "line 2: True is not a time"),
    "JSON's NaN": ('{"ts": 1}\n{"ts": NaN}\n', {}, "line 2: nan is not a time"),
    "half a JSON array": ("[1, 2\n", {}, "line 2: not JSON"),
    "a list in a JSON array": ("[[1]]\n", {}, r"item 1: \[1\] is not a JSON object, nor a time"),
    "values, then an object": ('[1, {"ts": 2}]', {}, "item 2: .* is an object"),
    "a column of numbers": ("[1, 2]\n", {"column": 1}, "holds JSON; name the column"),
    "values without metrics": ("1\n", {"values": "rate"}, "holds no metrics, so values = 'rate'"),
    "not text": (b"1\n\xff\xfe\n", {}, "not text in UTF-8"),
    "half a gzip": (gzip.compress(b"1\n" * 9999)[:30], {}, "damaged gzip"),
    "an unknown unit": ("1\n", {"unit": "days"}, "unit = 'days' is not one of"),
    "a half count": ("3\n1.5\n", {"bins": "60s"}, "line 2: '1.5' is not a number of arrivals"),
    "a negative count": ("3\n-1\n", {"bins": "60s"}, "line 2: '-1' is not a number of arrivals"),
    "times for counts": ("1700000000,3\n", {"bins": "60s"}, "line 1: .*name their column"),
    "no counts at all": ("0\n0\n", {"bins": "60s"}, "all 2 bins are empty"),
    "too many": ("50000000\n1\n", {"bins": "60s"}, "the maximum is 50,000,000"),
    "bins of nothing": ("1\n", {"bins": "0s"}, "bins = '0s' must be above 0"),
    "a span that is none": ("# span: long\n1\n", {}, "line 1: .*does not give a span"),
    "a span that is too short": ("# span: 5\n1\n9\n", {}, "says its span is 5 s"),
}


@pytest.mark.parametrize(("text", "options", "match"), BAD.values(), ids=BAD.keys())
def test_bad_input_says_where_and_what_to_do(
    tmp_path: Path, text: str | bytes, options: dict[str, Any], match: str
) -> None:
    path = file_of(tmp_path, text)
    with pytest.raises(ConfigError, match=match) as refused:
        read(path, **options)
    if "line" in match and "header" not in match:
        assert str(refused.value).startswith(f"{path}, line ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        read(tmp_path)


def test_counts_are_spread_inside_their_bins_by_the_seed(tmp_path: Path) -> None:
    path = file_of(tmp_path, "minute,count\n1,3\n2,0\n3,100\n")
    trace = read(path, bins="1m", seed=7)
    assert trace.span == 180
    counts, _ = np.histogram(trace.arrivals, [0, 60, 120, 180])
    assert counts.tolist() == [3, 0, 100]
    assert (np.diff(trace.arrivals) > 0).all()
    assert trace.arrivals[3:].mean() == pytest.approx(150, abs=6)
    assert np.array_equal(trace.arrivals, read(path, bins=60, seed=7).arrivals)
    assert not np.array_equal(trace.arrivals, read(path, bins=60, seed=8).arrivals)


def test_a_name_may_be_given(tmp_path: Path) -> None:
    assert read(file_of(tmp_path, "1\n", "a.b.csv.gz")).name == "a.b"
    assert read(file_of(tmp_path, "1\n"), name="mine").name == "mine"


@settings(max_examples=50, deadline=None)
@given(traces().filter(lambda trace: len(trace.arrivals) > 0), st.sampled_from(["csv", "csv.gz"]))
def test_what_is_written_is_read_back(tmp_path_factory: Any, trace: Trace, suffix: str) -> None:
    path = tmp_path_factory.mktemp("written") / f"drawn.{suffix}"
    write(trace, path)
    again = read(path)
    assert np.array_equal(again.arrivals, trace.arrivals)
    assert (again.span, again.name) == (trace.span, trace.name)
    assert [path.name for path in path.parent.iterdir()] == [path.name]


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write(trace_of([1.0]), tmp_path / "none" / "trace.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write(trace_of([1.0]), tmp_path / "folder.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


# Figures


def test_figures_of_clockwork() -> None:
    figures = summary(trace_of(np.arange(1000.0), span=1000))
    assert (figures.n, figures.span, figures.rate) == (1000, 1000, 1)
    assert figures.cv == pytest.approx(0)
    assert figures.burstiness == pytest.approx(-1)
    assert figures.longest_gap == 1
    assert figures.dispersion == 0
    assert figures.headroom == 1
    assert figures.window == 10


def test_figures_of_random_arrivals() -> None:
    figures = summary(workload("steady", seed=1))
    assert figures.cv == pytest.approx(1, abs=0.05)
    assert figures.burstiness == pytest.approx(0, abs=0.03)
    assert figures.dispersion == pytest.approx(1, abs=0.15)
    assert figures.headroom == pytest.approx(0.987, abs=0.005)


def test_headroom_of_a_rate_that_is_on_a_quarter_of_the_time() -> None:
    """E√λ / √Eλ = (√4 / 4) / √1 = 0.5."""
    arrivals = [period * 400 + at / 4 for period in range(10) for at in range(400)]
    assert summary(trace_of(arrivals, span=4000)).headroom == pytest.approx(0.5)


def test_bursty_traffic_has_more_to_win() -> None:
    shares = [summary(workload(name, seed=1)).headroom for name in ("steady", "diurnal", "on-off")]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("arrivals", [[], [0.0], [3.0], [5.0, 5.0], [0.0, 9.0]])
def test_figures_of_next_to_nothing_are_finite(arrivals: list[float]) -> None:
    figures = summary(trace_of(arrivals))
    assert all(math.isfinite(value) for value in vars(figures).values())


# Cutting


@settings(max_examples=100, deadline=None)
@given(traces().filter(lambda trace: len(trace.arrivals) > 3), st.floats(0.05, 0.95))
def test_the_parts_make_the_whole(trace: Trace, share: float) -> None:
    cut = trace.span * share
    if trace.arrivals[0] >= cut or trace.arrivals[-1] < cut:
        with pytest.raises(ConfigError, match="on one side"):
            split(trace, share)
        return
    first, second = split(trace, share)
    assert len(first.arrivals) + len(second.arrivals) == len(trace.arrivals)
    assert first.span + second.span == pytest.approx(trace.span)
    joined = np.concatenate([first.arrivals, second.arrivals + first.span])
    assert joined == pytest.approx(trace.arrivals)
    for part in (first, second):
        assert part.arrivals[0] >= 0
        assert part.arrivals[-1] <= part.span


def test_a_split_in_the_middle() -> None:
    first, second = split(trace_of([0.0, 1.0, 6.0, 9.0], span=10), 0.5)
    assert first.arrivals.tolist() == [0, 1]
    assert second.arrivals.tolist() == [1, 4]
    assert (first.span, second.span) == (5, 5)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        split(trace_of([1.0, 2.0]), share)


def test_what_a_file_was_taken_for_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    path = file_of(tmp_path, "7\t2026-01-01 00:00:10\n8\t2026-01-01 00:02:10\n")
    read(path, tell=told.append)
    path = file_of(tmp_path, "id,at\n7,1700000000000\n8,1700000060500\n")
    read(path, tell=told.append)
    path = file_of(tmp_path, "101\n102\n104\n")
    read(path, tell=told.append)
    assert told == [
        (
            "read 2 times from column 2: dates without a time zone, read as UTC; from 2026-01-01 "
            "00:00:10 UTC to 2026-01-01 00:02:10 UTC; longest gap 2m, after 2026-01-01 00:00:10 "
            "UTC; whole seconds, so each is placed at random in its second"
        ),
        (
            "read 2 times from column 2 'at': milliseconds since 1970; from 2023-11-14 "
            "22:13:20 UTC to 2023-11-14 22:14:20 UTC; longest gap 1m, after 2023-11-14 22:13:20 UTC"
        ),
        (
            "read 3 times from the only column: seconds from a beginning that is not known; from "
            "101 s to 104 s; longest gap 2s, after 102 s"
        ),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "1700000010\n1700000011\n1700000011\n",
        "1700000010000\n1700000011000\n1700000011000\n",
        "2026-01-01T00:00:10Z\n2026-01-01T00:00:11Z\n2026-01-01T00:00:11Z\n",
        '{"ts": 10}\n{"ts": 11}\n{"ts": 11}\n',
        "ts,id\n10,1\n11,2\n11,3\n",
    ],
)
def test_whole_seconds_are_spread_in_every_form(tmp_path: Path, text: str) -> None:
    trace = read(file_of(tmp_path, text), seed=1)
    assert np.floor(trace.arrivals).tolist() == [0, 1, 1]
    assert len(set(trace.arrivals.tolist())) == 3
    assert trace.span == 2.0


@pytest.mark.parametrize("text", ["10\n11\n14\n", "1700000010.0\n1700000011.0\n1700000014.0\n"])
def test_what_may_be_exact_is_kept(tmp_path: Path, text: str) -> None:
    assert read(file_of(tmp_path, text)).arrivals.tolist() == [0, 1, 4]
