"""How often workers may register: a broken one must not fill the store with workers."""

from __future__ import annotations

from collections import OrderedDict

from pollwise.controller.http.answers import too_soon
from pollwise.runtime.clock import Clock

#: How many workers of one name may register at once with a token, and how many names are known.
AT_ONCE = 100.0
#: How many workers of any name may register at once with a token, and how many more a second.
TOKEN_AT_ONCE = 500.0
TOKEN_PER_SECOND = 10.0
REMEMBERED = 10_000


class RegistrationLimit:
    """Allows one registration in `least` seconds for a token and name, and a number at once.

    A token also has a limit for all names together: each worker is a row of the store for a month.
    """

    def __init__(self, least: float, clock: Clock) -> None:
        self._least = least
        self._clock = clock
        #: By token and name, and by token: how many more at once, as of when.
        self._left: OrderedDict[tuple[str, str | None], tuple[float, float]] = OrderedDict()

    def admit(self, who: str, name: str) -> None:
        """Count a registration; raises `HttpError` (429) for one too many."""
        least, now = self._least, self._clock.now()
        if not least:
            return
        of_name = self._refilled((who, name), least, AT_ONCE)
        of_token = self._refilled((who, None), 1 / TOKEN_PER_SECOND, TOKEN_AT_ONCE)
        for left, every, what in (
            (of_name, least, f"{name!r} registers"),
            (of_token, 1 / TOKEN_PER_SECOND, "this token registers workers"),
        ):
            if left < 1.0:
                raise too_soon((1.0 - left) * every, every, what)
        self._left[who, name] = (of_name - 1.0, now)
        self._left[who, None] = (of_token - 1.0, now)

    def _refilled(self, key: tuple[str, str | None], every: float, most: float) -> float:
        """How many more may register at once now."""
        now = self._clock.now()
        left, at = self._left.pop(key, (most, now))
        left = min(left + (now - at) / every, most)
        self._left[key] = (left, now)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return left
