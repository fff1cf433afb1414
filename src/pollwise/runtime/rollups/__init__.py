"""The history that workers and relays keep: figures per minute and kind, as histograms and counts.

`points` has the figures and how they are added up, `tally` what a running worker counts, `rows` how
a store keeps them, and `keeping` the calls that queues and outbox stores share.
"""

from pollwise.runtime.rollups.histogram import EMPTY as EMPTY
from pollwise.runtime.rollups.histogram import Histogram as Histogram
from pollwise.runtime.rollups.points import OTHER_KINDS as OTHER_KINDS
from pollwise.runtime.rollups.points import HistoryPoint as HistoryPoint
from pollwise.runtime.rollups.points import by_kind as by_kind
from pollwise.runtime.rollups.points import merged as merged
from pollwise.runtime.rollups.points import series as series
