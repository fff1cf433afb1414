"""Tokens, and what the owner of each may do."""
