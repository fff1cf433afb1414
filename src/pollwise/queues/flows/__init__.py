"""Flows: jobs that wait for other jobs of their batch. `linking` finds the flows in a batch,
`keeping` keeps ended jobs for their successors, `view` and `tree` show a flow, and `handle` waits
for it and cancels it.
"""
