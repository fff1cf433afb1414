"""Alerts of a running fleet: its polls become alerts and notices, and these are saved with it.

`alerting` follows the polls and the time, `parents` holds back alerts of targets behind others
that are down, `notices` writes what is sent, and `unsaved` keeps rows for the next save.
"""
