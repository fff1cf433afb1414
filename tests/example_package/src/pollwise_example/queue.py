from __future__ import annotations

from pollwise.errors import ConfigError
from pollwise.queues import StoreUrl
from pollwise.testing import MemoryQueue


class RoomQueue(MemoryQueue):
    """A queue in memory, the same for all of this process that open its URL: room://kitchen."""

    room = ""

    @property
    def url(self) -> str:
        return f"room://{self.room}?queue={self.name}"


_rooms: dict[tuple[str, str], RoomQueue] = {}


def open_room(at: StoreUrl) -> RoomQueue:
    """Options of the URL: queue, keep and max_payload_bytes, as of all queues."""
    room = at.parts.netloc
    if not room or at.parts.path:
        raise ConfigError(f"{at.shown} does not name a room; write room://kitchen")
    options = at.options(("queue", "keep", "max_payload_bytes"))
    place = room, options["name"]
    if place not in _rooms:
        _rooms[place] = RoomQueue(clock=at.clock, **options)
        _rooms[place].room = room
    return _rooms[place]
