"""How another process finds a function: by its module and its name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pollwise.errors import HandlerError
from pollwise.platforms.system import is_windows
from pollwise.runtime.executor.starting import no_runs
from pollwise.worker.context import context_names

#: The name under which a process runs the program's file; `multiprocessing` uses the same.
MAIN = "__mp_main__"
#: How many decorators are unwrapped to find a function.
DECORATORS_MAX = 50


class FunctionPlace(NamedTuple):
    """Where a function is: in a module, by its qualified name, inside a number of decorators."""

    module: str
    name: str
    depth: int


@dataclass(frozen=True, slots=True)
class ProcessCall:
    """A function that runs in a process.

    task: it is a task; its arguments are in the payload.
    context: it asks for the worker's context.
    """

    kind: str
    function: Callable[..., Any]
    task: bool
    context: bool


def process_call(kind: str, function: Callable[..., Any], *, task: bool) -> ProcessCall:
    """Check a function that is to run in a process."""
    check_importable(kind, function)
    return ProcessCall(kind, function, task, bool(context_names(function)))


def check_importable(kind: str, function: object) -> None:
    """Refuse a function that no other process can import."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    what = f"the function {name or function!r} of kind {kind!r} cannot run in a process"
    if is_windows():
        raise HandlerError(f"{what}: that needs Linux or macOS; leave process=True out")
    if name is None or module is None:
        raise HandlerError(
            f"{what}: it has no name that can be imported; write it with `def` in a module"
        )
    if "<" in name:
        raise HandlerError(
            f"{what}: it is defined inside another function, or a lambda, and a process imports it "
            "by its name; define it at the top level of a module"
        )
    if module == "__main__" and not main_source():
        raise HandlerError(
            f"{what}: it is defined in an interactive session, which a process cannot import; "
            "move it to a module"
        )


def main_source() -> list[str]:
    """How to run the program's file again: ["name", module] or ["path", file]; else empty."""
    main = sys.modules["__main__"]
    spec_name = getattr(getattr(main, "__spec__", None), "name", None)
    if spec_name:
        return ["name", spec_name]
    path = getattr(main, "__file__", None)
    return ["path", os.path.abspath(path)] if path and os.path.exists(path) else []  # noqa: PTH100, PTH110


def place_of(function: Callable[..., Any], what: str) -> FunctionPlace:
    """Where a function is; HandlerError if its name leads elsewhere.

    what: the function in the error.
    """
    module, name = function.__module__, function.__qualname__
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    for depth, each in enumerate(_inside(found)):
        if each is function:
            return FunctionPlace(module, name, depth)
    raise HandlerError(
        f"{what} cannot run in a process: {module}.{name} is {_shown(found)}, and a process "
        "imports it by that name. Keep the name, and use functools.wraps in decorators"
    )


def found_at(target: FunctionPlace, main: list[str]) -> Callable[..., Any]:
    """Import a function. In the process that runs it.

    main: as `main_source` returned it in the worker.
    """
    with no_runs(
        "a process of the worker imports the module of its handlers; call `worker.run()` only "
        'under `if __name__ == "__main__":`'
    ):
        found: Any = (
            _main_module(main)
            if target.module == "__main__"
            else importlib.import_module(target.module)
        )
    for part in target.name.split("."):
        found = getattr(found, part)
    for _ in range(target.depth):
        found = found.__wrapped__
    function: Callable[..., Any] = found
    return function


def _main_module(main: list[str]) -> Any:
    """Run the program's file once, as a module of another name, as `multiprocessing` does."""
    if MAIN not in sys.modules:
        import runpy

        how, where = main
        module = type(sys)(MAIN)
        run = runpy.run_module if how == "name" else runpy.run_path
        module.__dict__.update(run(where, run_name=MAIN))
        sys.modules["__main__"] = sys.modules[MAIN] = module
    return sys.modules[MAIN]


def _inside(found: Any) -> Iterator[Any]:
    """An object, and what it wraps, from the outside in."""
    for _ in range(DECORATORS_MAX):
        if found is None:
            return
        yield found
        found = getattr(found, "__wrapped__", None)


def _shown(found: object) -> str:
    return "not there" if found is None else f"another object ({type(found).__name__})"
