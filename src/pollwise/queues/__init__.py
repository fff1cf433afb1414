"""Queues: one contract (`base`), many stores, one folder each. `urls` opens a queue from
its URL.
"""
