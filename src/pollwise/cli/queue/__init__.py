"""`pollwise queue …`: put, show, cancel, retry and drop jobs; pause a queue, and see its workers.

`commands` is the list of all of them, `steering` has those about the queue and its workers.
"""
