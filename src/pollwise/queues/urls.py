"""From a queue URL to a queue: `pollwise.open("sqlite:///jobs.db?queue=mail")`.

`SCHEMES` maps each scheme to the function that opens it and knows its options. A store is imported
when its scheme is first used, so that nobody needs the extras of other stores. If an extra is
missing, the store's own module says so. Packages add schemes by entry points (`ADDED`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from pollwise.errors import ConfigError
from pollwise.plugins import PluginGroup
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.payloads.envelope import CodecChain, Codecs
from pollwise.runtime.redact import has_late_at, split_url, without_user

EXAMPLES = (
    "sqlite:///jobs.db", "postgresql://app@db/shop", "redis://cache/0", "memory://"
)  # fmt: skip
_COMMON = ("queue", "keep", "max_payload_bytes")
_POSTGRES = (*_COMMON, "schema", "listen", "timeout", "connections")
_REDIS = (*_COMMON, "prefix", "allow_eviction", "timeout")
_OBJECTS = {
    "s3": (*_COMMON, "region", "endpoint", "timeout"),
    "gs": (*_COMMON, "timeout"),
    "az": (*_COMMON, "account", "endpoint", "timeout"),
    "file": _COMMON,
}
_HTTP = (*_COMMON, "token_file", "ca_file", "timeout")
_SQS = ("region", "endpoint", "dead", "timeout", "linger", "keep", "max_payload_bytes")


def open_queue(
    url: str,
    *,
    clock: Clock | None = None,
    create: bool = True,
    codec: Codecs | CodecChain | None = None,
) -> Queue:
    """Open the queue at `url`. The store is first contacted at the first call.

    create: create a missing store (a database file); if False, a missing one is an error.
    codec: encodes payloads and results, such as `AesGcm("keys.txt")`; several in a list.

    `memory://`, `sqlite:///relative.db` and `sqlite:////absolute.db` with `?queue=name`,
    `keep=7d`, `max_payload_bytes=65536`, and for SQLite `synchronous=normal` and `watch=50ms`.
    `postgresql://user@host/database` with `schema=pollwise`, `timeout=30s`, `connections=4`,
    `listen` and the options of libpq (`sslmode=…`); `redis://host/0` and `rediss://` with
    `prefix=pollwise`, `allow_eviction=true` and `timeout=30s`.
    `s3://bucket/prefix` with `region=eu-west-1` and `endpoint=https://…`, `gs://bucket/prefix`,
    `az://container/prefix` with `account=name`, each with `timeout=10s`; `file:///folder`.
    `sqs://name` or the URL of an SQS queue, with `region=eu-west-1`, `endpoint=http://…`,
    `dead=name`, `timeout=10s` and `linger=20s`.
    `http://host:8420` or `https://…`, a controller, with `token_file=path`, `ca_file=path`
    and `timeout=30s`. Installed packages can add schemes; `pollwise doctor` lists them.
    """
    at = parse_url(url, clock=clock, create=create)
    scheme = at.parts.scheme
    queue = (SCHEMES.get(scheme) or ADDED.get(scheme))(at)
    if not isinstance(queue, Queue):
        raise ConfigError(f"the function that opens {scheme}:// returned {queue!r:.80}, no Queue")
    queue.use_codec(codec)
    return queue


#: The schemes of stores that can list their queues.
LISTED = ("sqlite", "postgresql", "postgres", "redis", "rediss", "s3", "gs", "az", "file")


def url_of_queue(url: str, name: str) -> str:
    """The URL of another queue in the same store, without the `keep` of this one."""
    place, _, query = url.partition("?")
    options = [
        each
        for each in parse_qsl(query, keep_blank_values=True)
        if each[0] not in ("queue", "keep")
    ]
    return f"{place}?{urlencode([*options, ('queue', name)], quote_via=quote)}"


def names_no_queue(url: str) -> bool:
    """True if the store of a URL may have many queues, and the URL names none of them."""
    parts = split_url(url)
    return parts.scheme in LISTED and "queue" not in dict(parse_qsl(parts.query))


def parse_url(
    url: str,
    schemes: Iterable[str] | None = None,
    examples: Sequence[str] = EXAMPLES,
    *,
    clock: Clock | None = None,
    create: bool = True,
    what: str = "queue",
) -> StoreUrl:
    """Split and check a URL. what: the noun for errors, such as queue.

    schemes: those allowed; by default those of queues, with those that packages add.
    """
    added = ADDED if schemes is None else None
    schemes = SCHEMES if schemes is None else schemes
    if not isinstance(url, str) or "://" not in url:
        raise ConfigError(
            f"{_shown(url)} is not {_a(what)} URL; give one like {', '.join(examples[:-1])} "
            f"or {examples[-1]}"
        )
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may contain the password
        raise ConfigError(
            f"{_shown(url)} is not {_a(what)} URL: its host cannot be read; write special "
            "characters in a user or a password as %XX"
        ) from None
    if parts.scheme not in schemes and not (added and added.get(parts.scheme)):
        plain = [each for each in parts.scheme.split("+") if each in schemes]
        if len(plain) == 1 and "+" in parts.scheme:  # as SQLAlchemy and Celery write them
            raise ConfigError(
                f"{_a(what)} URL names no driver: write {plain[0]}:// instead of {parts.scheme}://"
            )
        known = ", ".join([*schemes, *(added.names() if added else ())])
        raise ConfigError(
            f"no {what} has the scheme {parts.scheme!r}; known: {known} (for example {examples[0]})"
        )
    if parts.fragment:
        raise ConfigError(f"{_shown(url)} has a '#'; write it as %23 if it is part of a name")
    return StoreUrl(url, parts, clock, create, what)


def _a(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A URL in its parts, with the clock and the `create` flag for opening its queue or outbox."""

    url: str
    parts: SplitResult
    clock: Clock | None
    create: bool
    what: str = "queue"

    def options(self, known: Iterable[str]) -> dict[str, Any]:
        """The options of the URL, each known and given once; `name` is the name of the queue."""
        known = tuple(known)
        options: dict[str, Any] = {"name": "default"}
        for key, value in self.query():
            if key not in known:
                if has_late_at(self.parts):
                    raise ConfigError(
                        f"{self.what} URLs of {self.parts.scheme} do not take an option of this "
                        "one, which is hidden because an '@' follows the host; write special "
                        "characters in a user or a password as %XX"
                    )
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise ConfigError(
                    f"{self.what} URLs of {self.parts.scheme} do not take {key!r}; {hint}"
                )
            name = "name" if key == self.what else key
            options[name] = _whole(key, value) if key in _WHOLE else value
        return options

    def query(self) -> list[tuple[str, str]]:
        """The options behind the question mark, in order."""
        given: dict[str, str] = {}
        for key, value in parse_qsl(self.parts.query, keep_blank_values=True):
            if key in given:
                told = f": {given[key]!r} and {value!r}" if key in _COMMON else ""
                raise ConfigError(f"{key} is given twice{told}; keep one")
            given[key] = value
        return list(given.items())

    def without_query(self, left: Iterable[tuple[str, str]] = ()) -> str:
        """The URL with only these options."""
        query = urlencode(list(left), quote_via=quote)
        start = f"{self.parts.scheme}://{self.parts.netloc}{self.parts.path}"
        return f"{start}?{query}" if query else start

    @property
    def shown(self) -> str:
        return _shown(self.url)


