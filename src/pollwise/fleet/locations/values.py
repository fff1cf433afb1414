"""The values of locations: what each saw of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pollwise.durations import shown
from pollwise.errors import ConfigError

#: The location of a node that was given none.
LOCATION = "default"
#: The longest name of a location, and the most locations that a target may ask for.
LOCATION_MAX = 64
CONFIRM_FROM_MAX = 16
#: Results of at most this many locations are kept for a target: the newest.
RESULTS_MAX = 32


class LocationResult(NamedTuple):
    """The last poll of a target from one location.

    at: when it ended, in seconds since 1970. took: its seconds. error: empty if it succeeded.
    """

    at: float
    ok: bool
    took: float
    error: str = ""


class LocationAsk(NamedTuple):
    """A target that another location asks this one to poll. asked_at: by the store's clock."""

    target: str
    asked_at: float


class LocationAnswer(NamedTuple):
    """What a location saw when it was asked. age: seconds since then."""

    target: str
    location: str
    asked_at: float
    age: float
    ok: bool
    took: float
    error: str


@dataclass(slots=True)
class SeenFrom:
    """What is known of a target from each location.

    living: number of locations with a living node, if these are fewer than the target asks for.
    """

    results: dict[str, LocationResult] = field(default_factory=dict)
    living: int | None = None

    def note(self, location: str, result: LocationResult) -> None:
        before = self.results.pop(location, None)
        self.results[location] = result if before is None or result.at >= before.at else before
        while len(self.results) > RESULTS_MAX:
            del self.results[min(self.results, key=lambda name: self.results[name].at)]

    def kept(self) -> dict[str, Any]:
        """As JSON, for the store and for views."""
        results = [
            {"location": name, **self.results[name]._asdict()} for name in sorted(self.results)
        ]
        return {"results": results, "living": self.living}

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> SeenFrom:
        results = {
            each["location"]: LocationResult(each["at"], each["ok"], each["took"], each["error"])
            for each in kept["results"]
        }
        return cls(results, kept["living"])


def checked_location(name: object) -> str:
    """The name of a location, if it can be one."""
    fits = isinstance(name, str) and name.isprintable() and 0 < len(name.strip()) <= LOCATION_MAX
    if not fits or not isinstance(name, str):
        raise ConfigError(
            f"location = {shown(name)} must be a printable name of 1 to {LOCATION_MAX} characters"
        )
    return name.strip()
