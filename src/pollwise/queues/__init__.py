"""Queues: one contract, many stores."""
