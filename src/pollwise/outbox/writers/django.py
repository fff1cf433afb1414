"""Writers for Django's connections: `django.db.connection`, or one of `connections`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pollwise.outbox.writers.common import PlainWriter, Rows, pyformat


class DjangoWriter(PlainWriter):
    """A connection such as `connections["default"]`."""

    library = "Django"
    begin = "Put within `with transaction.atomic():`, where your own data is saved."

    @property
    def dialect(self) -> str:
        return cast("str", self.tx.vendor)

    def in_transaction(self) -> bool:
        return bool(self.tx.in_atomic_block) or not self.tx.get_autocommit()

    def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        with self.tx.cursor() as cursor:
            if values:
                cursor.execute(pyformat(statement), dict(values))
            else:
                cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]


class DjangoProxyWriter(DjangoWriter):
    """`django.db.connection`, the proxy for the connection of this thread."""

    def __init__(self, tx: Any) -> None:
        from django.db import connections

        super().__init__(connections[tx.alias])
