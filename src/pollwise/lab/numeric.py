"""numpy for the lab, and numba for its compiled loops.

The modules of the lab import both from here, so that a missing package gives an error that says
what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from pollwise.errors import MissingExtra

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtra("the lab", "lab") from None

__all__ = ["NDArray", "compiled", "np"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function on its first call, and cache the result on disk.

    Numba rounds as Python does (no fast-math), so a compiled loop gives exactly the same numbers.
    """
    try:
        from numba import njit
    except ImportError:
        raise MissingExtra("the lab", "lab") from None
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to cache: a read-only installation without a home folder
        return cast(F, njit(nogil=True)(function))
