"""What the controller keeps beside the queue: workers, tokens, audit log, files and logs.

`base` has the contract, `sql` the calls that all stores share, with `statements.sql`.
"""
