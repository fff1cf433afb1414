"""The history of targets: periods in which a target was up or down, and roll-ups of its polls."""
