"""Waits until one thing is finished: a build, an export, a machine.

It polls with the one loop, sparingly at first sight: the longer something has taken, the longer the
pauses.
"""
