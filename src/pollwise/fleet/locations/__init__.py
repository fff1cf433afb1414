"""Confirmation from several places: nodes have a location, and a failure of a target may have to be
seen from several of them before it counts.
"""
