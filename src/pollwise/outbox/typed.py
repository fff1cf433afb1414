"""Typed handlers: the payload of a record as the type that a parameter is annotated with.

    @outbox.handle("order.placed")
    async def mail(order: OrderPlaced): ...

    @outbox.handle("order.placed")
    async def index(order: OrderPlaced, record: Record): ...

A parameter without an annotation, or annotated with `Record`, gets the record as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from pollwise.errors import HandlerError, PayloadError, Reject
from pollwise.outbox.records import Record
from pollwise.runtime.executor.handlers import is_async, signature_of


class RecordUnfit(Reject):
    """The payload does not fit the handler here: a failed attempt, which another version may take.

    Its text may be read, as that of every `Reject`: it quotes nothing of an encrypted payload.
    """


def takes_payload(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler as a function of a record; the same function if it takes no typed payload.

    A payload that does not fit is a failed attempt: while a program is deployed, a relay of its
    other version may take the record next.
    """
    try:
        required = _required(function)
    except (TypeError, ValueError):  # not callable, or a builtin
        return function
    if not 1 <= len(required) <= 2 or all(map(_is_surely_record, required)):
        return function
    from pollwise.runtime.payloads.typed import (  # only typed handlers need pydantic
        TypedValue,
        hints_of,
    )

    what = f"the handler {name!r}"
    hints = hints_of(what, _annotated(function))
    typed = [each for each in required if not _is_record(hints.get(each.name, Any))]
    if not typed:
        return function
    if len(typed) > 1:
        raise HandlerError(
            f"{what} takes {typed[0].name} and {typed[1].name}, but a record has one payload; "
            "annotate one of them with pollwise.Record"
        )
    payload = typed[0]
    value = TypedValue(hints[payload.name], what)

    def arguments(record: Record) -> tuple[list[Any], dict[str, Any]]:
        try:
            read = value.read(record.payload, secret=record.sealed is not None)
        except PayloadError as error:
            raise RecordUnfit(str(error)) from None
        given = {each.name: read if each is payload else record for each in required}
        named = {each.name for each in required if each.kind is each.KEYWORD_ONLY}
        places = [one for name, one in given.items() if name not in named]
        return places, {name: given[name] for name in named}

    if is_async(function):

        async def call(record: Record) -> Any:
            places, named = arguments(record)
            return await cast("Any", function(*places, **named))

        return functools.update_wrapper(call, function)

    def call_plain(record: Record) -> Any:
        places, named = arguments(record)
        return function(*places, **named)

    return functools.update_wrapper(call_plain, function)


def _required(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that a call must give."""
    return [
        each
        for each in signature_of(function).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def _is_surely_record(parameter: inspect.Parameter) -> bool:
    """True if that is certain without reading annotations that are text."""
    hint = parameter.annotation
    if isinstance(hint, str):
        return hint.rpartition(".")[2] in ("Record", "Any", "object")
    return hint is parameter.empty or _is_record(hint)


def _is_record(hint: Any) -> bool:
    return hint is Any or any(hint is each for each in Record.__mro__)


def _annotated(function: Any) -> Callable[..., Any]:
    """What has the annotations of a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    return cast(
        "Callable[..., Any]",
        function if hasattr(function, "__annotations__") else type(function).__call__,
    )
