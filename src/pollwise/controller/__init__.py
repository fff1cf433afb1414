"""The controller: jobs for workers anywhere, over plain HTTP requests.

`Controller` is here; the API is in `http`, registered workers in `workers`, logs and artefacts in
`files`, tokens in `security`, and the tables beside the queue in `state`. What needs the extra
`serve` is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.controller.options import ControllerOptions

__all__ = ["Controller", "ControllerOptions"]


def __getattr__(name: str) -> Any:
    if name == "Controller":
        from pollwise.controller.controller import Controller

        return Controller
    if name == "ControllerOptions":
        from pollwise.controller.options import ControllerOptions

        return ControllerOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
