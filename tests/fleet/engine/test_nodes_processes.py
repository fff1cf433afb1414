"""Several nodes, each a process, on one fleet in Postgres: shares, take-over, no poll twice."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pollwise.fleet.stores.postgres.store import TABLES
from pollwise.storage.postgres.schema import script
from tests.fleet.engine import node_child
from tests.support.daemons import wait_until
from tests.support.forked import Forked
from tests.support.servers import Postgres

TARGETS = 12
LEASE = 2.0
#: What a busy machine may add to any wait.
SLACK = 6.0

Story = list[dict[str, Any]]


class Crowd:
    """Nodes of one fleet, and what they wrote down."""

    def __init__(self, server: Postgres, log: Path, fleet: str) -> None:
        self._server = server
        self._log = log
        self._fleet = fleet
        self.nodes: dict[str, Forked] = {}

    def start(self, node: str) -> None:
        self.nodes[node] = Forked(
            [
                node_child.__file__, self._server.dsn(), self._fleet, node,
                self._log, TARGETS, LEASE,
            ],
            out=False,
            err=False,
        )  # fmt: skip

    def send(self, node: str, number: signal.Signals) -> float:
        """When it was sent."""
        self.nodes[node].send_signal(number)
        return time.monotonic()

    def story(self) -> Story:
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def polling(self, since: float) -> dict[str, set[str]]:
        """Which targets each node began to poll since then."""
        found: dict[str, set[str]] = defaultdict(set)
        for each in self.story():
            if each["what"] == "begin" and each["at"] >= since:
                found[each["node"]].add(each["target"])
        return found

    def shares(self, **wanted: int) -> None:
        """Wait until the nodes hold these numbers of targets."""

        def held() -> bool:
            rows = self._server.execute(
                "SELECT n.node, count(t.name) FROM pollwise.fleet_nodes n LEFT JOIN "
                "pollwise.fleet_targets t ON t.holder = n.id WHERE n.fleet = %s GROUP BY n.node",
                (self._fleet,),
            )
            return dict(rows) == wanted

        wait_until(held, f"shares of {wanted}", within=30)

    def clear_away(self) -> None:
        for process in self.nodes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


@pytest.fixture
def crowd(postgres: Postgres, tmp_path: Path) -> Iterator[Crowd]:
    postgres.execute(script("pollwise", TABLES))
    crowd = Crowd(postgres, tmp_path / "log.jsonl", f"crowd {tmp_path.name}")
    yield crowd
    crowd.clear_away()


def polls(story: Story) -> dict[str, list[tuple[float, float, str]]]:
    """Each target's polls as (begin, end, node), in the order of their begin.

    A poll without an end was that of a node that was killed: it ended at its last word or there.
    """
    found: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    begun: dict[tuple[str, str], float] = {}
    for each in story:
        key = each["node"], each.get("target", "")
        if each["what"] == "begin":
            begun[key] = each["at"]
        elif each["what"] == "end":
            found[key[1]].append((begun.pop(key), each["at"], key[0]))
    for (node, target), at in begun.items():
        found[target].append((at, at, node))
    return {target: sorted(every) for target, every in found.items()}


def overlaps(story: Story) -> list[tuple[str, tuple[float, float, str], tuple[float, float, str]]]:
    return [
        (target, before, after)
        for target, every in polls(story).items()
        for before, after in pairwise(every)
        if after[0] < before[1]
    ]


def longest_gap(story: Story, target: str, since: float) -> float:
    begins = [each[0] for each in polls(story)[target] if each[0] >= since]
    return max(after - before for before, after in pairwise([since, *begins]))


def test_two_nodes_share_and_a_stop_gives_back_at_once(crowd: Crowd) -> None:
    crowd.start("one")
    crowd.shares(one=TARGETS)
    crowd.start("two")
    crowd.shares(one=TARGETS // 2, two=TARGETS // 2)
    crowd.start("three")
    crowd.shares(one=4, two=4, three=4)
    since = time.monotonic()
    wait_until(
        lambda: sum(map(len, crowd.polling(since).values())) >= TARGETS, "all polled", within=20
    )
    crowd.send("two", signal.SIGTERM)
    assert crowd.nodes["two"].wait(20) == 0
    stopped = time.monotonic()
    crowd.shares(one=TARGETS // 2, three=TARGETS // 2)
    took = time.monotonic() - stopped
    assert took < LEASE + SLACK
    crowd.send("one", signal.SIGTERM)
    crowd.send("three", signal.SIGTERM)
    assert [crowd.nodes[node].wait(20) for node in ("one", "three")] == [0, 0]
    assert overlaps(crowd.story()) == []


def test_the_targets_of_a_killed_node_are_taken_over_within_the_lease(crowd: Crowd) -> None:
    crowd.start("one")
    crowd.start("two")
    crowd.shares(one=TARGETS // 2, two=TARGETS // 2)
    killed = crowd.send("two", signal.SIGKILL)
    crowd.nodes["two"].wait(10)
    wait_until(lambda: len(crowd.polling(killed)["one"]) == TARGETS, "all polled by one", within=30)
    story = crowd.story()
    firsts = {
        target: min(begin for begin, _, node in every if node == "one" and begin > killed)
        for target, every in polls(story).items()
    }
    # The lease from the kill on at the longest, the look just after it, and a poll's own interval.
    slowest = max(firsts.values()) - killed
    assert slowest < LEASE + node_child.EVERY + SLACK / 2, f"taken over after {slowest:.2f} s"
    assert overlaps(story) == []


def test_a_node_that_stood_still_past_its_lease_polls_nothing_that_others_took(
    crowd: Crowd, postgres: Postgres
) -> None:
    crowd.start("one")
    crowd.start("two")
    crowd.shares(one=TARGETS // 2, two=TARGETS // 2)
    stopped = crowd.send("two", signal.SIGSTOP)
    wait_until(
        lambda: len(crowd.polling(stopped)["one"]) == TARGETS,
        "all of them polled by one",
        within=30,
    )
    resumed = crowd.send("two", signal.SIGCONT)
    crowd.shares(one=TARGETS // 2, two=TARGETS // 2)  # it takes part again
    wait_until(
        lambda: len(crowd.polling(resumed)["two"]) >= TARGETS // 2, "two polls again", within=30
    )
    # What stood still in the middle of a poll goes on with it: nobody can help that. No other poll
    # meets one of the same target.
    met = [
        each for each in overlaps(crowd.story()) if not each[1][0] <= stopped + 0.1 <= each[1][1]
    ]
    assert met == []


def test_nodes_that_come_and_go_at_random_leave_nothing_unpolled(crowd: Crowd) -> None:
    for node in ("a", "b", "c"):
        crowd.start(node)
    crowd.shares(a=4, b=4, c=4)
    began = time.monotonic()
    crowd.send("a", signal.SIGKILL)
    crowd.start("d")
    crowd.send("b", signal.SIGTERM)
    crowd.start("e")
    crowd.send("c", signal.SIGKILL)
    crowd.shares(d=TARGETS // 2, e=TARGETS // 2)
    settled = time.monotonic()
    wait_until(
        lambda: all(len(each) == TARGETS // 2 for each in map(crowd.polling(settled).get, "de")
                    if each is not None) and len(crowd.polling(settled)) == 2,
        "both poll their share", within=20,
    )  # fmt: skip
    story = crowd.story()
    assert overlaps(story) == []
    gaps = {target: longest_gap(story, target, began) for target in polls(story)}
    assert len(gaps) == TARGETS
    assert max(gaps.values()) < 2 * LEASE + SLACK
    assert Counter(each["what"] for each in story)["started"] == 5
