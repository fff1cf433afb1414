"""Registered workers: what each can take, what a poll hands out, what a report changes, and
push.
"""
