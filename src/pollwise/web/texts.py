"""How pages write numbers, durations and times. Everything returned is plain text, or `Markup`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from pollwise.queues.views import Stats
from pollwise.runtime.jobs import State

#: By state of what is shown (a job, a record, a target, an agent), its colour in `app.css`
#: (`.tone-…`).
TONES: Mapping[str, str] = {
    "ready": "blue",
    "delayed": "violet",
    "blocked": "amber",
    "leased": "teal",
    "done": "green",
    "dead": "red",
    "cancelled": "grey",
    "online": "green",
    "draining": "amber",
    "offline": "grey",
    "running": "teal",
    "failed": "red",
    "waiting": "violet",
    "healthy": "green",
    "confirming": "amber",
    "backing off": "amber",
    "half-open": "amber",
    "broken": "red",
    "paused": "grey",
    "new": "blue",
}
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def number(value: float | None, digits: int = 0) -> str:
    """A number with separators of thousands, a dash for None.

    >>> number(12345), number(0.4567, 2), number(None)
    ('12,345', '0.46', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def compact(value: float | None) -> str:
    """A number in few characters.

    >>> [compact(v) for v in (0, 950, 12_345, 3_400_000, 0.25)]
    ['0', '950', '12.3k', '3.4M', '0.25']
    """
    if value is None or not math.isfinite(value):
        return "–"
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if sign == "k" else size)
            return f"{scaled:.3g}{sign}" if abs(scaled) < 1000 else f"{scaled:,.0f}{sign}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}"


def age(value: float | None) -> str:
    """A duration in its two largest units.

    >>> [age(v) for v in (None, 0.0002, 0.0042, 0.5, 42, 125, 7300, 200_000)]
    ['–', '200 µs', '4 ms', '500 ms', '42 s', '2 min 5 s', '2 h 1 min', '2 d 7 h']
    """
    if value is None or not math.isfinite(value):
        return "–"
    value = max(value, 0.0)
    if 0 < value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1.0:
        return f"{value * 1000:.0f} ms"
    if value < 10.0:
        return f"{value:.1f} s".replace(".0 s", " s")
    parts: list[str] = []
    for size, unit in _UNITS:
        count, value = divmod(value, size)
        if count:
            parts.append(f"{count:.0f} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)


def size(value: float | None) -> str:
    """A number of bytes.

    >>> size(0), size(1500), size(5 * 1024**2)
    ('0 bytes', '1.5 KiB', '5.0 MiB')
    """
    if value is None or not math.isfinite(value):
        return "–"
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:.1f} {unit}"
    return f"{value:.0f} bytes"


def when(at: float | None, now: float) -> Markup:
    """A time as an age, with the exact time on hover; "in …" for the future."""
    if at is None or not math.isfinite(at) or not 0 <= at < 253_370_000_000:
        return Markup("–")
    exact = datetime.fromtimestamp(at, UTC)
    distance = now - at
    whole = _roughly(math.floor(abs(distance)))
    text = "now" if abs(distance) < 1 else f"{whole} ago" if distance > 0 else f"in {whole}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(), exact.strftime("%Y-%m-%d %H:%M:%S UTC"), text
    )


def _roughly(seconds: float) -> str:
    """An age as `age` in app.js writes it: in one unit if that counts to ten, else in two.

    >>> [_roughly(v) for v in (42, 125, 1604, 7300, 40_000)]
    ['42 s', '2 min 5 s', '26 min', '2 h 1 min', '11 h']
    """
    parts = age(seconds).split()
    return " ".join(parts[:2] if int(parts[0]) >= 10 else parts)


def state_badge(state: str) -> Markup:
    """The state of a job, target or worker as a coloured word."""
    return Markup('<span class="badge tone-{}">{}</span>').format(TONES.get(state, "grey"), state)


def dollars(value: float) -> str:
    """An amount of money.

    >>> dollars(0.0004), dollars(0.256), dollars(1234.5)
    ('< $0.01', '$0.26', '$1,234')
    """
    if 0 < value < 0.01:
        return "< $0.01"
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def counted(count: int, what: str, capped: bool = False) -> str:
    """A number of things, in words; capped: there may be more.

    >>> counted(1, "job"), counted(12_000, "job", capped=True)
    ('1 job', '12,000+ jobs')
    """
    return f"{count:,}{'+' if capped else ''} {what}{'' if count == 1 and not capped else 's'}"


def jobs_in(stats: Stats, state: State) -> str:
    """The number of jobs in a state in few characters; "+" if there may be more."""
    return compact(getattr(stats, state)) + ("+" if state in stats.capped else "")


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a percentage.

    >>> percent(0.0512), percent(None)
    ('5.1 %', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value * 100:.{digits}f} %"


def one_line(text: object, limit: int = 160) -> str:
    """Text without line breaks, cut to a length."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "compact": compact,
    "age": age,
    "size": size,
    "when": when,
    "counted": counted,
    "jobs_in": jobs_in,
    "dollars": dollars,
    "percent": percent,
    "one_line": one_line,
    "state_badge": state_badge,
}
GLOBALS: Mapping[str, Any] = {"TONES": TONES, "escape": escape}
