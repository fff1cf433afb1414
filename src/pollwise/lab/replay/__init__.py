"""Replays: what a strategy would have done with a trace, by the real loop or by a compiled twin."""
