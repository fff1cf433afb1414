"""What the lab needs beyond Pollwise itself: numpy, and numba for the loops that are compiled.

The modules of the lab import both from here, so that whoever lacks them reads what to install.
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
    """Compile a function when it is first called, and keep the result on disk for the next time.

    Numba's rounding is Python's: no fast-math, so a compiled loop equals its original to the bit.
    """
    try:
        from numba import njit
    except ImportError:
        raise MissingExtra("the lab", "lab") from None
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder to keep it in: a read-only installation without a home
        return cast(F, njit(nogil=True)(function))
