"""Which database an outbox is in, so that a put on a connection to another one is refused.

A database is identified by the number of its cluster and its own within it. Names of hosts and
databases are not enough, because the user's connection may go through a pooler. A copy of a whole
cluster has the same numbers and is not recognised as another one.
"""

from __future__ import annotations

import logging
import threading

import psycopg
from psycopg.conninfo import make_conninfo

from pollwise.outbox.writers.common import POSTGRES_IDENTITY

#: How long connecting may take, in seconds.
CONNECT_WITHIN = 3

logger = logging.getLogger("pollwise")


class PostgresIdentity:
    """The identity of the database at a conninfo, read once, by a connection of its own.

    known: reading it takes no time.
    """

    def __init__(self, conninfo: str, url: str) -> None:
        self._conninfo = make_conninfo(conninfo, connect_timeout=CONNECT_WITHIN)
        self._url = url
        self._lock = threading.Lock()
        self._found: str | None = None
        self.known: bool = False

    def read(self) -> str | None:
        """The identity; None if it could not be read, and then puts are not checked."""
        with self._lock:
            if not self.known:
                self._found = self._ask()
                self.known = True
            return self._found

    def forget(self) -> None:
        """Read it again next time: the database may have been replaced by an upgrade."""
        self.known = False

    def _ask(self) -> str | None:
        try:
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                found = connection.execute(f"SELECT {POSTGRES_IDENTITY}".encode()).fetchone()
                return None if found is None else str(found[0])
        except psycopg.Error as error:
            logger.warning(
                "%s cannot be reached from here, so puts are not checked to be in this database: "
                "%s", self._url, str(error).strip().partition("\n")[0],
            )  # fmt: skip
            return None
