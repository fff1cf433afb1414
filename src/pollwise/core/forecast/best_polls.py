"""When to poll something that will finish, given the probability that it has finished by each time.

One poll costs as much as `price` seconds of waiting. With F the probability to have finished, polls
at t₁ < t₂ < … cost price · Σ (1 - F(tₖ₋₁)) + Σ ∫ (F(t) - F(tₖ₋₁)) dt, each integral from tₖ₋₁ to
tₖ: a poll is made if the run had not finished at the one before it, and from its end to the next
poll the run waits. The cheapest polls follow from the end to the beginning: whatever was polled
before, the best next poll depends only on the last one. `docs/why/until.md` derives it.
"""

from __future__ import annotations

from collections.abc import Sequence


def best_polls(times: Sequence[float], finished: Sequence[float], price: float) -> list[int]:
    """For each time but the last, the index of the best next poll; the last time ends the grid.

    With A = ∫F and U(k) the cost after a poll at time k, the best next poll k minimises
    A(k) + U(k) - F(j) · t(k). For each k that is a line in F(j), and only the lines of the lower
    hull matter. Both the slopes and F(j) fall from the end to the beginning, so each line enters
    and leaves the hull once: the work grows with the number of times, not with its square.
    """
    areas = [0.0]
    area = 0.0
    for s, t, f, g in zip(times, times[1:], finished, finished[1:], strict=False):
        area += 0.5 * (f + g) * (t - s)
        areas.append(area)
    last = len(times) - 1
    polls = [last] * last
    hull_t, hull_v, hull_k = [times[last]], [areas[last]], [last]  # t and A + U, latest first
    head = 0  # the line that was best for the last F
    for j in range(last - 1, -1, -1):
        f, t = finished[j], times[j]
        head = min(head, len(hull_t) - 1)
        best = hull_v[head] - f * hull_t[head]
        while head + 1 < len(hull_t):
            other = hull_v[head + 1] - f * hull_t[head + 1]
            if other > best:
                break
            best, head = other, head + 1
        polls[j] = hull_k[head]
        value = price * (1.0 - f) + f * t + best  # A + U
        while len(hull_t) >= 2:
            t1, v1, t2, v2 = hull_t[-2], hull_v[-2], hull_t[-1], hull_v[-1]
            if (value - v1) * (t1 - t2) > (v2 - v1) * (t1 - t):
                break  # the last line is still the lowest somewhere
            del hull_t[-1], hull_v[-1], hull_k[-1]
        hull_t.append(t)
        hull_v.append(value)
        hull_k.append(j)
    return polls
