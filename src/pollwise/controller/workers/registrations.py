"""How often workers may register: a broken one must not fill the store with workers."""

from __future__ import annotations

from collections import OrderedDict

from pollwise.controller.http.answers import too_soon
from pollwise.runtime.clock import Clock

#: How many workers of one name may register at once with a token, and how many names are known.
AT_ONCE = 100.0
REMEMBERED = 10_000


class RegistrationLimit:
    """Allows one registration in `least` seconds for a token and name, and a number at once."""

    def __init__(self, least: float, clock: Clock) -> None:
        self._least = least
        self._clock = clock
        #: By token and name: how many more at once, as of when.
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def admit(self, who: str, name: str) -> None:
        """Count a registration; raises `HttpError` (429) for one too many."""
        least, now = self._least, self._clock.now()
        if not least:
            return
        left, at = self._left.pop((who, name), (AT_ONCE, now))
        left = min(left + (now - at) / least, AT_ONCE)
        self._left[who, name] = (left if left < 1.0 else left - 1.0, now)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        if left < 1.0:
            raise too_soon((1.0 - left) * least, least, f"{name!r} registers")
