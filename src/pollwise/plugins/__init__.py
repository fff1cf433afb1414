"""Parts that other packages add by entry points, such as a strategy:

    [project.entry-points."pollwise.strategies"]
    patient = "pollwise_patient:Patient"

Installed packages are read when a name is used that Pollwise does not have itself, and by `pollwise
doctor`. They are never read at import, nor for a built-in name, which no package can replace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from pollwise.errors import ConfigError

#: The beginning of the names of all groups.
PREFIX = "pollwise."
_FILE = "entry_points.txt"


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of an installed package.

    group: its group, such as "pollwise.strategies".
    value: what it names, such as "pollwise_patient:Patient".
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def package(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """One kind of part that packages can add.

    name: the group of the entry points, such as "pollwise.strategies".
    noun: what each is, for errors: "strategy".
    built_in: returns the names that Pollwise has itself.
    problem: says what is wrong with a loaded object, as in "is not a class"; "" if nothing is.
    """

    name: str
    noun: str
    built_in: Callable[[], Collection[str]]
    problem: Callable[[str, Any], str]

    def names(self) -> list[str]:
        """The names that packages add, without those that Pollwise has."""
        own = self.built_in()
        return sorted({each.name for each in self.plugins() if each.name not in own})

    def plugins(self) -> list[Plugin]:
        """All entry points of the group."""
        return [each for each in installed() if each.group == self.name]

    def get(self, name: str) -> Any:
        """The object that a package adds under this name; None if none does.

        ConfigError if it cannot be loaded, or if two packages add it.
        """
        found = None
        for each in self.plugins():
            if each.name in self.built_in():
                warnings.warn(self.not_used(each), UserWarning, stacklevel=2)
            elif each.name == name:
                found = each
        if found is None:
            return None
        self.refuse(found)
        return _loaded(found)[0]

    def loaded(self) -> dict[str, Any]:
        """The parts that packages add, by name; unusable ones are left out with a warning."""
        found: dict[str, Any] = {}
        for name in self.names():
            try:
                found[name] = self.get(name)
            except ConfigError as error:
                warnings.warn(str(error), UserWarning, stacklevel=2)
        return found

    def refuse(self, plugin: Plugin) -> None:
        """ConfigError if this entry point cannot be used."""
        if plugin.name in self.built_in():
            raise ConfigError(self.not_used(plugin))
        same = [each for each in self.plugins() if each.name == plugin.name]
        if len(same) > 1:
            packages = " and ".join(each.package for each in same)
            raise ConfigError(
                f"{len(same)} packages add the {self.noun} {plugin.name!r}: {packages}; uninstall "
                "all but one"
            )
        thing, error = _loaded(plugin)
        if error is not None:
            what = f"importing {plugin.value} raised {type(error).__name__}: {error}"
        else:
            problem = self.problem(plugin.name, thing)
            what = problem and f"{plugin.value} {problem}"
        if what:
            raise ConfigError(
                f"the {self.noun} {plugin.name!r} of {plugin.package} cannot be used: {what}. "
                f"Repair or uninstall {plugin.distribution}."
            ) from error

    def not_used(self, plugin: Plugin) -> str:
        """The warning about a package that adds a name of Pollwise."""
        from pollwise.version import __version__

        return (
            f"{plugin.package} adds the {self.noun} {plugin.name!r}, which pollwise {__version__} "
            "has itself; that of the package is not used"
        )


@cache
def installed() -> tuple[Plugin, ...]:
    """The entry points in all groups of Pollwise, in the order of their groups and names."""
    from importlib.metadata import distribution, distributions

    found: list[Plugin] = []
    for each in distributions():
        package = "an installed package"
        try:
            text = each.read_text(_FILE) or ""
            if PREFIX not in text:
                continue
            name, version = each.name, each.version
            if not name:
                raise ValueError("its METADATA does not name it")
            package = f"{name} {version}"
            # An older version further along the path is not the one that is imported.
            if distribution(name).read_text(_FILE) != text:
                continue
            entries = [entry for entry in each.entry_points if entry.group.startswith(PREFIX)]
            found += [Plugin(e.group, e.name, e.value, name, version) for e in entries]
        except Exception as error:  # files that no build tool wrote must not break others
            warnings.warn(
                f"the entry points of {package} cannot be read and are ignored: "
                f"{type(error).__name__}: {error}",
                UserWarning,
                stacklevel=2,
            )
    # The same folder may be on the path twice.
    return tuple(sorted(set(found), key=lambda it: (it.group, it.name, it.distribution)))


@cache
def _loaded(plugin: Plugin) -> tuple[Any, BaseException | None]:
    """The object, and the error of its import."""
    from importlib.metadata import EntryPoint

    try:
        return EntryPoint(plugin.name, plugin.value, plugin.group).load(), None
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        return None, error


def forget() -> None:
    """Read the installed packages again when a name is next used."""
    installed.cache_clear()
    _loaded.cache_clear()
