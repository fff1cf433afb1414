"""Checks that a server can have a queue."""

from __future__ import annotations

from pollwise.errors import SchemaError, StoreError
from pollwise.queues.redis.store import LAYOUT, LAYOUT_WITH_FLOWS, SCRIPTS
from pollwise.storage.redis.connections import Connections
from pollwise.storage.redis.scripts import script

#: The oldest Redis that has all commands of the scripts.
OLDEST_REDIS = (6, 2)


async def check_server(connections: Connections, tag: str, *, allow_eviction: bool) -> None:
    """Refuse a server that is too old, that may evict jobs, or whose keys belong to others."""
    facts = await _facts(connections)
    version = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    oldest = ".".join(map(str, OLDEST_REDIS))
    if numbers and numbers < OLDEST_REDIS:
        raise StoreError(
            f"{connections.address} is Redis {version}; Pollwise needs Redis {oldest} or newer, "
            "or Valkey"
        )
    policy = facts.get("maxmemory_policy", "")
    # volatile-* evicts only keys with a time to live, which jobs do not have.
    if policy.startswith("allkeys") and facts.get("maxmemory") != "0" and not allow_eviction:
        raise StoreError(
            f"{connections.address} evicts keys when its memory is full (maxmemory-policy "
            f"{policy}), and jobs with them. Set maxmemory-policy to noeviction, use another "
            "server, or accept the loss with allow_eviction=true."
        )
    found = await connections.run_script(script(SCRIPTS, "check"), tag)
    if isinstance(found, list):
        key, kind = (part.decode() for part in found)
        raise SchemaError(
            f"{connections.address}: the key {key!r} is a {kind} of another program; choose "
            "another `prefix` or queue name"
        )
    if found and int(found) > LAYOUT_WITH_FLOWS:
        raise SchemaError(
            f"{connections.address}: the queue has layout {found.decode()}; this code knows up to "
            f"{LAYOUT_WITH_FLOWS}. Upgrade pollwise, or use another queue."
        )
    if found and int(found) < LAYOUT:
        raise SchemaError(
            f"{connections.address}: the queue has layout {found.decode()} of an older pollwise; "
            f"this code needs {LAYOUT}. Work the queue off with that version, then delete its "
            f"keys, or use another queue."
        )


async def _facts(connections: Connections) -> dict[str, str]:
    """The server's INFO; empty if this user may not read it."""
    facts = {}
    for section in ("server", "memory"):
        try:
            text = await connections.command("INFO", section)
        except StoreError as error:
            if error.permanent and "permission" in str(error):
                continue
            raise
        lines = (line.partition(":") for line in text.decode().splitlines())
        facts.update({name: value for name, _, value in lines})
    return facts
