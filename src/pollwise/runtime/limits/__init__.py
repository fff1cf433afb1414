"""Limits of the servers that are polled: a budget that many pollers share, and what the headers of
an HTTP answer say about when to come back.
"""
