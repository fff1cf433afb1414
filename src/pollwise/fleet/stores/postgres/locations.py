"""Questions between the locations of nodes in Postgres: calls of a fleet's store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pollwise.fleet.locations.values import LocationAnswer, LocationAsk
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.definitions import storable
from pollwise.storage.postgres.params import flags, number, numbers, text, texts

if TYPE_CHECKING:
    from pollwise.storage.postgres.database import Database

#: How long answers are kept, and after how long a question is too old to be answered, in seconds.
ANSWERS_KEPT = 86_400.0
ASKED_WITHIN = 60.0


class PostgresLocations(FleetStore):
    """The calls for locations; part of the store of a fleet."""

    database: Database

    async def ask_locations(self, names: Sequence[str], location: str) -> float:
        params = [
            text(self.name),
            texts(names),
            text(location),
            number(ANSWERS_KEPT),
            self.database.now(),
        ]
        [(asked_at,)] = await self.database.rows("ask_locations", params, safe=True)
        return float(asked_at)

    async def take_asked(self, location: str, limit: int) -> list[LocationAsk]:
        params = [
            text(self.name),
            text(location),
            number(limit),
            number(ASKED_WITHIN),
            self.database.now(),
        ]
        return [LocationAsk(*row) for row in await self.database.rows("take_asked", params)]

    async def answer_locations(self, answers: Sequence[LocationAnswer]) -> None:
        params = [
            text(self.name),
            texts([each.target for each in answers]),
            texts([each.location for each in answers]),
            numbers([each.asked_at for each in answers]),
            flags([each.ok for each in answers]),
            numbers([each.took for each in answers]),
            texts([storable(each.error) for each in answers]),
            self.database.now(),
        ]
        await self.database.rows("answer_locations", params, safe=True)

    async def location_answers(self, names: Sequence[str]) -> list[LocationAnswer]:
        params = [text(self.name), texts(names), self.database.now()]
        rows = await self.database.rows("location_answers", params, safe=True)
        return [LocationAnswer(*row) for row in rows]
