"""Handlers: the function for each kind of job, and how its failures are treated."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, HandlerError, HandlerTimeout, Reject
from pollwise.runtime.executor.control.run_control import with_same_control
from pollwise.runtime.executor.django import closing_lost, closing_old
from pollwise.runtime.executor.threads import HandlerThreads
from pollwise.runtime.jobs import checked_name

#: How a failing job is retried unless its handler says otherwise.
JOB_RETRY = Retry.exponential("1s", max_delay="60s", attempts=5, jitter=0.25)

#: A handler that goes on for this many seconds after its timeout has cancelled it is reported.
SWALLOWED_AFTER = 2.0

#: How many frames of a handler's error are logged, counted from the innermost.
FRAMES_SHOWN = 8
#: How many errors of a chain of causes and of groups are logged.
ERRORS_SHOWN = 10
#: How many members of a group are named in its text.
MEMBERS_SHOWN = 3
_OUR_FILES = (str(Path(__file__).parents[2]), asyncio.__path__[0], contextlib.__file__)

Proceed = Callable[[Any], Awaitable[Any]]
Middleware = Callable[[Any, Proceed], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A function for one kind of job.

    timeout: seconds a run may take; None uses the worker's.
    breaker: stops the kind from being claimed while its runs keep failing.
    result_ttl: for how many seconds what it returns is kept with the job; None: not at all.
    process: it runs in a process of its own.
    signature: returns a hash of the arguments that a task takes; None if it is not a task.
    """

    kind: str
    function: Callable[[Any], Any]
    plain: bool
    retry: Retry
    timeout: float | None
    breaker: Breaker | None
    result_ttl: float | None = None
    process: bool = False
    signature: Callable[[], str] | None = None


def handler_for(
    kind: str,
    function: Callable[[Any], Any],
    retry: Retry | None,
    timeout: Duration | None,
    breaker: Breaker | None,
    item: str = "job",
    result_ttl: Duration | None = None,
    process: bool = False,
    signature: Callable[[], str] | None = None,
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
        result_ttl=None if result_ttl is None else seconds(result_ttl, "result_ttl") or None,
        process=process,
        signature=signature,
    )


