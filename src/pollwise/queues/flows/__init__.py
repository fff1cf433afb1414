"""Flows: jobs that wait for others of their batch. `linking` gives each its place in a put,
`keeping` keeps those that ended for those that come after, `view` and `tree` are what a flow looks
like, and `handle` is a flow that was put.
"""
