"""Alerts: conditions that open and close an alert, and the notices that channels send about it.

An alert is decided here and kept in the store of what it is about. Its notices are records of an
outbox in the same store, so a restart sends nothing twice and loses nothing.
"""
