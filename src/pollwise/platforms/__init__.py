"""Differences between Linux, macOS and Windows: one module per concern.

Nothing else in Pollwise asks which system it runs on, or uses what only some systems have.
`docs/reference/platforms.md` says what works where.
"""
