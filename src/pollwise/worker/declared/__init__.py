"""Schedules and limits that the code of a worker declares for its whole queue."""
