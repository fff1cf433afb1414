"""Comparisons: what they say, and that pages and pictures show exactly that."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.files import write
from pollwise.lab.numeric import np
from pollwise.lab.policies import USUAL, CostTerms, parse
from pollwise.lab.prices import MONTH, PRICES, price_named
from pollwise.lab.replay import limits
from pollwise.lab.replay.base import Trace
from pollwise.lab.replay.engine import replay
from pollwise.lab.report import charts
from pollwise.lab.report import compare as report
from pollwise.lab.report.charts import Mark, Scale, cost_key, log_range, placed, rate_unit
from pollwise.lab.report.compare import Comparison, compare, frontier
from pollwise.lab.report.drawing import LIGHT, Drawing, Stroke, clipped
from pollwise.lab.report.page import page
from pollwise.lab.report.picture import picture
from pollwise.lab.texts import money
from pollwise.lab.traces.resampled import BLOCKS, resampled
from pollwise.lab.traces.synthetic import workload
from pollwise.platforms.files import usual_mode

PRICE = PRICES["s3-list"]
TERMS = CostTerms(PRICE.dollars, 0.01 / 3600)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return workload("bursty", 1, 3.0)


@pytest.fixture(scope="module")
def made(trace: Trace) -> Comparison:
    return compare(trace, parse(USUAL, TERMS), PRICE, TERMS)


@pytest.fixture(scope="module")
def facts(made: Comparison) -> dict[str, Any]:
    return made.facts()


@pytest.fixture(scope="module")
def html(facts: dict[str, Any]) -> str:
    return page(facts, "1.2.3", "pollwise lab compare bursty")


# The figures


def test_a_policy_has_the_figures_of_its_replay(trace: Trace, facts: dict[str, Any]) -> None:
    done = replay(trace, Adaptive())
    policy = next(each for each in facts["policies"] if each["family"] == "adaptive")
    assert policy["polls"] == done.polls
    assert policy["wait_mean_s"] == pytest.approx(done.mean_wait, rel=1e-4)
    assert policy["wait_p95_s"] == pytest.approx(done.wait(0.95), rel=1e-4)
    assert policy["wait_max_s"] == pytest.approx(done.wait(1), rel=1e-4)
    month = MONTH / trace.span
    assert policy["poll_dollars_a_month"] == pytest.approx(done.polls * 5e-6 * month, rel=1e-4)
    cost = done.cost(TERMS.poll, TERMS.wait) * month
    assert policy["dollars_a_month"] == pytest.approx(cost, rel=1e-4)


def test_the_limits_are_those_of_the_trace(trace: Trace, facts: dict[str, Any]) -> None:
    arrivals, ratio, month = trace.arrivals, TERMS.ratio, MONTH / trace.span * TERMS.wait
    costs = {
        "best fixed": limits.best_fixed(arrivals, ratio, trace.span)[1],
        "sees arrivals": limits.sees_arrivals(arrivals, ratio).cost,
        "clairvoyant": limits.optimum(arrivals, ratio).cost,
    }
    assert [limit["name"] for limit in facts["limits"]] == list(costs)
    for limit in facts["limits"]:
        assert limit["dollars_a_month"] == pytest.approx(costs[limit["name"]] * month, rel=1e-4)
        assert limit["ratios"][limit["name"]] == 1.0
        spent = limit["poll_dollars_a_month"]
        waited = limit["wait_mean_s"] * len(arrivals) * month
        assert spent + waited == pytest.approx(limit["dollars_a_month"], rel=1e-3)
    for policy in facts["policies"]:
        assert policy["ratios"]["clairvoyant"] >= 1
        assert policy["ratios"]["clairvoyant"] >= policy["ratios"]["best fixed"]


def test_the_cheapest_is_the_one_to_take(made: Comparison, facts: dict[str, Any]) -> None:
    cheapest = min(facts["policies"], key=lambda policy: policy["dollars_a_month"])
    assert facts["take"] == cheapest["name"] == made.chosen.name
    assert [policy["take"] for policy in facts["policies"]].count(True) == 1
    assert facts["headline"].startswith(f"Take {cheapest['name']}: ")


def test_the_best_fixed_interval_comes_first(made: Comparison, facts: dict[str, Any]) -> None:
    """A policy that costs more than it does not boast of what it saves beside another."""
    fixed = next(each for each in facts["limits"] if each["name"] == "best fixed")
    ratio = made.chosen.dollars / fixed["dollars_a_month"]
    beside = "the best fixed interval in hindsight (fixed "
    how = "more than" if ratio > 1.005 else "less than" if ratio < 0.995 else "the same as"
    assert f"{how} {beside}" in facts["headline"]
    assert money(fixed["dollars_a_month"]) in facts["headline"]
    assert "fixed 500ms" not in facts["headline"]
    assert any(
        re.fullmatch(r"It costs [0-9.]+% less than fixed 500ms \(\$[0-9.]+\)\.", note)
        for note in facts["notes"]
    )


def test_a_figure_is_the_same_wherever_it_stands(made: Comparison, facts: dict[str, Any]) -> None:
    for line, policy in zip(made.lines, facts["policies"], strict=True):
        assert money(line.dollars) == money(policy["dollars_a_month"])
    texts = [facts["headline"], *facts["notes"], page(facts, "1", "pollwise")]
    assert not any(re.search(r"[0-9]e[+-][0-9]", Parsed(text).text) for text in texts)


def test_the_price_of_waiting_decides(trace: Trace) -> None:
    both = [Fixed("100ms"), Fixed("30s")]
    patient = compare(trace, both, PRICE, CostTerms(PRICE.dollars, 1e-9))
    hurried = compare(trace, both, PRICE, CostTerms(PRICE.dollars, 1.0))
    assert patient.chosen.name == "fixed 30s"
    assert hurried.chosen.name == "fixed 100ms"


def test_one_policy_alone_is_compared_with_the_best_fixed_interval(trace: Trace) -> None:
    alone = compare(trace, [Adaptive()], PRICE, TERMS)
    cost = r"\$[0-9.]+ to \$[0-9.]+ a month for polls and waiting \(\$[0-9.]+ on this trace\)"
    assert re.fullmatch(
        rf"Take adaptive 100ms to 5s: {cost}, [0-9]+% more than the best fixed .*\.", alone.headline
    )
    assert not any(note.startswith("It costs") for note in alone.notes())
    free = compare(trace, [Adaptive()], price_named("0/1"), CostTerms(0.0, TERMS.wait))
    assert re.fullmatch(rf"Take adaptive 100ms to 5s: {cost}\.", free.headline)


def test_a_forecast_is_a_range_over_other_traces_like_this_one() -> None:
    def range_on(trace: Trace) -> tuple[float, float]:
        made = compare(trace, [Fixed("5s")], PRICE, TERMS, seed=7)
        [policy] = made.facts()["policies"]
        low, high = made.chosen.range
        assert (policy["dollars_a_month_low"], policy["dollars_a_month_high"]) == (low, high)
        assert low <= policy["dollars_a_month"] <= high
        assert made.chosen.forecast in made.headline
        return low, high

    steady, bursty = workload("steady", 0, 6), workload("flash-crowd", 0, 6)
    narrow, wide = range_on(steady), range_on(bursty)
    assert wide[1] / wide[0] > narrow[1] / narrow[0] > 1.0
    assert range_on(steady) == narrow, "the same seed, the same range"


@given(st.lists(st.floats(0, 1000), max_size=50).map(sorted), st.integers(0, 99))
def test_a_resampled_trace_is_made_of_blocks_of_the_other(times: list[float], seed: int) -> None:
    made = resampled(Trace("t", np.array(times), 1000.0), seed)
    length = 1000.0 / BLOCKS
    assert made.span == 1000.0
    assert (np.diff(made.arrivals) >= 0).all()
    assert ((made.arrivals >= 0) & (made.arrivals <= 1000.0)).all()
    known = np.array(times) % length
    for at in made.arrivals % length:
        off = np.abs(known - at)
        assert np.minimum(off, length - off).min() < 1e-6


def test_a_fixed_interval_that_wins_is_compared_with_the_next(trace: Trace) -> None:
    won = compare(trace, [Fixed("5s"), Adaptive("50ms", "100ms")], PRICE, TERMS)
    assert won.headline.startswith("Take fixed 5s: ")
    assert any("less than adaptive 50ms to 100ms" in note for note in won.notes())


def test_free_polls(trace: Trace) -> None:
    free = price_named("0/1")
    facts = compare(trace, [Fixed("1s"), Adaptive()], free, CostTerms(0.0, TERMS.wait)).facts()
    assert facts["limits"] == []
    assert any("cost nothing" in note for note in facts["notes"])
    assert "less than adaptive 100ms to 5s ($" in facts["headline"]
    assert cost_key(facts) == "polls_an_hour"
    assert "polls an hour" in page(facts, "1", "pollwise")
    assert picture(facts)


def test_held_polls_are_compared_too() -> None:
    trace = workload("steady", 0, 0.2)
    facts = compare(trace, [Fixed("1s"), Fixed("1s", hold="10s")], PRICE, TERMS).facts()
    held = facts["policies"][1]
    assert held["name"] == "fixed 1s hold=10s"
    assert held["wait_mean_s"] < facts["policies"][0]["wait_mean_s"]
    assert "fixed 1s hold=10s" not in [mark["name"] for mark in facts["frontier"]["fixed"]]


def test_a_capacity_is_heeded(trace: Trace) -> None:
    wide = compare(trace, [Fixed("10s")], PRICE, TERMS)
    narrow = compare(trace, [Fixed("10s")], PRICE, TERMS, capacity=1)
    assert narrow.lines[0].done.polls > wide.lines[0].done.polls
    # The best fixed interval has the same capacity, so it is shorter, and never the dearer one.
    assert narrow.limits[0].polls_an_hour > wide.limits[0].polls_an_hour
    assert narrow.limits[0].dollars > wide.limits[0].dollars
    assert narrow.limits[0].dollars <= min(line.dollars for line in narrow.swept) * 1.02


def test_the_frontier_falls(made: Comparison) -> None:
    for family in ("fixed", "adaptive", "batch_fill", "ewma", "worth"):
        best = frontier(made.swept, family)
        assert len(best) > 2
        assert {line.family for line in best} == {family}
        for one, next_one in itertools.pairwise(best):
            assert one.done.polls < next_one.done.polls
            assert one.done.mean_wait > next_one.done.mean_wait


def test_rates_add_up(trace: Trace, facts: dict[str, Any]) -> None:
    time = facts["time"]
    assert sum(time["arrivals_a_second"]) * time["bin_s"] == pytest.approx(
        len(trace.arrivals), rel=1e-3
    )
    for policy in facts["policies"]:
        rates = time["polls_a_second"][policy["name"]]
        assert len(rates) == report.BINS
        assert sum(rates) * time["bin_s"] == pytest.approx(policy["polls"], rel=0.01)


def test_waits_are_a_distribution(facts: dict[str, Any]) -> None:
    for policy in facts["policies"]:
        waits = facts["waits"]["seconds"][policy["name"]]
        assert waits == sorted(waits)
        assert waits[-1] == policy["wait_max_s"]
        assert waits[report.LEVELS // 2 - 1] == policy["wait_p50_s"]
        assert waits[int(0.95 * report.LEVELS) - 1] == policy["wait_p95_s"]


def test_progress_is_told(trace: Trace) -> None:
    told: list[tuple[int, int]] = []
    compare(trace, [Fixed("2s")], PRICE, TERMS, progress=lambda *both: told.append(both))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize("arrivals", [[], [0.0]])
def test_a_trace_without_a_stretch_of_time(arrivals: list[float]) -> None:
    with pytest.raises(ConfigError, match="needs several arrivals over a period of time"):
        compare(Trace("short", np.array(arrivals), 0.0), [Fixed("1s")], PRICE, TERMS)


# The page


class Parsed(HTMLParser):
    """What a browser would load, and the data inside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.data: dict[str, Any] = {}
        self.text = ""
        self._inside: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = (tag, dict(attrs))
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "data", "poster", "background"}:
                self.loads.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attributes = self._inside
        if tag == "script":
            if attributes.get("type") == "application/json":
                self.data[str(attributes["id"])] = json.loads(data)
        elif tag != "style":
            self.text += data


