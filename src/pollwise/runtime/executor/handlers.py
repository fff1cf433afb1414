"""Handlers: the function for each kind of job, and how its failures are treated."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, HandlerError, HandlerTimeout
from pollwise.runtime.executor.threads import HandlerThreads
from pollwise.runtime.jobs import checked_name

#: How a failing job is retried unless its handler says otherwise.
JOB_RETRY = Retry.exponential("1s", max_delay="60s", attempts=5, jitter=0.25)

#: How many frames of a handler's error are logged, counted from the innermost.
FRAMES_SHOWN = 8
_OUR_FILES = (str(Path(__file__).parents[2]), asyncio.__path__[0])

Proceed = Callable[[Any], Awaitable[Any]]
Middleware = Callable[[Any, Proceed], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A function for one kind of job.

    timeout: seconds a run may take; None uses the worker's.
    breaker: stops the kind from being claimed while its runs keep failing.
    """

    kind: str
    function: Callable[[Any], Any]
    plain: bool
    retry: Retry
    timeout: float | None
    breaker: Breaker | None


def handler_for(
    kind: str,
    function: Callable[[Any], Any],
    retry: Retry | None,
    timeout: Duration | None,
    breaker: Breaker | None,
    item: str = "job",
) -> Handler:
    """Check a function as a handler of `kind`; `item` is what it is called with."""
    checked_name(kind, "kind")
    check_signature(kind, function, item)
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError(f"retry = {retry!r} is not a Retry; give e.g. Retry.exponential('1s')")
    if breaker is not None and not isinstance(breaker, Breaker):
        raise ConfigError(f"breaker = {breaker!r} is not a Breaker; give e.g. Breaker(failures=5)")
    return Handler(
        kind=kind,
        function=function,
        plain=not is_async(function),
        retry=retry or JOB_RETRY,
        timeout=None if timeout is None else seconds(timeout, "timeout", positive=True),
        breaker=breaker,
    )


def check_signature(kind: str, function: object, item: str = "job") -> None:
    """Check that a function can be called with one argument."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise HandlerError(f"the handler of kind {kind!r} is {name}, which is not callable")
    if _is_generator(function) or _is_generator(getattr(function, "__call__", None)):  # noqa: B004
        raise HandlerError(
            f"the handler {name} of kind {kind!r} is a generator; "
            f"write a function that returns when the {item} is done"
        )
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise HandlerError(
            f"the handler {name}{inspect.signature(function)} of kind {kind!r} cannot be called "
            f"with one argument, the {item}: {error}. Write it as `def {name}({item}): ...`"
        ) from None
    except ValueError:  # some builtins have no signature; they will say so when called
        return


def check_middleware(layer: object) -> None:
    """Check `async def layer(job, proceed)`."""
    name = getattr(layer, "__name__", repr(layer))
    advice = f"write it as `async def {name}(job, proceed): return await proceed(job)`"
    if not callable(layer) or _is_generator(layer):
        raise HandlerError(f"the middleware {name} is not an async function; {advice}")
    try:
        inspect.signature(layer).bind(object(), object())
    except TypeError as error:
        raise HandlerError(
            f"the middleware {name}{inspect.signature(layer)} cannot be called with two "
            f"arguments, the job and the next layer: {error}; {advice}"
        ) from None
    except ValueError:  # as above
        return


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - the bound method is wanted
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def call_of(
    handler: Handler,
    threads: HandlerThreads,
    timeout: float | None,
    middleware: Sequence[Middleware] = (),
) -> Proceed:
    """The handler as one awaitable call, inside its middleware and within its time limit.

    timeout: the limit of a handler that has none of its own.
    """
    call: Proceed = _in_thread(handler.function, threads) if handler.plain else handler.function
    for layer in reversed(middleware):  # the first one is outermost
        call = _around(layer, call)
    limit = timeout if handler.timeout is None else handler.timeout
    return call if limit is None else _within(call, limit, handler.plain)


def _in_thread(function: Callable[[Any], Any], threads: HandlerThreads) -> Proceed:
    async def call(job: Any) -> Any:
        result = await threads.run(function, job)
        # A plain function (a lambda, a decorator) may return the coroutine of an async one.
        return await result if inspect.isawaitable(result) else result

    return call


def _around(layer: Middleware, inner: Proceed) -> Proceed:
    async def outer(job: Any) -> Any:
        return await layer(job, inner)

    return outer


def _within(call: Proceed, limit: float, plain: bool) -> Proceed:
    """Limit how long a call may take. A thread cannot be stopped; it is abandoned."""

    async def limited(job: Any) -> Any:
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                return await call(job)
        except TimeoutError as error:
            if not timer.expired():
                raise  # the handler's own
            what = "its thread runs on and keeps its place until it returns" if plain else "stopped"
            raise HandlerTimeout(
                f"the handler of kind {job.kind!r} ran longer than its timeout of {limit:g} s; "
                f"{what}"
            ) from error

    return limited


def is_permanent(error: BaseException, retry: Retry) -> bool:
    """True if trying again cannot help. SystemExit and similar are retried."""
    try:
        return isinstance(error, Exception) and retry.classify(error) == "permanent"
    except Exception:  # the error object itself may be broken
        return False


def text_of(error: BaseException, *, bare: bool = False) -> str:
    """An error as text, even if its own `__str__` fails."""
    name = type(error).__name__
    try:
        return str(error) if bare else f"{name}: {error}"
    except Exception:
        return f"{name} (its own text cannot be read)"


def traceback_of(error: BaseException) -> str:
    """The innermost frames of an error in a handler, without those of Pollwise."""
    try:
        stack = traceback.extract_tb(error.__traceback__)
    except Exception:
        return ""
    theirs = [frame for frame in stack if not frame.filename.startswith(_OUR_FILES)]
    return "".join(traceback.format_list(theirs[-FRAMES_SHOWN:])).rstrip()
