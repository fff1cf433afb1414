"""Channels: where notices of alerts are sent. One module per type, and `base` has what all of them
share: a name, a time limit and quiet hours.
"""