def test_the_page_loads_nothing(html: str) -> None:
    parsed = Parsed(html)
    assert parsed.loads == []
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(parsed.tags)
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html
    assert len(html) < 500_000


def test_a_page_with_as_many_policies_as_the_web_compares_is_small(trace: Trace) -> None:
    names = "worth,adaptive,fixed 500ms,batch_fill,ewma,fixed 1s,fixed 5s,fixed 10s,adaptive 1s 9s"
    chosen = parse(f"{names},adaptive 1s 30s,batch_fill 2s 9s,ewma 2s 30s", TERMS)
    made = compare(trace, chosen, PRICE, TERMS)
    assert len(made.lines) == 12
    assert len(page(made.facts(), "1", "pollwise")) < 500_000


def test_the_page_holds_the_facts(html: str, facts: dict[str, Any]) -> None:
    assert Parsed(html).data["pollwise-report"] == json.loads(json.dumps(facts))


def test_the_page_says_what_to_take_first(html: str, facts: dict[str, Any]) -> None:
    text = Parsed(html).text
    assert facts["headline"] in text
    assert text.index(facts["headline"]) < text.index("Cost against waiting")
    for policy in facts["policies"]:
        assert policy["name"] in text
        assert money(policy["dollars_a_month"]) in text
    for limit in facts["limits"]:
        assert limit["what"] in text


