"""Targets of other monitors: one module for each, which turns its export into tables of targets.

What cannot be carried over is never left out silently: each module says it, target by target.
"""
