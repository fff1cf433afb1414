"""Payloads and results as JSON text."""

from __future__ import annotations

import json
from typing import Any

from pollwise.errors import PayloadError
from pollwise.runtime.payloads.depth import DEPTH_MAX, deeper_than


def encode(payload: Any, kind: str, what: str = "payload") -> str:
    """Encode a payload or a result as JSON text, or say what in it is not JSON.

    Models of pydantic, dataclasses, Decimal, datetime, UUID and Enum are written as pydantic
    writes them: a Decimal as a string.
    """
    try:
        try:
            text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except TypeError:
            from pollwise.runtime.payloads.typed import (
                encode_typed,  # plain payloads need no pydantic
            )

            text = encode_typed(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            payload = json.loads(text)
        text.encode()  # half of a surrogate pair is text in Python and nowhere else
        if text.count("[") + text.count("{") > DEPTH_MAX and deeper_than(payload, DEPTH_MAX):
            raise ValueError(f"it nests deeper than {DEPTH_MAX} levels")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"the {what} of kind {kind!r} is not JSON: {error}. Use only dict, list, str, int, "
            "float (no NaN), bool and None; models of pydantic and dataclasses; Decimal, datetime, "
            "UUID and Enum. Encode anything else yourself."
        ) from None
