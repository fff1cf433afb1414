"""How deep a payload may nest."""

from __future__ import annotations

from typing import Any

#: How deep a payload may nest, so that decoding never depends on the depth of the caller's stack.
DEPTH_MAX = 200


def deeper_than(payload: Any, levels: int) -> bool:
    """True if lists and dicts nest deeper than this."""
    depth, layer = 0, [payload]
    while layer := [value for value in layer if isinstance(value, (dict, list, tuple))]:
        depth += 1
        if depth > levels:
            return True
        layer = [
            child
            for value in layer
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    return False
