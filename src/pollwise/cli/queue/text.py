"""Payloads as text of one line."""

from __future__ import annotations

import json
from typing import Any


def encoded(payload: Any) -> str:
    return json.dumps(payload, ensure_ascii=False)


def shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
