"""Presets: settings that belong together, below the settings file.

`[fleet] preset = "pulse"` sets the values of PRESETS["pulse"]; whatever you set yourself, in any
layer, is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollwise.settings.layers import Layer

KEY = "fleet.preset"
#: The settings of each preset, by key.
PRESETS: Mapping[str, Mapping[str, object]] = {
    # The rules of Pulse's document. Its max_interval of 5 min cannot keep its goal, so that is
    # shorter: even two failures in a row leave a target younger than 45 s.
    "pulse": {
        "fleet.polling.base_interval": "10s",
        "fleet.polling.min_interval": "5s",
        "fleet.polling.max_interval": "20s",
        "fleet.confirmations": 0,
        "fleet.backoff_delay": "5s",
        "fleet.backoff_multiplier": 2,
        "fleet.backoff_jitter": 0.2,
        "fleet.backoff_max_delay": "5m",
        "fleet.breaker_failures": 3,
        "fleet.breaker_delay": "20s",
        "fleet.breaker_max_delay": "5m",
        "fleet.dead_after": 5,
        "fleet.recheck": "30m",
        "fleet.max_due": 50,
        "fleet.max_staleness": "45s",
    },
}


def chosen_preset(layers: Sequence[Layer]) -> tuple[dict[str, object], str]:
    """The settings of the preset that the layers name, and their origin; none if there is no such
    preset, which is reported elsewhere.

    The preset of the highest layer counts, as everywhere.
    """
    named = [layer[KEY] for layer in layers if KEY in layer]
    name = str(named[-1].value).strip().lower() if named else ""
    return dict(PRESETS.get(name, {})), f"preset {name}, {named[-1].origin}" if named else ""
