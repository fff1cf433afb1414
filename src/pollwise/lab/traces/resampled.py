"""Other traces like one: its blocks in another order, so that a forecast can be a range."""

from __future__ import annotations

from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Trace

#: A trace is cut into this many blocks of one length.
BLOCKS = 24


def resampled(trace: Trace, seed: int) -> Trace:
    """As many blocks as the trace has, each drawn from all of them; may have no arrivals at all.

    Patterns within a block are kept, those over several are not. Blocks may come twice, so the
    number of arrivals differs as it would at another time.
    """
    length = trace.span / BLOCKS
    drawn = np.random.RandomState(seed % 2**32).randint(0, BLOCKS, BLOCKS)
    edges = np.searchsorted(trace.arrivals, np.arange(1, BLOCKS) * length)
    blocks = np.split(trace.arrivals, edges)
    parts = [blocks[block] + (place - block) * length for place, block in enumerate(drawn)]
    arrivals = np.clip(np.concatenate(parts), 0.0, trace.span)
    return Trace(trace.name, np.sort(arrivals), trace.span)
