"""The base of every running part of Pollwise: the clock, the one poll loop, hints, chores, events,
jobs as values, the audit log, and the executor of worker and relay. It imports `core` and no store:
stores are in `storage` and above.
"""
