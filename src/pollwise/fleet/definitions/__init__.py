"""Definitions of targets: the table of one target, as fleet.toml, the API and the command line give
it, and what is done with such tables.
"""
