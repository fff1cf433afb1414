"""settings.POLLWISE: where the queue is, and how workers and relays run.

POLLWISE = {
    "queue": {"database": "default", "keep": "7d"},  # or the URL of a queue
    "modules": ["shop.emails"],  # more modules with tasks
    "worker": {"concurrency": 16},  # as [worker] in pollwise.toml
    "outbox": {"target": "shop.events:outbox"},  # and more, as [outbox] in pollwise.toml
    "codec": {"payloads": "aes-gcm", "key_file": "/etc/pollwise/keys"},  # as [codec]
}

Keys are checked when Django starts. They are below POLLWISE_* variables and above pollwise.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from pollwise.errors import ConfigError, MissingExtra, did_you_mean
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.redact import split_url
from pollwise.settings import Settings, load
from pollwise.settings.codecs import codec_of

try:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.signals import setting_changed
    from django.db import DEFAULT_DB_ALIAS, connections
    from django.dispatch import receiver
except ImportError as error:
    raise MissingExtra("pollwise.contrib.django", "django") from error

#: The setting that everything here is read from.
NAME = "settings.POLLWISE"
#: The tables that pollwise.toml has too.
TABLES = ("worker", "outbox", "codec")
KEYS = ("queue", "modules", *TABLES)
#: What a setting of a queue may be.
_QUEUE_IS = 'a URL, {"url": …, "on_commit": alias} or {"database": alias}'


@dataclass(frozen=True)
class QueuePlace:
    """Where the queues of a backend are.

    url: of the store; None if it is a database of Django.
    database: the alias of that database.
    on_commit: for other stores, the alias of the database whose commit puts jobs; None puts them at
        once, even if a transaction is open.
    options: further options of the queue's URL.
    """

    url: str | None = field(default=None, repr=False)
    database: str | None = None
    on_commit: str | None = DEFAULT_DB_ALIAS
    options: Mapping[str, Any] = field(default_factory=dict)

    def url_of(self, queue: str) -> str:
        """The URL of the queue with this name."""
        if self.database is not None:
            return database_url(self.database, queue=queue, **self.options)
        assert self.url is not None  # noqa: S101 - one of the two is given
        return with_options(self.url, {"queue": queue, **self.options})


def queue_url(queue: str = "default") -> str:
    """The URL of a queue of settings.POLLWISE, for `pollwise.Worker` and `pollwise.open`.

    It may hold a password: do not log it.
    """
    return default_place().url_of(queue)


def database_url(alias: str = DEFAULT_DB_ALIAS, **options: Any) -> str:
    """The URL of a database in settings.DATABASES, for a queue or an outbox in it.

    options: of the URL, such as keep="7d". It may hold a password: do not log it.
    """
    connection = _connection(alias)
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        if connection.is_in_memory_db():
            raise ConfigError(
                f"the database {alias!r} is in memory, so no worker can open it; give it a file "
                "(for tests: DATABASES[…]['TEST']['NAME'])"
            )
        place = f"sqlite:///{quote(str(Path(name).absolute()))}"
    elif connection.vendor == "postgresql":
        place, theirs = _postgres(connection)
        options = {**theirs, **options}
    else:
        raise ConfigError(
            f"the database {alias!r} is {connection.display_name}; a queue can be in PostgreSQL or "
            f'SQLite. Give {NAME}["queue"] the URL of another store'
        )
    return with_options(place, options)


def _connection(alias: object) -> Any:
    if not isinstance(alias, str) or alias not in connections.settings:
        advice = did_you_mean(str(alias), connections.settings)
        raise ConfigError(f"DATABASES has no {alias!r}; {advice}")
    return connections[alias]


def _postgres(connection: Any) -> tuple[str, dict[str, str]]:
    """The URL of a Postgres database, and its options, as Django connects to it."""
    from pollwise.storage.postgres.conninfo import connection_options

    try:
        params = connection.get_connection_params()
    except ImproperlyConfigured as error:
        raise ConfigError(f"the database {connection.alias!r}: {error}") from error
    known = {name for name in connection_options() if name != "client_encoding"}
    given = {name: str(value) for name, value in params.items() if name in known and value}
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        given["options"] = f"{given.get('options', '')} -c role={escaped}".strip()
    user, password = given.pop("user", ""), given.pop("password", "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    database = quote(given.pop("dbname", ""), safe="")
    return f"postgresql://{login}{'@' if login else ''}/{database}", given


def with_options(url: str, options: Mapping[str, Any]) -> str:
    """The URL with more options behind the question mark."""
    if not options:
        return url
    query = urlencode({key: str(value) for key, value in options.items()}, quote_via=quote)
    return f"{url}{'&' if split_url(url).query else '?'}{query}"


def given() -> Mapping[str, Any]:
    """settings.POLLWISE, with keys that are known."""
    found = getattr(settings, "POLLWISE", {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{NAME} must be a dictionary, not {type(found).__name__}")
    for key in found:
        if key not in KEYS:
            raise ConfigError(f"{NAME} has no key {key!r}; {did_you_mean(str(key), KEYS)}")
    for key in TABLES:
        if not isinstance(found.get(key, {}), Mapping):
            raise ConfigError(
                f'{NAME}["{key}"] must be a dictionary, as the table [{key}] of pollwise.toml'
            )
    return found


def default_place() -> QueuePlace:
    """Where settings.POLLWISE says that the queues are."""
    found = given()
    if "queue" not in found:
        raise ConfigError(f'{NAME} has no "queue"; give it {_QUEUE_IS}')
    return place_of(found["queue"], f'{NAME}["queue"]')


def place_of(value: object, where: str) -> QueuePlace:
    """Read a setting of a queue. where: what it is called in errors."""
    if isinstance(value, str):
        return _checked(QueuePlace(url=value), where)
    if not isinstance(value, Mapping) or ("url" in value) == ("database" in value):
        shown = "a dictionary with both or none" if isinstance(value, Mapping) else type(value)
        raise ConfigError(f"{where} must be {_QUEUE_IS}, not {shown}")
    options = {key: each for key, each in value.items() if key not in ("url", "database")}
    if "database" in value:
        if "on_commit" in options:
            raise ConfigError(
                f"{where}: leave out `on_commit`: jobs are in the database of `database`, and are "
                "put in its transactions"
            )
        _connection(value["database"])
        return _checked(QueuePlace(database=value["database"], options=options), where)
    on_commit = options.pop("on_commit", DEFAULT_DB_ALIAS)
    if on_commit is not None:
        _connection(on_commit)
    return _checked(QueuePlace(value["url"], on_commit=on_commit, options=options), where)


def _checked(place: QueuePlace, where: str) -> QueuePlace:
    asked = dict(parse_qsl(split_url(place.url).query)) if isinstance(place.url, str) else {}
    if "queue" in {**asked, **place.options}:
        raise ConfigError(
            f"{where}: leave out `queue`: the names of queues come from QUEUES in settings.TASKS"
        )
    return place


def task_modules() -> list[str]:
    """The modules with tasks, besides those called `tasks`."""
    modules = given().get("modules", [])
    if isinstance(modules, str) or not all(isinstance(each, str) for each in modules):
        raise ConfigError(f'{NAME}["modules"] must be a list of the names of modules')
    return list(modules)


def outbox_target() -> str | None:
    """The outbox that `manage.py pollwise_outbox` runs, as module:name."""
    target = given().get("outbox", {}).get("target")
    if target is not None and not isinstance(target, str):
        raise ConfigError(f'{NAME}["outbox"]["target"] must be text, as "shop.events:outbox"')
    return target


@lru_cache(maxsize=1)
def codec() -> CodecChain | None:
    """What encodes payloads and results. It is read once: every put asks for it."""
    return codec_of(loaded())


@receiver(setting_changed)
def _read_again(*, setting: str, **_: Any) -> None:
    """After tests have overridden settings."""
    if setting == "POLLWISE":
        codec.cache_clear()


def loaded(overrides: Mapping[str, object] | None = None, runs: str | None = None) -> Settings:
    """All settings of Pollwise: those of settings.POLLWISE, files, variables and arguments.

    runs: as for `pollwise.settings.load`.
    """
    found = given()
    tables: dict[str, dict[str, object]] = {key: dict(found[key]) for key in TABLES if key in found}
    tables.get("outbox", {}).pop("target", None)
    read = load(overrides=overrides, application=tables, application_name=NAME, runs=runs)
    if read.is_set("worker.queue"):
        origin = read.origins()["worker.queue"]
        raise ConfigError(
            f'worker.queue ({origin}) has no effect in Django; give {NAME}["queue"] instead, so '
            "that views and workers use the same queue"
        )
    return read
