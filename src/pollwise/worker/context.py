"""The context of a worker: set up once, and passed to the handlers that ask for it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar, cast

from pollwise.errors import ContextFailed, HandlerError
from pollwise.runtime.executor.handlers import Handler, text_and_traceback
from pollwise.runtime.jobs import Job
from pollwise.worker.flows.taking import names_of_results, results_of

F = TypeVar("F", bound=Callable[..., Any])


class _FromContext:
    """The default of a parameter that the worker fills in with its context."""

    def __repr__(self) -> str:
        return "from_context"


#: As the default of a handler's parameter: the worker passes what its `context` yielded.
from_context: Any = _FromContext()


def context_names(function: Callable[..., Any]) -> list[str]:
    """The parameters that get the context."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # not callable, or a builtin
        return []
    return [name for name, each in parameters.items() if each.default is from_context]


def mark_context(handler: F, names: Collection[str]) -> F:
    """Note with a handler which of its parameters get the context."""
    cast(Any, handler).context_names = list(names)
    return handler


def check_context(handlers: Mapping[str, Handler], context: object) -> None:
    """Refuse handlers that ask for a context if there is none: they would get None."""
    if context is not None:
        return
    for kind, handler in handlers.items():
        if names := getattr(handler.function, "context_names", None):
            raise HandlerError(
                f"the handler of kind {kind!r} asks for {names[0]}=from_context, but the worker "
                "has no context; write one with @worker.context"
            )


async def enter_context(
    entered: AsyncExitStack, context: Callable[[], AbstractAsyncContextManager[Any]]
) -> Any:
    """Enter the context of a worker; what it yields. Raises ContextFailed if it raises."""
    try:
        return await entered.enter_async_context(context())
    except Exception as error:
        text, where = text_and_traceback(error)
        raise ContextFailed(f"the worker's context raised {text}\n{where}") from error


def filling_in(function: F, context: Callable[[], Any]) -> F:
    """The function, called with what the worker fills in: the context for each parameter whose
    default is from_context, and results for each whose default is results_before."""
    names, results = context_names(function), names_of_results(function)
    if not names and not results:
        return function

    def filled_in(job: Job) -> dict[str, Any]:
        return dict.fromkeys(names, context()) | {name: results_of(job) for name in results}

    if inspect.iscoroutinefunction(function):

        async def filled(job: Any) -> Any:
            return await function(job, **filled_in(job))

        return mark_context(cast(F, functools.update_wrapper(filled, function)), names)

    def filled_plain(job: Any) -> Any:
        return function(job, **filled_in(job))

    return mark_context(cast(F, functools.update_wrapper(filled_plain, function)), names)
