"""How long things took that were waited for, by name: in this process, or in a file.

Each wait gets a copy of what is known, and adds its own run at the end. So threads and processes
may wait for things of the same name at the same time.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

from pollwise.core.forecast.durations import Durations
from pollwise.durations import shown
from pollwise.errors import ConfigError, PollwiseError, StoreUnavailable
from pollwise.runtime.home import watch_forks
from pollwise.runtime.jobs import storable

#: How many names are remembered in a process or in a file. Those that learned nothing for the
#: longest time are forgotten first.
NAMES_MAX = 200
#: The maximum length of a name.
NAME_LENGTH_MAX = 200

logger = logging.getLogger("pollwise")

Change = Callable[[Durations], None]


class RunHistories(ABC):
    """Remembers how long things took, by name.

    blocks: True if the calls wait for a disk.
    """

    blocks: ClassVar[bool] = False

    @abstractmethod
    def load(self, name: str) -> Durations:
        """A copy of what is known of this name."""

    @abstractmethod
    def learn(self, name: str, change: Change, now: float) -> None:
        """Apply a change to what is known of this name. now: seconds since 1970."""


class MemoryHistories(RunHistories):
    """Histories in the memory of this process. Any thread may use them."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._changing = threading.Lock()
        watch_forks(self)

    def after_fork(self) -> None:
        """A thread of the parent may hold the lock."""
        self._changing = threading.Lock()

    def load(self, name: str) -> Durations:
        state = self._states.get(name)
        return Durations() if state is None else Durations.load(state)

    def learn(self, name: str, change: Change, now: float) -> None:
        with self._changing:
            history = self.load(name)
            change(history)
            self._states[name] = history.dump()
            self._states.move_to_end(name)
            while len(self._states) > NAMES_MAX:
                self._states.popitem(last=False)


class _OwnHistory(RunHistories):
    """The caller's own durations; the name does not matter."""

    def __init__(self, history: Durations) -> None:
        self._history = history

    def load(self, name: str) -> Durations:
        return Durations.load(self._history.dump())

    def learn(self, name: str, change: Change, now: float) -> None:
        change(self._history)


#: The histories of waits that name no other place.
MEMORY = MemoryHistories()


class WaitHistory:
    """The history of one wait: what is known when it begins, and what it adds at its end."""

    def __init__(self, name: str | None, given: Durations | str | Path | None) -> None:
        self._name = name or ""
        self._histories: RunHistories
        if isinstance(given, Durations):
            self._histories = _OwnHistory(given)
            return
        if given is not None and not isinstance(given, (str, Path)):
            raise ConfigError(
                f"history = {shown(given)} is of type {type(given).__name__}; give Durations(), a "
                "path or a URL such as sqlite:///durations.db"
            )
        if not self._name:
            raise ConfigError(
                "a wait that learns needs a name for what it waits for: give `name`, or "
                "`history=Durations()` to keep the durations yourself"
            )
        if len(self._name) > NAME_LENGTH_MAX:
            raise ConfigError(
                f"name = {shown(name)} has {len(self._name)} characters; {NAME_LENGTH_MAX} is the "
                "maximum. Give all things of one kind the same name"
            )
        if storable(self._name) != self._name:
            raise ConfigError(f"name = {shown(name)} has characters that no file can keep")
        self._histories = MEMORY
        if given is not None:
            from pollwise.waiting.history_file import SqliteHistories

            self._histories = SqliteHistories(_place(given))

    @property
    def blocks(self) -> bool:
        """True if `load` and `learn` wait for a disk."""
        return self._histories.blocks

    def load(self) -> Durations:
        """The known durations; none if a file is locked: the wait can begin without them."""
        try:
            return self._histories.load(self._name)
        except StoreUnavailable as error:
            logger.warning("durations of %r: %s", self._name, error)
            return Durations()

    def learn(self, change: Change, now: float) -> None:
        """Add a run. An error is only logged: the result of the wait must not be lost."""
        try:
            self._histories.learn(self._name, change, now)
        except PollwiseError as error:
            logger.warning("durations of %r: this run is not learned: %s", self._name, error)


def _place(given: str | Path) -> str | Path:
    """The path in a URL, or the path itself."""
    if isinstance(given, Path) or "://" not in given:
        return given
    scheme, _, rest = given.partition("://")
    path = unquote(rest[1:])
    if scheme != "sqlite" or not rest.startswith("/") or not path or "?" in rest or "#" in rest:
        raise ConfigError(  # without the rest, which may contain a password
            f"history = {scheme}://… names no file; give the path of one, or a URL such as "
            "sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return path
