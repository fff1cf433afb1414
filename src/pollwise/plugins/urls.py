"""Shared by publishers and sources by URL: the parts of a URL, its options as arguments, and the
choice of the function that opens its scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pollwise.errors import ConfigError, did_you_mean
from pollwise.plugins import PluginGroup
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import HIDDEN, has_late_at

P = TypeVar("P")
U = TypeVar("U", bound="PartUrl")


@dataclass(frozen=True, slots=True)
class PartUrl:
    """A URL in its parts, for the function that opens its scheme.

    noun: what it names, for errors: "publisher".
    common: options that all URLs of this noun take, each with its type: str, int or bool.
    """

    noun: ClassVar[str]
    example: ClassVar[str]
    common: ClassVar[Mapping[str, type]]

    parts: SplitResult
    clock: Clock | None = None

    @property
    def address(self) -> str:
        """The URL without its options."""
        return self.parts._replace(**{self._where: ""}).geturl()

    @property
    def _where(self) -> str:
        """The part with the options: after a '#' if what is before it belongs to the server."""
        scheme = self.parts.scheme.rpartition("+")[2]
        return "fragment" if scheme in ("http", "https") else "query"

    def _arguments(self, known: Mapping[str, type] | None, needed: tuple[str, ...]) -> Any:
        """The options as arguments, the common ones included, and the clock if there is one."""
        own, scheme = {**(known or {}), **self.common}, self.parts.scheme
        if self._where == "query" and self.parts.fragment:
            raise ConfigError(
                f"the options of {self.noun} URLs of {scheme} follow a '?'; write a '#' in a name "
                "as %23"
            )
        given: dict[str, Any] = {}
        for key, text in parse_qsl(getattr(self.parts, self._where), keep_blank_values=True):
            if key not in own:
                advice = did_you_mean(key, own)
                if has_late_at(self.parts):
                    key, advice = HIDDEN, "write special characters in a password as %XX"
                raise ConfigError(f"{self.noun} URLs of {scheme} do not take {key!r}; {advice}")
            if key in given:
                raise ConfigError(
                    f"{key} is given twice in a {self.noun} URL of {scheme}; keep one"
                )
            given[key] = _read(key, text, own[key])
        missing = [key for key in needed if key not in given]
        if missing:
            example = self.example
            if not example.startswith(f"{scheme}:"):
                mark = "#" if self._where == "fragment" else "?"
                example = f"{scheme}://…{mark}" + "&".join(f"{key}=…" for key in missing)
            raise ConfigError(
                f"{self.noun} URLs of {scheme} need {' and '.join(missing)}, as in {example}"
            )
        if self.clock is not None:
            given["clock"] = self.clock
        return given


def _read(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key} = {text!r} must be true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{key} = {text!r} is not a whole number") from None


def split_part_url(url: str, kind: type[PartUrl]) -> SplitResult:
    """The parts of a URL, which has a scheme."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
    except ValueError:  # its message may contain the password
        parts = urlsplit("")
    if not parts.scheme or "://" not in url:
        raise ConfigError(f"expected the URL of a {kind.noun}, such as {kind.example}")
    return parts


def open_part(
    at: U, kind: type[P], schemes: Mapping[str, Callable[[U], P]], added: PluginGroup
) -> P:
    """Open a URL by the function of its scheme; the result must be of this kind."""
    scheme = at.parts.scheme
    opener = schemes.get(scheme) or added.get(scheme)
    if opener is None:
        advice = did_you_mean(scheme, [*schemes, *added.names()])
        raise ConfigError(f"no {at.noun} has the scheme {scheme!r}; {advice}")
    opened = opener(at)
    if not isinstance(opened, kind):
        raise ConfigError(
            f"the function that opens {scheme}:// returned {type(opened).__name__}, no "
            f"{kind.__name__}"
        )
    return opened
