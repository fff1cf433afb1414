"""Logging in to the web interface: signed cookies, passwords, limits, checked forms, headers.

`pollwise.web.access` puts these parts together; pages use only that.
"""
