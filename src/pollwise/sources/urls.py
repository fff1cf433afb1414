"""From a URL to a source: `open_source("folder:///inbox")`.

So a shell can poll without a line of Python. A source that needs more than a URL can say, such as a
query, is made from its class.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlencode

from pollwise import sources
from pollwise.errors import ConfigError
from pollwise.fleet.definitions.variables import replaced
from pollwise.plugins import PluginGroup
from pollwise.plugins.urls import PartUrl, open_part, split_part_url
from pollwise.runtime.clock import Clock
from pollwise.sources.base import Source
from pollwise.sources.cursors import CursorStore


@dataclass(frozen=True, slots=True)
class SourceUrl(PartUrl):
    """The URL of a source in its parts, for the function that opens its scheme.

    address: the URL without its options.
    """

    noun = "source"
    example = "redis://cache/0?stream=orders"
    common: ClassVar[Mapping[str, type]] = {"name": str, "limit": int}

    cursor: str | CursorStore | None = None

    def options(self, known: Mapping[str, type] | None = None, *needed: str) -> dict[str, Any]:
        """The options as arguments of a source, those that every source takes included: name,
        limit, cursor and clock.

        known: its own options, each with its type: str, int or bool.
        needed: those that must be given.
        """
        given: dict[str, Any] = self._arguments(known, needed)
        given["cursor"] = self.cursor
        return given


def _same(at: SourceUrl, options: dict[str, Any]) -> tuple[str, ...]:
    return (at.address,)


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How the URLs of a source of Pollwise are read.

    source: the name of its class.
    place: makes the first arguments of the class from a URL and its options.
    """

    source: str
    known: Mapping[str, type]
    needed: tuple[str, ...] = ()
    place: Callable[[SourceUrl, dict[str, Any]], tuple[str, ...]] = field(default=_same)

    def __call__(self, at: SourceUrl) -> Source[Any]:
        options = at.options(self.known, *self.needed)
        place = self.place(at, options)
        opened: Source[Any] = getattr(sources, self.source)(*place, **options)
        return opened


def _folder(at: SourceUrl, options: dict[str, Any]) -> tuple[str]:
    path = unquote(at.parts.path[1:])
    if at.parts.netloc or not path or "\0" in path:
        raise ConfigError(
            "the URL of a folder must be folder:///relative/path or folder:////absolute/path"
        )
    return (path,)


def _bucket(at: SourceUrl, options: dict[str, Any]) -> tuple[str]:
    theirs = {key: options.pop(key) for key in _OF_STORES if key in options}
    return (f"{at.address}?{urlencode(theirs)}" if theirs else at.address,)


def _redis(at: SourceUrl, options: dict[str, Any]) -> tuple[str, ...]:
    return at.address, options.pop("stream")


def _web(at: SourceUrl, options: dict[str, Any]) -> tuple[str]:
    if "token" in options:
        options["headers"] = {"authorization": f"Bearer {options.pop('token')}"}
    return (at.address.partition("+")[2],)


def _imap(at: SourceUrl, options: dict[str, Any]) -> tuple[str, ...]:
    parts = at.parts
    user, address = parts.username, parts.netloc.rpartition("@")[2]
    if not user or not parts.password:
        raise ConfigError(
            f"{parts.scheme}:// needs a user and a password; write "
            f"'{parts.scheme}://user:${{MAIL_PASSWORD}}@host/INBOX' in single quotes, and set the "
            "environment variable"
        )
    if parts.scheme == "imap":  # a password is not sent in clear text unless that is asked for
        options["tls"] = False
        options.setdefault("starttls", True)
    folder = unquote(parts.path[1:]) or "INBOX"
    return address, unquote(user), unquote(parts.password), folder


