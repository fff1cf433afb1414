"""Alerts of a running fleet: its polls become alerts and notices, and these are saved with it.

`alerting` follows the polls and the time, `parents` holds alerts back of what is behind something
that is down, `notices` writes what is sent, and `unsaved` has what the next save takes along.
"""
