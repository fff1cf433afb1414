"""What workers did, by minute or hour: the points of `Queue.history`, and how to add them up."""

from pollwise.runtime.rollups import Histogram, HistoryPoint, by_kind, merged, series

__all__ = ["Histogram", "HistoryPoint", "by_kind", "merged", "series"]
