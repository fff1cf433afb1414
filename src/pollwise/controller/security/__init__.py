"""Tokens, who may do what, and the audit log."""