def charts_in(html: str, name: str) -> list[ElementTree.Element]:
    """The charts of this class in a page; each is there for wide and for narrow screens."""
    found = re.findall(r"<svg viewBox.*?</svg>", html, re.DOTALL)
    parsed = [ElementTree.fromstring(each) for each in found]
    return [each for each in parsed if name in each.get("class", "").split()]


def titles(chart: ElementTree.Element) -> list[str]:
    """The names of the points that have something to read, in the order of drawing."""
    return [(each.text or "").splitlines()[0] for each in chart.iter("title")]


def test_the_charts_show_every_policy_and_limit(html: str, facts: dict[str, Any]) -> None:
    mean = charts_in(html, "wait_mean_s")
    assert [each.get("class") for each in mean] == [
        "chart wide wait_mean_s", "chart narrow wait_mean_s",
    ]  # fmt: skip
    for chart in mean:
        texts = [each.text for each in chart.iter("text")]
        assert f"take {facts['take']}" in texts
        for each in (*facts["policies"], *facts["limits"]):
            assert each["name"] in titles(chart)
            assert each["name"] in texts or each.get("take")
    for chart in charts_in(html, "chart"):
        assert chart.get("role") == "img"
        lines = {name for each in chart.iter("path") for name in each.get("class", "").split()}
        if chart.get("data-chart"):
            for number, policy in enumerate(facts["policies"]):
                assert f"policy-{number}" in lines
                assert f"s-{policy['family']}" in lines