def _memory(at: StoreUrl) -> Queue:
    from pollwise.queues.memory import MemoryQueue

    options = at.options(_COMMON)
    if at.parts.netloc or at.parts.path:
        raise ConfigError(f"{at.shown}: memory has no path; name a queue by memory://?queue=name")
    return MemoryQueue(clock=at.clock, **options)


def _sqlite(at: StoreUrl) -> Queue:
    from pollwise.queues.sqlite.queue import SqliteQueue

    path, options = sqlite_place(at)
    return SqliteQueue(path, clock=at.clock, create=at.create, **options)


def sqlite_place(at: StoreUrl) -> tuple[str, dict[str, Any]]:
    """The path of the file, and the options."""
    options = at.options((*_COMMON, "synchronous", "watch"))
    if at.parts.netloc or len(at.parts.path) < 2:
        raise ConfigError(
            f"{at.shown} does not name a file; write sqlite:///relative.db or "
            "sqlite:////absolute/path.db"
        )
    path = unquote(at.parts.path[1:])
    if path == ":memory:" or "\0" in path:
        raise ConfigError(f"{at.shown} does not name a file; for a queue in memory, use memory://")
    return path, options


def _postgres(at: StoreUrl) -> Queue:
    from pollwise.queues.postgres.queue import PostgresQueue

    conninfo, options = postgres_place(at)
    return PostgresQueue(conninfo, clock=at.clock, **options)


