"""Reads the tables of channels, as a file gives them; reports everything that is wrong at once.

[channel.ops]
type = "apprise"
url = "${OPS_URL}"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pollwise.alerts.channels.apprise import AppriseChannel
from pollwise.alerts.channels.base import Channel, ChannelOptions
from pollwise.alerts.channels.function import FunctionChannel
from pollwise.alerts.channels.put import PutChannel
from pollwise.alerts.channels.webhook import WebhookChannel
from pollwise.durations import shown
from pollwise.errors import PollwiseError, did_you_mean

#: The types of channels in a file.
TYPES: Mapping[str, type[Channel]] = {
    "apprise": AppriseChannel,
    "function": FunctionChannel,
    "put": PutChannel,
    "webhook": WebhookChannel,
}
#: Keys of every type. A clock is for tests only.
_COMMON = frozenset(ChannelOptions.__annotations__) - {"clock"}


def read_channel(name: str, table: object, wrong: Callable[[str], None]) -> Channel | None:
    """The channel of a table, or None; `wrong` is called with each thing that is wrong with it."""
    if not isinstance(table, Mapping):
        wrong(f"= {shown(table)} is not a table; write [channel.{name}] and its type")
        return None
    given = dict(table)
    kind = given.pop("type", None)
    made = TYPES.get(kind) if isinstance(kind, str) else None
    if made is None:
        listed = f"one of {', '.join(TYPES)}"
        near = did_you_mean(str(kind).lower(), TYPES, f"give {listed}")
        what = f"= {shown(kind)} is not a type of channel; {near}"
        wrong(f"type is missing: {listed}" if kind is None else f"type {what}")
        return None
    needed, known = _keys(made)
    problems = [
        f"{key} is not a key of a channel of type {kind}; {did_you_mean(key, sorted(known))}"
        for key in given
        if key not in known
    ]
    problems += [f"{key} is missing" for key in needed if key not in given]
    channel = None if problems else _made(made, name, given, needed, problems)
    for each in problems:
        wrong(each)
    return channel


def _made(
    made: type[Channel], name: str, given: dict[str, Any], needed: list[str], problems: list[str]
) -> Channel | None:
    def attempt(chosen: dict[str, Any]) -> Channel | str:
        try:
            return made(name, **chosen)
        except (PollwiseError, ImportError, TypeError, ValueError) as error:
            return str(error)

    together = attempt(given)
    if isinstance(together, Channel):
        return together
    # Each key by itself, so that all errors are found.
    base = {key: given[key] for key in needed}
    alone = [attempt({**base, key: each}) for key, each in given.items()]
    found = dict.fromkeys(each for each in alone if isinstance(each, str))
    problems.extend(found or [together])
    return None


def _keys(made: type[Channel]) -> tuple[list[str], set[str]]:
    """The keys that a type needs, and all that it knows."""
    parameters = list(inspect.signature(made).parameters.values())[1:]  # without its name
    own = [each for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    needed = [each.name for each in own if each.default is inspect.Parameter.empty]
    return needed, {each.name for each in own} | _COMMON
