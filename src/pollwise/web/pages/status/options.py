"""What a status page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pollwise.errors import ConfigError

#: Shows all groups, and the targets that have none.
ALL = "*"
#: The longest title, in characters.
TITLE_MAX = 120


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """What everybody may see, without a login.

    groups: the groups of targets; "*" for all targets.
    title: the title of the page.
    reasons: also show why a target is down. The text may reveal internal details, such as names of
        hosts.
    notes: also show what operators note when they acknowledge an alert.
    """

    groups: Sequence[str]
    title: str = "Status"
    reasons: bool = False
    notes: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.groups, str) or not all(isinstance(each, str) for each in self.groups):
            raise ConfigError(f"groups = {self.groups!r:.80} must be a list of names of groups")
        if not self.groups:
            raise ConfigError(
                "a status page needs the groups that everybody may see; name them, or give '*' for "
                "all targets"
            )
        if not self.title.strip() or len(self.title) > TITLE_MAX:
            raise ConfigError(
                f"title = {self.title!r:.80} must be text of 1 to {TITLE_MAX} characters"
            )

    def shows(self, group: str | None) -> bool:
        """True if the targets of a group are shown."""
        return ALL in self.groups or (group is not None and group in self.groups)
