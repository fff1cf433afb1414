"""What the controller keeps beside the queue: workers, tokens, audit log, files and logs.

`base` has the calls, `encoding` what goes in and out of the statements in `statements.sql`.
"""
