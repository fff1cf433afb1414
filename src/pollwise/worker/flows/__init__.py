"""Flows of tasks: `building` links their calls, `taking` gives a task the results of the jobs
before it, and `shape` describes how the results of groups are nested in lists.
"""
