"""Runs one command: starts it with few rights, ends all that it started, and reads what it left.

A command is not trusted: nothing that it leaves in its folder may block or mislead the agent.
`supervisor.py` is a script, a process of its own beside each command.
"""
