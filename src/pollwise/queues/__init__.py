"""Queues: one contract (`base`), many stores, one folder each. `views` has the arguments and
results of pages and counts; `urls` opens a queue from its URL.
"""

from pollwise.queues.schedules.record import Schedule
from pollwise.queues.urls import StoreUrl
from pollwise.queues.views import BulkDone, JobFilter, JobPage, Stats

__all__ = ["BulkDone", "JobFilter", "JobPage", "Schedule", "Stats", "StoreUrl"]
