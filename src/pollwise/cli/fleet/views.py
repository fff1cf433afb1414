"""The output of `pollwise fleet status` and `top`: the stalest targets first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pollwise.cli.live import fitted_table
from pollwise.cli.output import NOTHING, out, rounded, visible
from pollwise.fleet.goals import last_poll, unpolled
from pollwise.fleet.locations.values import LOCATION
from pollwise.fleet.stores.base import FleetNode
from pollwise.fleet.views import (
    TargetState,
    counted_targets,
    few_locations,
    stalest_first,
    summary,
)

#: Words shown for states. A closed breaker lets polls through, but next to open ports "closed"
#: reads like a failure.
WORDS = {"closed": "healthy", "open": "broken"}
#: The same in full, for one target.
PHRASES = {
    "closed": "healthy",
    "confirming": "confirming (it failed, and is polled again at once)",
    "backing off": "backing off",
    "open": "broken (its breaker is open: it is polled less and less often)",
    "half-open": "half-open (one poll is let through to see whether it is back)",
    "dead": "dead (it failed for long, and a success brings it back)",
}
STYLES = {
    "healthy": "green",
    "confirming": "yellow",
    "backing off": "yellow",
    "broken": "red",
    "half-open": "yellow",
    "dead": "bold red",
    "paused": "dim",
    "quiet": "dim",
    "new": "dim",
}
COLUMNS = ("target", "type", "state", "last success", "next", "every", "reading")
#: The columns on a screen that is narrower than WIDE.
NARROW = ("state", "last success", "next", "target")
WIDE = 72
NUMERIC = ("last success", "next", "every")
#: Lines of a live view that are not targets: figures, nodes, the table's head, how many more
#: targets, and the key to quit.
FRAME = 6


@dataclass(frozen=True)
class FleetSnapshot:
    """The state of a fleet at one time: its targets and its nodes.

    start: the command that polls it. nodes: None if the store does not know.
    alerts: number of open alerts, at most 1,000; None if they were not counted, or are not kept.
    unsent: number of notices that could not be sent; outbox: the URL of the outbox that has them.
    """

    start: str
    targets: Sequence[TargetState]
    now: float
    nodes: Sequence[FleetNode] | None = None
    alerts: int | None = None
    unsent: int = 0
    outbox: str = ""

    @property
    def notice(self) -> str | None:
        """Warning if no node polls, else None."""
        return (
            None
            if self.nodes or self.nodes is None
            else unpolled(self.targets, self.now, self.start)
        )

    def facts(self) -> dict[str, Any]:
        nodes = [
            {"node": each.name, "lasts": each.lasts, "held": each.held, "location": each.location}
            for each in self.nodes or ()
        ]
        counted = {"open_alerts": self.alerts, "unsent_notices": self.unsent}
        return {
            **summary(self.targets),
            **({} if self.alerts is None else counted),
            "nodes": nodes,
            "running": None if self.nodes is None else bool(self.nodes),
            "last_poll_at": last_poll(self.targets),
        }


def frame(
    snapshot: FleetSnapshot, rows: int | None, width: int | None = None, *, live: bool = False
) -> RenderableType:
    """A whole view: figures, then the table with at most `rows` targets.

    width: width of the screen. live: it must fit the screen, and a key ends it.
    """
    parts: list[RenderableType] = [headline(snapshot)]
    if snapshot.notice is not None:
        cut: Any = {"no_wrap": True, "overflow": "ellipsis"} if live else {}
        parts.append(Text(snapshot.notice, "bold red", **cut))
    # What targets say of locations can be older than a node that has just started.
    locations = {each.location for each in snapshot.nodes or ()}
    if snapshot.nodes:
        named = locations != {LOCATION}
        listed = ", ".join(
            visible(each.name) + (f" at {visible(each.location)}" if named else "")
            + f" ({each.held})"
            for each in snapshot.nodes
        )  # fmt: skip
        parts.append(Text(f"nodes: {listed}", no_wrap=True, overflow="ellipsis"))
    living = [
        each.living_locations
        for each in snapshot.targets
        if each.living_locations and each.living_locations >= len(locations)
    ]
    if living:
        parts.append(Text(few_locations(living), "bold red"))
    if snapshot.alerts:
        what = "1 open alert" if snapshot.alerts == 1 else f"{snapshot.alerts} open alerts"
        parts.append(Text(f"{what}: see `pollwise fleet alerts`", "bold red"))
    if snapshot.unsent:
        what = "1 notice" if snapshot.unsent == 1 else f"{snapshot.unsent} notices"
        why = f"see `pollwise outbox dead {shlex.quote(snapshot.outbox)}`, and retry or drop them"
        parts.append(Text(f"{what} could not be sent: {why}", "bold red"))
    ordered = stalest_first(snapshot.targets)
    shown = ordered if rows is None else ordered[: max(rows, 1)]
    narrow = width is not None and width < WIDE
    parts.append(table(shown, snapshot.now, NARROW if narrow else COLUMNS))
    if len(shown) < len(ordered):
        parts.append(Text(f"… and {len(ordered) - len(shown)} more", "dim"))
    if live:
        parts.append(Text("q quits", "dim"))
    return Group(*parts)


def fitting(snapshot: FleetSnapshot) -> RenderableType:
    """A view that fits the screen, for `watch`."""
    return frame(snapshot, max(out.size.height - FRAME, 1), out.size.width, live=True)


def headline(snapshot: FleetSnapshot) -> Text:
    figures = summary(snapshot.targets)
    states = figures["states"]
    broken = states["open"] + states["half-open"]
    parts: list[tuple[str, str]] = [
        (counted_targets(figures["targets"]), "bold"),
        (f"{figures['due']} due", "yellow" if figures["overdue"] else ""),
        (f"{figures['stale']} stale", "yellow" if figures["stale"] else ""),
        (f"{broken} broken", "red" if broken else ""),
        (f"{figures['dead']} dead", "bold red" if figures["dead"] else ""),
        (f"{figures['paused']} paused", ""),
        (f"{figures['never']} never", ""),
    ]
    if figures["quiet"]:
        parts.append((f"{figures['quiet']} in quiet hours", ""))
    if figures["pending"]:
        pending = figures["pending"]
        parts.append((f"{pending} pending {'order' if pending == 1 else 'orders'}", "magenta"))
    text = Text(no_wrap=True, overflow="ellipsis")
    for place, (words, style) in enumerate(parts):
        text.append(" · " if place else "")
        text.append(words, style)
    return text


def table(targets: Sequence[TargetState], now: float, columns: Sequence[str] = COLUMNS) -> Table:
    """One line for each target; the last column is cut if there is no room."""
    every = (dict(zip(COLUMNS, cells(each, now), strict=True)) for each in targets)
    return fitted_table(columns, [[cell[c] for c in columns] for cell in every], NUMERIC)


def cells(each: TargetState, now: float) -> list[Text]:
    text = each.error if each.failures and each.error else each.summary
    state = word(each)
    return [
        Text(visible(each.name)),
        Text(visible(each.type)),
        _with_pending(Text(state, STYLES.get(state, "")), each),
        Text("never" if each.staleness is None else f"{rounded(each.staleness)} ago",
             "yellow" if each.stale else ""),
        Text(coming(each, now)),
        Text(rounded(each.interval) if each.interval else NOTHING),
        Text(visible(text or ""), "red" if each.failures else ""),
    ]  # fmt: skip


def _with_pending(text: Text, each: TargetState) -> Text:
    """The state, and the orders that no node carried out yet."""
    if each.pending:
        text.append(f" ({', '.join(dict.fromkeys(each.pending))} pending)", "magenta")
    return text


def word(each: TargetState) -> str:
    """Its state in one word."""
    if each.paused:
        return "paused"
    if each.state == "closed" and each.plan == "quiet":
        return "quiet"
    if each.polled_at is None and each.state == "closed":
        return "new"
    return WORDS.get(each.state, each.state)


def phrase(each: TargetState) -> str:
    """Its state, explained."""
    known = word(each)
    explained = PHRASES.get(each.state, each.state)
    if each.paused:
        return "paused" if each.state == "closed" else f"paused; {explained}"
    if each.plan == "quiet":
        return f"{explained}; not polled in its quiet hours"
    return "new (not polled yet)" if known == "new" else explained


def coming(each: TargetState, now: float) -> str:
    if each.next_at is None:
        return NOTHING
    left = each.next_at - now
    if each.plan == "overdue":
        return f"late {rounded(-left)}" if left < 0 else "late"
    return "now" if left <= 0 else f"in {rounded(left)}"