def postgres_place(at: StoreUrl) -> tuple[str, dict[str, Any]]:
    """The conninfo, and Pollwise's own options."""
    from pollwise.storage.postgres.conninfo import connection_options

    theirs = connection_options()
    options = at.options((*_POSTGRES, *theirs))
    passed = [(key, value) for key, value in at.query() if key in theirs]
    for key, _ in passed:
        del options[key]
    return at.without_query(passed), options


def _redis(at: StoreUrl) -> Queue:
    from pollwise.queues.redis.queue import RedisQueue

    options = at.options(_REDIS)
    if "allow_eviction" in options:
        options["allow_eviction"] = _flag("allow_eviction", options["allow_eviction"])
    return RedisQueue(at.without_query(), clock=at.clock, **options)


def _objects(at: StoreUrl) -> Queue:
    from pollwise.queues.objects.opening import open_objects, refuse_shards

    refuse_shards(key for key, _ in at.query())
    options = at.options(_OBJECTS[at.parts.scheme])
    return open_objects(at.parts, at.clock, at.create, options)


def _sqs(at: StoreUrl) -> Queue:
    from pollwise.queues.sqs.queue import open_sqs

    options = at.options(_SQS)
    del options["name"]  # the URL already names the queue
    return open_sqs(at.parts, at.clock, options)


def is_sqs(parts: SplitResult) -> bool:
    """True for an SQS queue. The URL of one ends in an account and a name."""
    *_, account, _ = ("", "", *parts.path.rstrip("/").split("/"))
    theirs = (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return parts.scheme == "sqs" or theirs or (account.isascii() and account.isdigit())


def _http(at: StoreUrl) -> Queue:
    """Open a controller's queue, or an SQS queue given by its URL."""
    if is_sqs(at.parts):
        return _sqs(at)
    if "token" in dict(at.query()):
        raise ConfigError(
            f"{at.shown}: a token does not belong in a URL, because URLs end up in logs; write "
            "token_file=path, or set POLLWISE_TOKEN_FILE or POLLWISE_TOKEN"
        )
    given = [key for key, _ in at.query() if key in _SQS and key not in _HTTP]
    if given:
        raise ConfigError(
            f"{at.shown} is the URL of a controller, but {given[0]!r} is an option of SQS; the URL "
            "of an SQS queue ends in an account and a name, like "
            "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"
        )
    from pollwise.queues.http.queue import HttpQueue

    options = at.options(_HTTP)
    return HttpQueue(at.without_query(), clock=at.clock, **options)


SCHEMES: dict[str, Callable[[StoreUrl], Queue]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
    **dict.fromkeys(_OBJECTS, _objects),
    "sqs": _sqs,
    "https": _http,
    "http": _http,
}


def _wrong_opener(name: str, thing: Any) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", name):
        return "has a name that is not a URL scheme: lower-case letters, digits and '+', '-', '.'"
    return "" if callable(thing) else "is not a function that returns a Queue for a StoreUrl"


#: Schemes that packages add: functions like those of `SCHEMES`.
ADDED = PluginGroup("pollwise.queues", "queue scheme", lambda: SCHEMES, _wrong_opener)

#: Options that are whole numbers.
_WHOLE = ("max_payload_bytes", "connections")


def _whole(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{key} = {value!r} is not a whole number") from None


def _flag(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{key} = {value!r} must be true or false")
    return value.lower() == "true"


def _shown(url: object) -> str:
    return repr(without_user(url) if isinstance(url, str) else url)