def test_a_line_of_a_chart_goes_through_the_facts(facts: dict[str, Any]) -> None:
    """The pixels of the waits and of the polls, turned back into values, are the facts."""
    drawing = Drawing(800, 400)
    edges = charts.waits(drawing, (0, 0, 800, 400), facts)
    low, high = charts.wait_range(facts)
    left, right = float(str(edges["data-left"])), float(str(edges["data-right"]))
    for number, policy in enumerate(facts["policies"]):
        line = next(
            each for each in drawing.items
            if isinstance(each, Stroke) and each.series == f"policy-{number}"
        )  # fmt: skip
        drawn = [10 ** (low + (x - left) / (right - left) * (high - low)) for x, _ in line.points]
        seconds = facts["waits"]["seconds"][policy["name"]]
        assert drawn[-1] == pytest.approx(max(seconds[-1], charts.SHORTEST))
        assert set(map(rounded, seconds[report.LEVELS // 4 :])) <= set(map(rounded, drawn))
    drawing = Drawing(800, 400)
    charts.over_time(drawing, (0, 0, 800, 400), facts)
    factor, _ = rate_unit(facts)
    low, high = charts.poll_range(facts)
    scale = Scale(low, high, 400 - charts.MARGINS[3], 0.36 * 400 + charts.MARGINS[1])
    for number, policy in enumerate(facts["policies"]):
        line = next(
            each for each in drawing.items
            if isinstance(each, Stroke) and each.series == f"policy-{number}"
        )  # fmt: skip
        rates = facts["time"]["polls_a_second"][policy["name"]]
        heights = {round(y, 3) for _, y in line.points if not math.isnan(y)}
        assert heights == {round(scale.pixel(rate * factor), 3) for rate in rates if rate}


def rounded(value: float) -> float:
    return float(f"{max(value, charts.SHORTEST):.5g}")


def test_the_metric_can_be_changed_to_the_95th_percentile(html: str, facts: dict[str, Any]) -> None:
    mean, late = (charts.marks_of(facts, metric) for metric in charts.METRICS)
    for marks, key in ((mean, "wait_mean_s"), (late, "wait_p95_s")):
        shown = {mark.text: mark.y for mark in marks if mark.kind != "limit"}
        assert shown == {policy["name"]: policy[key] for policy in facts["policies"]}
        assert len(charts_in(html, key)) == 2
        assert f'type="radio" name="metric" value="{key}"' in html
        assert f'section:has([value="{key}"]:checked)' in html


def test_every_series_can_be_hidden_without_a_script(html: str) -> None:
    boxes = re.findall(r'<input type="checkbox" checked data-series="([a-z0-9-]+)">', html)
    assert {"policy-0", "family-0", "equal"} <= set(boxes)
    drawn = {
        name
        for chart in charts_in(html, "chart")
        for each in chart.iter()
        for name in each.get("class", "").split()
        if name.startswith(("policy-", "family-", "equal"))
    }
    assert drawn == set(boxes)
    for series in boxes:
        assert f'[data-series="{series}"]:not(:checked)) .{series}{{display:none}}' in html


def test_the_page_is_light_and_dark(html: str) -> None:
    assert "@media (prefers-color-scheme:dark)" in html
    for chart in charts_in(html, "chart"):
        for each in chart.iter():
            assert not {"fill", "stroke", "style"} & set(each.keys())
            for name in each.get("class", "").split():
                if name.startswith(("s-", "f-")):
                    assert name[2:] in {*LIGHT, "none"}


def test_names_of_others_are_text(trace: Trace) -> None:
    evil = "</script><script>alert(1)</script><img src=http://x>"
    renamed = Trace(evil, trace.arrivals, trace.span)
    facts = compare(renamed, [Fixed("5s")], PRICE, TERMS).facts()
    parsed = Parsed(page(facts, "1", f"pollwise lab compare '{evil}'"))
    assert parsed.loads == []
    assert parsed.data["pollwise-report"]["trace"] == evil
    assert parsed.tags.count("script") == 2  # the facts, and the script of the page


# Pictures


def test_svg(facts: dict[str, Any]) -> None:
    content = picture(facts)
    assert ElementTree.fromstring(content).tag.endswith("svg")
    assert content == picture(facts)
    text = content.decode()
    for policy in facts["policies"]:
        assert f">{policy['name']}</text>" in text
        assert f">{money(policy['dollars_a_month'])}</text>" in text


def test_lines_are_cut_at_the_edges_of_a_plot() -> None:
    box = (0.0, 0.0, 10.0, 10.0)
    across = clipped([(-5, 5), (5, 5), (5, 15), (5, 25), (20, 5), (6, 5)], *box)
    assert [each for each in across if not math.isnan(each[0])] == [
        (0, 5), (5, 5), (5, 10), (10, 5), (6, 5),
    ]  # fmt: skip
    assert all(math.isnan(x) for x, _ in clipped([(-1, -1), (-2, 5), (math.nan, 1)], *box))


@given(st.floats(-6, 4), st.floats(0.36, 6))
def test_ticks_lie_on_their_axis(low: float, span: float) -> None:
    for ticks in (charts.number_ticks(low, low + span), charts.duration_ticks(low, low + span)):
        values = [value for value, _ in ticks]
        assert values == sorted(set(values))
        assert all(low <= math.log10(value) <= low + span for value in values)
        assert len({text for _, text in ticks}) == len(ticks)
    even = charts.even_ticks(0, 10**low, 5)
    assert even[0] == (0, "0")
    assert 3 <= len(even) <= 6
    assert even[-1][0] <= 10**low * (1 + 1e-9)


NAMES = st.sampled_from(["worth", "fixed 500ms", "adaptive 100ms to 5s", "ewma 1s to 20s"])
MARKS = st.builds(
    Mark, NAMES, st.floats(1e-2, 1e3), st.floats(1e-3, 1e2), st.just("fixed"),
    st.sampled_from(["policy", "limit", "take"]),
)  # fmt: skip
PLOT = (0.0, 0.0, 560.0, 330.0)


def boxes(marks: list[Mark]) -> list[tuple[float, float, float, float]]:
    """Where labels lie, by the measure of `placed`."""
    xs = Scale(*log_range(mark.x for mark in marks), PLOT[0], PLOT[2])
    ys = Scale(*log_range(mark.y for mark in marks), PLOT[3], PLOT[1])
    at = [(xs.pixel(mark.x), ys.pixel(mark.y)) for mark in marks]
    result = []
    for mark, (x, y) in zip(marks, placed(marks, at, PLOT), strict=True):
        half = len(mark.label) * charts.LETTER_WIDTH / 2, charts.LETTER_HEIGHT / 2
        result.append((x - half[0], y - half[1], x + half[0], y + half[1]))
    return result


@given(st.lists(MARKS, min_size=1, max_size=8))
def test_labels_do_not_lie_on_each_other(marks: list[Mark]) -> None:
    for one, other in itertools.combinations(boxes(marks), 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, marks


# Files


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("report.pdf", "must end in one of .html, .svg"),
        ("report", "must end in one of"),
        ("nowhere/report.html", "there is no folder"),
        ("folder.html", "is a folder"),
    ],
)
def test_a_path_that_cannot_be_written(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ConfigError) as refused:
        report.check_out(tmp_path / name)
    assert says in str(refused.value)


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for content in (b"one", b"two"):
        report.check_out(path)
        write(path, content)
        assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.stat().st_mode & 0o777 == usual_mode()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written_is_left(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"before")

    def full(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((ConfigError, KeyboardInterrupt)) as raised:
        write(path, b"x" * 100_000)
    if isinstance(error, OSError):
        assert "No space left on device" in str(raised.value)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
