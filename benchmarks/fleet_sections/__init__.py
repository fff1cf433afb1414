"""The sections of `benchmarks/fleet.py`."""
