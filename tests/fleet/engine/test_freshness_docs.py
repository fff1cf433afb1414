"""docs/why/freshness.md: its constants are the code's, and a measured figure is a measured one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pollwise.core import shares
from pollwise.core.forecast import changes

ROOT = Path(__file__).parents[3]
PAGE = " ".join((ROOT / "docs" / "why" / "freshness.md").read_text("utf-8").split())
RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("said", "is_so"),
    [
        ("about fifty of them count", changes.MEMORY == 50),
        ("eight buckets to a doubling", shares.FINENESS == 8),
        ("again after an eighth of the beliefs has changed", shares.STALE_SHARE == 1 / 8),
    ],
)
def test_the_page_states_the_constants_of_the_code(said: str, is_so: bool) -> None:
    assert said in PAGE
    assert is_so


def test_every_figure_was_measured() -> None:
    """Ratios, percentages and times: none that the fleet's section of the results has not."""
    section = RESULTS.split("\n## fleet\n")[1].split("\n## ")[0]
    figures = re.findall(r"\d+[.,]\d+|\d+ ?%|\d+ ?(?:µs|ms)\b", PAGE)
    assert [each for each in figures if each not in section] == []
