from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.lab.runs import compare, picture


@pytest.fixture(scope="module")
def made() -> compare.RunsComparison:
    rng = random.Random(5)
    groups = {
        "build": [rng.lognormvariate(4, 0.1) for _ in range(60)],
        "<test>": [rng.lognormvariate(2, 0.3) for _ in range(80)],
    }
    return compare.compare(groups, [Fixed(5.0)], 2.0, 1.0)


def test_all_are_compared_on_all_groups(made: compare.RunsComparison) -> None:
    facts = made.facts()
    by_name = {each["name"]: each for each in facts["policies"]}
    assert list(by_name) == [
        "completion", "fixed 5s", compare.BEST_BACK_OFF, compare.BEST_FIXED, compare.KNOWN,
    ]  # fmt: skip
    assert facts["runs"] == 140
    assert facts["groups"] == 2
    assert by_name[compare.BEST_FIXED]["of_best_fixed"] == 1.0
    assert by_name["completion"]["of_best_fixed"] < 1.0 <= by_name["fixed 5s"]["of_best_fixed"]
    assert by_name[compare.KNOWN]["cost_a_run"] == 2.0
    for each in facts["policies"]:
        assert each["cost_a_run"] == pytest.approx(2.0 * each["polls_a_run"] + each["wait_mean_s"])


def test_the_largest_group_is_drawn(made: compare.RunsComparison) -> None:
    facts = made.facts()
    drawn = facts["drawn"]
    assert drawn["group"] == "<test>"
    assert drawn["polls_s"] == sorted(drawn["polls_s"])
    content = picture.picture(facts).decode()
    root = ElementTree.fromstring(content)
    dots = [each for each in root.iter() if each.tag.endswith("circle")]
    assert 1 <= len(dots) <= len(drawn["polls_s"])
    assert "&lt;test&gt;" in content
