"""Runs that finish: reads how long they took, and compares when to poll them.

`reading` reads the durations, `costs` replays strategies on them, and `picture` draws what
`Completion` has learned.
"""
