"""Limits of what is in progress at one host."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.host_limits import HostLimits

#: A host, and what happens there: something wants to begin, or something ends.
happenings = st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=100)


@given(happenings, st.integers(1, 3))
def test_all_get_their_turn_and_never_too_many(
    happened: list[tuple[str, bool]], limit: int
) -> None:
    limits: HostLimits[int] = HostLimits(limit)
    busy: Counter[str] = Counter()
    waiting: dict[str, list[int]] = {"a": [], "b": []}

    def end(host: str) -> None:
        limits.leave(host)
        busy[host] -= 1
        follower = limits.follower(host)
        assert follower == (waiting[host].pop(0) if waiting[host] else None)
        if follower is not None:
            assert limits.enter(host, follower, due=float(follower))
            busy[host] += 1

    for key, (host, begins) in enumerate(happened):
        if begins and limits.enter(host, key, due=float(key)):
            busy[host] += 1
        elif begins:
            waiting[host].append(key)
        elif busy[host]:
            end(host)
        assert busy[host] <= limit
        assert not waiting[host] or busy[host] == limit
    for host in "ab":
        while busy[host]:
            end(host)
    assert not any(waiting.values())
    assert not limits.hosts, "hosts where nothing happens are forgotten"


def test_what_no_longer_waits_is_passed_over() -> None:
    limits: HostLimits[str] = HostLimits(1)
    assert limits.enter("h", "a", due=1.0)
    assert not limits.enter("h", "b", due=2.0)
    assert not limits.enter("h", "c", due=3.0)
    assert limits.follower("h") is None, "the host is busy"
    limits.forget("h", "b")
    limits.leave("h")
    assert limits.follower("h") == "c"
    assert limits.follower(None) is None
    assert limits.follower("elsewhere") is None
