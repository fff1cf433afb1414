"""Waits until one thing is finished: a build, an export, a machine.

It uses the same poll loop as everything else. The longer something has taken, the longer are the
pauses.
"""
