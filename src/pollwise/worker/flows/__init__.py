"""Flows of tasks: `building` links their calls, `taking` gives a task the results of the jobs
before it, and `shape` says how results of groups lie in lists.
"""