_OF_STORES = {"region": str, "endpoint": str, "account": str, "timeout": str}
_BUCKET = _Scheme("Bucket", {"ordered": bool, **_OF_STORES}, (), _bucket)
_REDIS = _Scheme("RedisStream", {"stream": str, "timeout": str}, ("stream",), _redis)
_OF_REQUESTS = {
    "token": str, "timeout": str, "max_bytes": int, "redirects": int, "verify": bool, "ca": str,
}  # fmt: skip
_FEED = _Scheme("Feed", _OF_REQUESTS, (), _web)
_JSON = _Scheme(
    "HttpJson",
    {
        "items": str, "id": str, "field": str, "since": str, "link": bool, "next": str,
        "next_param": str, "page": str, "first_page": int, **_OF_REQUESTS,
    },
    (),
    _web,
)  # fmt: skip
_MAIL = {
    "idle": bool, "body_max": int, "timeout": str, "server_name": str, "verify": bool, "ca": str,
}  # fmt: skip


def _refused(what: str) -> Callable[[SourceUrl], Source[Any]]:
    def refuse(at: SourceUrl) -> Source[Any]:
        raise ConfigError(f"{at.parts.scheme}:// {what}")

    return refuse


_QUERY = _refused(
    "needs a query and a watermark, which a URL cannot contain; use pollwise.sources.SqlRows in "
    "Python"
)
_PLAIN_WEB = _refused(
    "does not say what the server answers with; write json+https:// or feed+https://, with the "
    "same rest"
)
#: The functions that open the URLs of each scheme.
SCHEMES: Mapping[str, Callable[[SourceUrl], Source[Any]]] = {
    "folder": _Scheme("Folder", {"pattern": str, "quiet": str, "watch": bool}, (), _folder),
    **dict.fromkeys(("s3", "gs", "az", "file"), _BUCKET),
    **dict.fromkeys(("redis", "rediss"), _REDIS),
    "imaps": _Scheme("ImapFolder", _MAIL, (), _imap),
    "imap": _Scheme("ImapFolder", {"starttls": bool, **_MAIL}, (), _imap),
    **dict.fromkeys(("feed+https", "feed+http"), _FEED),
    **dict.fromkeys(("json+https", "json+http"), _JSON),
    **dict.fromkeys(("https", "http"), _PLAIN_WEB),
    **dict.fromkeys(("sqlite", "postgresql", "postgres"), _QUERY),
}
#: Schemes that packages add: functions of a `SourceUrl`.
ADDED = PluginGroup(
    "pollwise.sources",
    "source scheme",
    lambda: SCHEMES,
    lambda _, thing: "" if callable(thing) else "is not a function of a SourceUrl",
)


def open_source(
    url: str, *, cursor: str | CursorStore | None = None, clock: Clock | None = None
) -> Source[Any]:
    """The source at a URL. It connects with its first poll.

        async with open_source("folder:///inbox?pattern=*.csv", cursor="sqlite:///cursors.db") as s:
            async for files in pollwise.poll(s, Adaptive("1s", "1m")): ...

    `folder:///relative` or `folder:////absolute` with `pattern=*.csv`, `quiet=1s` and
    `watch=false`; `s3://bucket/prefix`, `gs://`, `az://` and `file:///folder` with `ordered=true`
    and the options of a queue there; `redis://host/0?stream=orders` with `timeout=10s`;
    `imaps://user:password@host/INBOX`, or `imap://` for STARTTLS, with `idle=false`,
    `body_max=…`, `timeout`, `server_name`, `verify` and `ca`. For `feed+https://host/path` and
    `json+https://host/path`, options follow a `#`, because the query belongs to the server:
    `#token=…` for a bearer token, `timeout`, `max_bytes`, `redirects`, `verify`, `ca`, and those of
    `HttpJson`, such as `#items=data&field=updated_at`. All take `name=…`, and `limit=…` if they are
    not JSON. Installed packages can add schemes.

    `${NAME}` stands for an environment variable, whose value is never shown.

    cursor: where the cursor is kept, as for all sources.
    """
    unset: list[str] = []
    given = replaced(
        {"url": url},
        os.environ,
        lambda _, name: unset.append(name),
        lambda value: quote(value, safe=""),
    )
    if unset:
        raise ConfigError(
            f"the URL of a source uses ${{{unset[0]}}}, and this environment variable is not set"
        )
    at = SourceUrl(split_part_url(given["url"], SourceUrl), clock, cursor)
    return open_part(at, Source, SCHEMES, ADDED)  # type: ignore[type-abstract]
