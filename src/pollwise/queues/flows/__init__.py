"""Flows: jobs that wait for others of their batch. `linking` gives each its place in a put,
`keeping` keeps those that ended for those that come after, and `view` is what a flow looks like.
"""
