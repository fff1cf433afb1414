"""Replays: what a strategy would have done with a trace.

`engine` runs the real poll loop on a virtual clock, `fast` and `kernels` the same in a short or
compiled loop, and `limits` computes what no strategy can beat. `base` has what they share.
"""
