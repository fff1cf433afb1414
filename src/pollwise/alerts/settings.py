"""The alerts of a fleet: its channels, and which of them hear of what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pollwise.alerts.rules import AlertRule
from pollwise.alerts.texts import Template
from pollwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pollwise.alerts.channels.base import Channel


@dataclass(frozen=True, slots=True, init=False)
class Alerts:
    """Channels, and who hears of what.

        Alerts([Webhook("ops", "https://hooks.example/…")], to=["ops"])

    channels: where notices are sent; their names are unique.
    to: channels of rules that name none.
    groups: the same for the targets of a group, by its name.
    link: a template for a link to the target, such as "https://status.example/t/{target}".
    """

    channels: Mapping[str, Channel]
    to: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    link: Template | None = None

    def __init__(
        self,
        channels: Iterable[Channel] = (),
        *,
        to: Sequence[str] | str = (),
        groups: Mapping[str, Sequence[str]] | None = None,
        link: str | Template | None = None,
    ) -> None:
        by_name: dict[str, Channel] = {}
        for channel in channels:
            if channel.name in by_name:
                raise ConfigError(f"two channels are named {channel.name!r}; names must be unique")
            by_name[channel.name] = channel
        put = object.__setattr__
        put(self, "channels", by_name)
        put(self, "to", (to,) if isinstance(to, str) else tuple(to))
        put(self, "groups", {group: tuple(names) for group, names in (groups or {}).items()})
        put(self, "link", Template(link, "link") if isinstance(link, str) else link)
        self.check(self.to, "alerts: to")
        for group, names in self.groups.items():
            self.check(names, f"group {group!r}: to")

    def check(self, names: Iterable[str], where: str) -> None:
        """Refuse names of channels that do not exist."""
        for name in names:
            if name not in self.channels:
                known = did_you_mean(name, self.channels, "there are no channels")
                raise ConfigError(f"{where}: there is no channel {name!r}; {known}")

    def route(self, rule: AlertRule, group: str | None) -> tuple[str, ...]:
        """The channels that hear of a rule of a target in this group."""
        if rule.to:
            return rule.to
        return self.groups.get(group, self.to) if group is not None else self.to


#: No channels: alerts are kept and shown, but nothing is sent.
NO_ALERTS = Alerts()
