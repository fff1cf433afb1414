"""Typed values as JSON and back, through pydantic.

Import it only where a value is not plain JSON, or where a function has annotations to respect:
pydantic takes long to import, and plain payloads do not need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from pollwise.errors import HandlerError, PayloadError

#: How many problems of a payload are named.
PROBLEMS_SHOWN = 5
#: Values that pydantic would write as JSON, but that do not come back as they were.
_REFUSED = (bytes, bytearray, memoryview, complex, set, frozenset, Iterator)


def encode_typed(value: Any, **how: Any) -> str:
    """JSON text of a value that has models, dataclasses, Decimals and the like in it.

    how: arguments of `json.dumps`. Raises TypeError or ValueError for what is not JSON.
    """
    return json.dumps(value, default=_plainer, **how)


def _plainer(value: Any) -> Any:
    """A value made of plainer ones; `json.dumps` calls it again until all of them are JSON."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"the Decimal {value} is not a number")
        return str(value)
    if is_dataclass(value) and not isinstance(value, type) and not _is_pydantic(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, _REFUSED):
        raise TypeError(f"a value of the type {type(value).__name__} is not JSON")
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(problems_of(error)) from None


def _is_pydantic(value: object) -> bool:
    return hasattr(type(value), "__pydantic_serializer__")


class TypedValue:
    """JSON values as a type, such as a model: checked on the way in.

    hint: the type. what: what is checked, for errors: "the handler 'mail'".
    """

    def __init__(self, hint: Any, what: str) -> None:
        self._what = what
        with explained(f"the payload of {what}"):
            self._adapter: TypeAdapter[Any] = TypeAdapter(hint)

    def read(self, payload: Any, *, secret: bool = False) -> Any:
        """The payload as the type; a PayloadError without its values if it does not fit."""
        try:
            return self._adapter.validate_python(payload)
        except ValidationError as error:
            raise PayloadError(
                f"the payload does not fit {self._what}: {problems_of(error, secret=secret)}"
            ) from None


def problems_of(error: Exception, *, secret: bool = False) -> str:
    """The problems that pydantic found, in one line, without values, which may be secret.

    secret: without the words of validators either, which may quote a value.
    """
    if not isinstance(error, ValidationError):
        return type(error).__name__ if secret else str(error).splitlines()[0]
    found = error.errors(include_url=False, include_input=False, include_context=False)
    said = [
        f"{'.'.join(map(str, each['loc'])) or 'the value'}: {each['type' if secret else 'msg']}"
        for each in found[:PROBLEMS_SHOWN]
    ]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def hints_of(what: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as types; a HandlerError if they cannot be read."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise HandlerError(
            f"the annotations of {what} cannot be read: {error}. Import the types also "
            "when the program runs, not only for type checking"
        ) from None


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say whose annotation it is that pydantic cannot use."""
    try:
        yield
    except PydanticUserError as error:
        raise HandlerError(f"{what} cannot be JSON: {error.message.splitlines()[0]}") from None
