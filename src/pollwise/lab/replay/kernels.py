"""Compiled loops: replays of the plain case, and limits.

Importing this module loads numba; the rest of the lab does so on first use.

The replay here does the same as `runtime.loop` under the virtual clock with the pacers of `core`;
tests check that the two are equal, poll by poll. The constants of the pacers are passed as numbers
(`fast.py` reads them from core), because numba's cache on disk would not notice that a constant of
another module has changed.
"""

from __future__ import annotations

from pollwise.lab.numeric import NDArray, compiled, np

Floats = NDArray[np.float64]

FIXED, ADAPTIVE, BATCH_FILL, EWMA = range(4)
#: The longest single sleep of the event loop, in seconds (asyncio's own limit).
STRETCH = 86400.0

# The places of a pacer's state in its array.
_DELAY = 0
_AVERAGE, _TRUE_AT, _FULL, _EMPTIES, _LOW_POLLS, _SPIKED = range(1, 7)


def first_state(delay: float, full: float) -> Floats:
    """The state of a pacer that has seen nothing yet."""
    state = np.zeros(7)
    state[_DELAY], state[_FULL] = delay, full
    return state


def woken_at(now: float, delay: float) -> float:
    """When a sleep of `delay` from now ends under the virtual clock, with the same roundings.

    The loop computes now + delay and sleeps for the difference; asyncio sets a timer; and the clock
    jumps by the difference. Each step rounds.
    """
    left = (now + delay) - now
    if left <= 0.0:
        return now
    due = now + left
    while due > now:
        now = now + min(due - now, STRETCH)
    return now


_woken_at = compiled(woken_at)


@compiled
def _adaptive(p: Floats, s: Floats, found: int) -> float:
    min_interval, max_interval, multiplier = p[0], p[1], p[2]
    s[_DELAY] = min_interval if found > 0 else min(s[_DELAY] * multiplier, max_interval)
    return float(s[_DELAY])


@compiled
def _batch_fill(p: Floats, s: Floats, found: int, capacity: int) -> float:
    min_interval, max_interval, batch, low_load, step = p[0], p[1], p[2], p[3], p[4]
    room = float(capacity) if capacity > 0 else batch
    fill = min(float(found), room) / room
    if fill < low_load:
        s[_DELAY] = min(s[_DELAY] * step, max_interval)
    elif fill >= 1.0:
        s[_DELAY] = max(s[_DELAY] / step, min_interval)
    return float(s[_DELAY])


@compiled
def _ewma_class(p: Floats, average: float, full: float) -> int:
    low, medium, high, saturated = p[8], p[9], p[10], p[11]
    if average == 0.0:
        return 0
    if average >= min(high, saturated * full):
        return 4
    if average < low:
        return 1
    return 2 if average < medium else 3


@compiled
def _ewma_found(p: Floats, s: Floats, at: float, found: int, capacity: int) -> None:
    alpha, drop_after, low = p[5], p[6], p[8]
    spike, counted_max, outdated = p[12], p[15], p[17]
    s[_EMPTIES] = 0.0
    s[_TRUE_AT] = at
    s[_FULL] = min(float(capacity), counted_max) if capacity > 0 else counted_max
    sample = min(float(found), counted_max)
    limit = spike * s[_AVERAGE]
    above = 0.0 < limit < sample
    if above and s[_SPIKED] == 0.0:
        sample = limit
    s[_SPIKED] = 1.0 if above else 0.0
    s[_AVERAGE] = alpha * sample + (1.0 - alpha) * s[_AVERAGE]
    if found >= low or (0 < capacity <= found):
        s[_LOW_POLLS] = 0.0
        return
    s[_LOW_POLLS] += 1.0
    if s[_LOW_POLLS] >= drop_after and s[_AVERAGE] > outdated * found:
        s[_AVERAGE] = float(found)
        s[_LOW_POLLS] = 0.0


@compiled
def _ewma_empty(p: Floats, s: Floats, at: float) -> None:
    half_life, negligible, before_decay, half = p[7], p[13], p[14], p[16]
    s[_EMPTIES] += 1.0
    s[_SPIKED] = 0.0
    if s[_AVERAGE] == 0.0 or s[_EMPTIES] < before_decay:
        return
    left = s[_AVERAGE] * half ** ((at - s[_TRUE_AT]) / half_life)
    if left == s[_AVERAGE]:
        return
    s[_AVERAGE] = left
    s[_TRUE_AT] = at
    if left < negligible:
        s[_AVERAGE] = 0.0
        s[_LOW_POLLS] = 0.0


