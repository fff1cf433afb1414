"""Registered workers: which jobs each can take, polls, reports, leases, and WebSockets."""
