"""What all channels share: a name, a time limit, and quiet hours.

A channel sends one notice at a time and does not retry: it raises `ChannelError`, and the outbox of
the alerts tries again. A notice may be sent twice after a crash, with the same `id`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypedDict

from pollwise.alerts.quiet import Quiet
from pollwise.alerts.rules import SEVERITIES
from pollwise.alerts.values import Notice
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ChannelError, ConfigError, did_you_mean
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_name


class ChannelOptions(TypedDict, total=False):
    """The arguments of every channel.

    timeout: how long sending a notice may take, including the connection; 10 s by default.
    quiet: hours in which nothing is sent: "22:00-06:00 Europe/Berlin". Notices wait for their end.
    quiet_except: severities that are sent at once even then.
    """

    timeout: Duration
    quiet: str | Quiet | None
    quiet_except: Sequence[str]
    clock: Clock | None


class Channel(ABC):
    """A place that notices are sent to.

    name: its name in rules, commands and the progress of notices.
    """

    def __init__(self, name: str, options: ChannelOptions) -> None:
        unknown = set(options) - set(ChannelOptions.__annotations__)
        if unknown:
            raise ConfigError(
                f"{type(self).__name__} has no argument {min(unknown)!r}; besides its own it "
                f"takes {', '.join(ChannelOptions.__annotations__)}"
            )
        self.name: str = checked_name(name, "the name of a channel", ConfigError)
        self.timeout: float = seconds(options.get("timeout", "10s"), "timeout", positive=True)
        quiet = options.get("quiet")
        self.quiet: Quiet | None = Quiet.parsed(quiet) if isinstance(quiet, str) else quiet
        self.quiet_except: frozenset[str] = frozenset(_severities(options.get("quiet_except", ())))
        self.clock: Clock = options.get("clock") or Clock()

    async def send(self, notice: Notice) -> None:
        """Send a notice; return when the other side has accepted it. Raises ChannelError."""
        try:
            async with asyncio.timeout(self.timeout):
                await self._send(notice)
        except TimeoutError:
            raise ChannelError(
                f"{self} did not answer within {self.timeout:g} s; it may or may not have the "
                "notice. Check its load, or raise `timeout`."
            ) from None

    def not_before(self, severity: str, at: float) -> float | None:
        """When a notice of this severity may be sent, in seconds since 1970; None for at once."""
        if self.quiet is None or severity in self.quiet_except:
            return None
        return self.quiet.ends(at)

    async def close(self) -> None:  # noqa: B027 - most channels keep nothing open
        """Release what it holds; the next notice opens it again."""

    @abstractmethod
    async def _send(self, notice: Notice) -> None:
        """Send a notice within the time limit, which the caller keeps."""

    def __str__(self) -> str:
        return f"channel {self.name!r}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _severities(given: object) -> Sequence[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(
            f"quiet_except = {shown(given)} must be a list of severities, such as ['critical']"
        )
    for each in given:
        if each not in SEVERITIES:
            raise ConfigError(
                f"quiet_except: {shown(each)} is not a severity; "
                f"{did_you_mean(str(each), SEVERITIES)}"
            )
    return given