@compiled
def _delay_after(kind: int, p: Floats, s: Floats, at: float, found: int, capacity: int) -> float:
    """The delay that a pacer of this kind answers; `capacity` 0 means no limit."""
    if kind == FIXED:
        return float(p[0])
    if kind == ADAPTIVE:
        return _adaptive(p, s, found)
    if kind == BATCH_FILL:
        return _batch_fill(p, s, found, capacity)
    if found > 0:
        _ewma_found(p, s, at, found, capacity)
    else:
        _ewma_empty(p, s, at)
    return float(p[_ewma_class(p, s[_AVERAGE], s[_FULL])])


@compiled
def replay(
    arrivals: Floats,
    span: float,
    kind: int,
    p: Floats,
    start: Floats,
    capacity: int,
    drain: bool,
    patience: int,
    most_polls: int,
    waits: Floats,
    times: Floats,
) -> tuple[int, int]:
    """Poll the arrivals from time 0 on; return the number of polls, and of empty ones.

    waits: filled with the wait of each item.
    times: filled with the time of each poll, unless its length is 0.
    patience: how many empty polls in a row are allowed while no time passes.
    most_polls: how many polls are allowed; more of either return (-1, 0).
    """
    s = start.copy()
    n, most = len(arrivals), capacity if capacity > 0 else len(arrivals) + 1
    now, taken, polls, empty, stuck = 0.0, 0, 0, 0, 0
    while True:
        found = 0
        while taken < n and found < most and arrivals[taken] <= now:
            waits[taken] = now - arrivals[taken]
            taken += 1
            found += 1
        if now < span or found > 0:
            if len(times) > 0:
                times[polls] = now
            polls += 1
            empty += found == 0
        if taken == n and now >= span:
            return polls, empty
        delay = _delay_after(kind, p, s, now, found, capacity)
        if drain and 0 < capacity <= found:
            continue
        before, now = now, _woken_at(now, delay)
        stuck = stuck + 1 if now == before and found == 0 else 0
        if stuck > patience or polls > most_polls:
            return -1, 0


@compiled
def optimal_polls(arrivals: Floats, ratio: float) -> NDArray[np.int64]:
    """The arrivals at which a clairvoyant polls, by index.

    best[i] is the lowest cost of the first i arrivals, with a poll at the i-th:
    best[i] = ratio + min over j < i of best[j] + Σ_{j<k≤i} (aᵢ - a_k), where the last poll before
    was at the j-th. With the sums S of the arrivals, the part that depends on j is a line in aᵢ,
    -j·aᵢ + (best[j] + S[j]). Slopes fall with j and aᵢ never falls, so the lines that can still be
    lowest form a hull that loses lines at one end and gains them at the other: O(n) in total.
    """
    n = len(arrivals)
    slope, height = np.empty(n + 1), np.empty(n + 1)
    line, before = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
    slope[0], height[0], line[0] = 0.0, 0.0, 0
    first, last, total = 0, 0, 0.0
    for i in range(1, n + 1):
        at = arrivals[i - 1]
        total += at
        while first < last and (
            slope[first + 1] * at + height[first + 1] <= slope[first] * at + height[first]
        ):
            first += 1
        before[i] = line[first]
        best = ratio + i * at - total + slope[first] * at + height[first]
        new_slope, new_height = -float(i), best + total
        while first < last and (
            (height[last] - height[last - 1]) * (slope[last] - new_slope)
            >= (new_height - height[last]) * (slope[last - 1] - slope[last])
        ):
            last -= 1
        last += 1
        slope[last], height[last], line[last] = new_slope, new_height, i
    count, i = 0, n
    while i > 0:
        count += 1
        i = before[i]
    polls = np.empty(count, np.int64)
    i = n
    while i > 0:
        count -= 1
        polls[count] = i - 1
        i = before[i]
    return polls


@compiled
def polls_when_due(arrivals: Floats, price: float, times: Floats) -> int:
    """Poll whenever the waiting since the last poll reaches `price`; fill in the times."""
    n, polls, i = len(arrivals), 0, 0
    while i < n:
        at, waiting, pending = arrivals[i], 0.0, 1
        i += 1
        while True:
            due = at + (price - waiting) / pending
            if i == n or arrivals[i] > due:
                break
            waiting += pending * (arrivals[i] - at)
            at = arrivals[i]
            pending += 1
            i += 1
        times[polls] = due
        polls += 1
    return polls


@compiled
def fixed_costs(arrivals: Floats, span: float, intervals: Floats, ratio: float) -> Floats:
    """The cost of polling at 0, T, 2T, … for each T, with the end rule of every replay."""
    costs = np.empty(len(intervals))
    for which in range(len(intervals)):
        interval = intervals[which]
        waiting, last = 0.0, 0.0
        for at in arrivals:
            last = max(np.ceil(at / interval) * interval, at)
            waiting += last - at
        polls = np.ceil(span / interval)
        if last >= span and len(arrivals) > 0:
            polls += 1.0  # after the end, and found something
        costs[which] = polls * ratio + waiting
    return costs