def check_signature(kind: str, function: object, item: str = "job") -> None:
    """Check that a function can be called with one argument."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise HandlerError(f"the handler of kind {kind!r} is {name}, which is not callable")
    refuse_generator(kind, function, item)
    try:
        own_signature(function).bind(object())
    except TypeError as error:
        raise HandlerError(
            f"the handler {name}{own_signature(function)} of kind {kind!r} cannot be called "
            f"with one argument, the {item}: {error}. Write it as `def {name}({item}): ...`"
        ) from None
    except ValueError:  # some builtins have no signature; they will say so when called
        return


def refuse_generator(kind: str, function: object, item: str) -> None:
    """Raise HandlerError for a generator, whose code would not run when it is called."""
    if _is_generator(function) or _is_generator(getattr(function, "__call__", None)):  # noqa: B004
        name = getattr(function, "__name__", repr(function))
        raise HandlerError(
            f"the handler {name} of kind {kind!r} is a generator; "
            f"write a function that returns when the {item} is done"
        )


def check_middleware(layer: object) -> None:
    """Check `async def layer(job, proceed)`."""
    name = getattr(layer, "__name__", repr(layer))
    advice = f"write it as `async def {name}(job, proceed): return await proceed(job)`"
    if not callable(layer) or _is_generator(layer):
        raise HandlerError(f"the middleware {name} is not an async function; {advice}")
    try:
        own_signature(layer).bind(object(), object())
    except TypeError as error:
        raise HandlerError(
            f"the middleware {name}{own_signature(layer)} cannot be called with two "
            f"arguments, the job and the next layer: {error}; {advice}"
        ) from None
    except ValueError:  # as above
        return


def own_signature(function: Any) -> inspect.Signature:
    """The signature that callers must fit.

    `functools.wraps` shows the signature of the wrapped function, but a decorator may add arguments
    to the call of it.
    """
    return inspect.signature(function, follow_wrapped=False)


def signature_of(function: Any) -> inspect.Signature:
    """The signature by which arguments are chosen.

    A decorator with `*args` passes on what it receives, so what it wraps counts.
    """
    own = own_signature(function)
    passes_on = any(each.kind is each.VAR_POSITIONAL for each in own.parameters.values())
    return inspect.signature(function) if passes_on else own


def takes(function: Any, count: int) -> bool:
    """True if a function can be called with `count` arguments."""
    try:
        signature_of(function).bind(*range(count))
    except TypeError:
        return False
    return True


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
    place: Callable[[], AbstractAsyncContextManager[Proceed]] | None = None,
    report_stuck: Callable[[Any, float], None] | None = None,
) -> Proceed:
    """The handler as one awaitable call, inside its middleware and within its time limit.

    timeout: the limit of a handler that has none of its own.
    report_stuck: called with the job and a time if the handler goes on for this time after its
        timeout cancelled it.
    place: a place in a process, for a handler that runs in one; it yields the call.
    """
    limit = timeout if handler.timeout is None else handler.timeout

    def wrapped(call: Proceed) -> Proceed:
        for layer in reversed(middleware):  # the first one is outermost
            call = _around(layer, call)
        return call if limit is None else _within(call, limit, handler, report_stuck)

    if place is not None:  # waiting for a place is not part of the run

        async def in_process(job: Any) -> Any:
            async with place() as call:
                return await wrapped(call)(job)

        return in_process
    if handler.plain:
        return wrapped(_in_thread(closing_old(handler.function), threads))
    return wrapped(closing_lost(handler.function))


def _in_thread(function: Callable[[Any], Any], threads: HandlerThreads) -> Proceed:
    async def call(job: Any) -> Any:
        result = await threads.run(function, job)
        # A plain function (a lambda, a decorator) may return the coroutine of an async one.
        return await result if inspect.isawaitable(result) else result

    return call


def _around(layer: Middleware, inner: Proceed) -> Proceed:
    async def outer(job: Any) -> Any:
        return await layer(job, lambda passed: inner(with_same_control(job, passed)))

    return outer


def _within(
    call: Proceed,
    limit: float,
    handler: Handler,
    report_stuck: Callable[[Any, float], None] | None,
) -> Proceed:
    """Limit how long a call may take. A thread cannot be stopped; it is abandoned."""
    if handler.plain or handler.process:
        report_stuck = None  # the wait for it ends at once
    what = "its thread runs on and keeps its place until it returns" if handler.plain else "stopped"
    if handler.process:
        what = "its process was killed"

    async def limited(job: Any) -> Any:
        timer, late = asyncio.timeout(limit), None
        if report_stuck is not None:
            later = limit + SWALLOWED_AFTER
            late = asyncio.get_running_loop().call_later(later, report_stuck, job, SWALLOWED_AFTER)
        try:
            async with timer:
                return await call(job)
        except TimeoutError as error:
            if not timer.expired():
                raise  # the handler's own
            raise HandlerTimeout(
                f"the handler of kind {job.kind!r} ran longer than its timeout of {limit:g} s; "
                f"{what}"
            ) from error
        finally:
            if late is not None:
                late.cancel()

    return limited


def is_permanent(error: BaseException, retry: Retry) -> bool:
    """True if trying again cannot help. SystemExit and similar are retried."""
    try:
        return isinstance(error, Exception) and retry.classify(error) == "permanent"
    except Exception:  # the error object itself may be broken
        return False


def text_of(error: BaseException, *, bare: bool = False, secret: bool = False) -> str:
    """An error as text, even if its own `__str__` fails. A group also names its members.

    secret: without what the error says, which may quote an encrypted payload. What a handler says
        with `Reject` is meant to be read.
    """
    name = type(error).__name__
    if secret and not isinstance(error, (Reject, HandlerTimeout)):
        return f"{name}: (hidden, because the payload is encrypted)"
    try:
        text = str(error) if bare else f"{name}: {error}"
        if isinstance(error, BaseExceptionGroup):
            text += ": " + "; ".join(text_of(each) for each in error.exceptions[:MEMBERS_SHOWN])
    except Exception:
        return f"{name} (its own text cannot be read)"
    return text


def traceback_of(error: BaseException, *, secret: bool = False) -> str:
    """Where an error in a handler came from, without the frames of Pollwise.

    After it come the members of a group and the causes, each with its own frames.
    """
    shown: list[str] = []
    seen: set[int] = set()
    waiting = [("", error)]
    while waiting and len(seen) < ERRORS_SHOWN:
        title, each = waiting.pop(0)
        if id(each) in seen:  # a cause may lead back to its effect
            continue
        seen.add(id(each))
        shown += [f"{title} {text_of(each, secret=secret)}".rstrip(": ")] if title else []
        shown += _frames_of(each)
        waiting[:0] = _behind(each)
    if waiting:
        shown.append("more errors are not shown")
    return "\n".join(shown)


def text_and_traceback(error: BaseException, *, secret: bool = False) -> tuple[str, str]:
    """An error as `text_of` and `traceback_of` write it."""
    return text_of(error, secret=secret), traceback_of(error, secret=secret)


def is_ours(frame: traceback.FrameSummary) -> bool:
    """True for a frame of Pollwise, asyncio or contextlib."""
    return frame.filename.startswith(_OUR_FILES)


def _frames_of(error: BaseException) -> list[str]:
    """The innermost frames of an error, as text; or those that another process sent with it."""
    remote = getattr(error, "remote_traceback", "")
    if isinstance(remote, str) and remote:
        return remote.splitlines()
    try:
        stack = traceback.extract_tb(error.__traceback__)
    except Exception:
        return []
    theirs = [frame for frame in stack if not is_ours(frame)]
    return [text.rstrip() for text in traceback.format_list(theirs[-FRAMES_SHOWN:])]


def _behind(error: BaseException) -> list[tuple[str, BaseException]]:
    """The members of a group, then the cause; each with a title."""
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    found = [(f"  member {n} of {len(members)}:", each) for n, each in enumerate(members, 1)]
    if error.__cause__ is not None:
        found.append(("  caused by", error.__cause__))
    elif error.__context__ is not None and not error.__suppress_context__:
        found.append(("  raised while handling", error.__context__))
    return found
