"""The HTTP side: jobs for workers anywhere, over plain requests.

    from pollwise.controller import create_app
    app = create_app("sqlite:///jobs.db")       # an ASGI application: uvicorn module:app

What needs the extra `serve` is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pollwise.controller.http.app import create_app
    from pollwise.controller.options import ControllerOptions

__all__ = ["ControllerOptions", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from pollwise.controller.http.app import create_app

        return create_app
    if name == "ControllerOptions":
        from pollwise.controller.options import ControllerOptions

        return ControllerOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
