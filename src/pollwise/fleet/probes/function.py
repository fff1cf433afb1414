"""Any Python function as a probe.

    [[target]]
    name = "open orders"
    type = "function"
    call = "shop.watch:open_orders"

The function takes (target, context), or only the target, or nothing, and returns the reading.
A plain function runs in a thread: at the timeout it is not stopped, but its result is ignored.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from pollwise.fleet.probes.options import ProbeOptions
from pollwise.fleet.targets import Probe, ProbeContext, Reading, Target
from pollwise.runtime.executor.handlers import takes


def make(target: Target) -> Probe:
    """The function that the option `call` names as "module:name"."""
    options = ProbeOptions(target)
    function = _named(options)
    probe = None
    if function is not None:
        try:
            probe = as_probe(function)
        except TypeError as error:
            options.wrong("call", f"= {options.text('call')!r} {error}")
    options.finish()
    assert probe is not None  # noqa: S101 (else finish() raised)
    return probe


def as_probe(function: Callable[..., Any]) -> Probe:
    """A probe that calls any function, async or plain, of (target, context), (target) or ().

    TypeError if it needs other arguments.
    """
    try:
        return _adapted(function)  # targets with the same function share one
    except TypeError:
        return _adapted.__wrapped__(function)  # it is not hashable, or raises the same error again


@lru_cache(1024)
def _adapted(function: Callable[..., Any]) -> Probe:
    takes = _arguments(function)
    waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (an object may have an async __call__)
    )
    if waits and takes == 2:
        return function

    async def probe(target: Target, context: ProbeContext) -> Reading:
        given = (target, context)[:takes]
        if waits:
            return Reading.of(await function(*given))
        answer = await asyncio.to_thread(function, *given)
        if inspect.isawaitable(answer):
            answer = await answer
        return Reading.of(answer)

    return probe


def _arguments(function: Callable[..., Any]) -> int:
    if not callable(function):
        raise TypeError("is not a function")
    try:
        for count in (2, 1, 0):
            if takes(function, count):
                return count
    except ValueError:  # some functions written in C have no signature
        return 2
    raise TypeError("must take (target, context), or (target), or nothing")


def _named(options: ProbeOptions) -> Callable[..., Any] | None:
    given = options.text("call", needed=True)
    if not given:
        return None
    module, _, name = given.partition(":")
    if not module or not name:
        options.wrong("call", f"= {given!r} must be written as 'module:function'")
        return None
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the module, which may raise anything
        options.wrong("call", f"= {given!r} cannot be imported: {type(error).__name__}: {error}")
        return None
    if not callable(found):
        options.wrong("call", f"= {given!r} is not a function")
        return None
    return found  # type: ignore[no-any-return]
