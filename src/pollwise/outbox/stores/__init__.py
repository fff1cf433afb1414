"""The stores of an outbox: the contract in `base`, one folder per database, and one in memory for
tests. `urls` opens a store by its URL.
"""
