"""The type of what `worker.task` returns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from pollwise.runtime.jobs import Job

if TYPE_CHECKING:
    from pollwise.worker.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")
Async = Coroutine[Any, Any, R]


class TaskDecorator(Protocol):
    """The decorator `worker.task`: turns a function, async or plain, into a `Task`.

    A first parameter of the type `Job` is filled in by the worker, so callers do not give it.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, P], Async[R]], /
    ) -> Task[P, R, Async[R]]: ...
    @overload
    def __call__(self, function: Callable[P, Async[R]], /) -> Task[P, R, Async[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
